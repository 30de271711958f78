"""InsuranceQA (Feng et al., 2015): questions whose candidate pool is 200 answers to other questions."""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from .collect import SourceRow
from .dataset import DataSet, find_beside
from .filters import NO_ALL_NEGATIVE
from .tables import check_fields, read_json_lines

ANSWERS = "answers.jsonl"


def read_insuranceqa(path: Path) -> Iterator[SourceRow]:
    """Yields each question's right answers and then its negatives, whose texts are in answers.jsonl beside the file.

    Raises KinspanError, naming file and line, where answers.jsonl is missing, where a field is missing or of another
    kind, where an answer id stands twice in answers.jsonl, and where a question names an answer that is not there.
    """
    source, texts = read_texts(path)
    for number, record in read_json_lines(path):
        check_fields(record, f"{path} line {number}", str, "qid", "question")
        qid, question = record["qid"], record["question"]
        check_fields({"answers": [], "negatives": [], **record}, f"{path} line {number}", list, "answers", "negatives")
        yield SourceRow(number, qid, question, None, None, 0)
        for field, label in (("answers", 1), ("negatives", 0)):
            for aid in record.get(field, ()):
                if not isinstance(aid, str) or aid not in texts:
                    raise KinspanError(f"{path} line {number}: {field} has aid {aid!r}, which {source.name} lacks")
                yield SourceRow(number, qid, question, aid, texts[aid], label)


def read_texts(beside: Path) -> tuple[Path, dict[str, str]]:
    """Returns the file of answers beside another file, and the text of each by its id."""
    path = find_beside(beside, ANSWERS)
    texts: dict[str, str] = {}
    for number, record in read_json_lines(path):
        check_fields(record, f"{path} line {number}", str, "aid", "text")
        if record["aid"] in texts:
            raise KinspanError(f"{path} line {number}: aid {record['aid']!r} was there before")
        texts[record["aid"]] = normalise(record["text"])
    return path, texts


INSURANCEQA = DataSet(
    name="insuranceqa",
    help="answers.jsonl with lines {aid, text}, and train.jsonl, valid.jsonl and test.jsonl with lines {qid, question, "
    "answers, negatives}, of which the last two are lists of aids. There are 200 negatives per question, hence 2.6 "
    "million training pairs.",
    file_names=lambda split: (f"{'valid' if split == 'dev' else split}.jsonl",),
    read=read_insuranceqa,
    accuracy=True,
    measured_on=NO_ALL_NEGATIVE,
)
