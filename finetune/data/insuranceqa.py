"""InsuranceQA (Feng et al., 2015): questions whose candidate pool is 200 answers to other questions."""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from .collect import SourceRow
from .dataset import DataSet, find_files
from .filters import NO_ALL_NEGATIVE
from .tables import read_json_lines

ANSWERS = "answers.jsonl"


def read_insuranceqa(path: Path) -> Iterator[SourceRow]:
    """Yields each question's right answers and then its negatives, whose texts are in answers.jsonl beside the file.

    Raises KinspanError, naming file and line, where answers.jsonl is missing, where a field is missing or not a string,
    where an answer id stands twice in answers.jsonl, and where a question names an answer that is not there.
    """
    source, texts = read_texts(path.parent)
    for number, record in read_json_lines(path):
        qid, question = record.get("qid"), record.get("question")
        if not isinstance(qid, str) or not isinstance(question, str):
            raise KinspanError(f'{path} line {number}: "qid" and "question" must both be there, as strings')
        yield SourceRow(number, qid, question, None, None, 0)
        for field, label in (("answers", 1), ("negatives", 0)):
            for aid in record.get(field, ()):
                if aid not in texts:
                    raise KinspanError(f"{path} line {number}: {field} has aid {aid!r}, which {source.name} lacks")
                yield SourceRow(number, qid, question, aid, texts[aid], label)


def read_texts(folder: Path) -> tuple[Path, dict[str, str]]:
    """Returns the file of answers, and the text of each by its id."""
    found = find_files(folder, [ANSWERS])
    if not found:
        raise KinspanError(f"{folder}: {ANSWERS} is not there")
    path = found[0]
    texts: dict[str, str] = {}
    for number, record in read_json_lines(path):
        aid, text = record.get("aid"), record.get("text")
        if not isinstance(aid, str) or not isinstance(text, str):
            raise KinspanError(f'{path} line {number}: "aid" and "text" must both be there, as strings')
        if aid in texts:
            raise KinspanError(f"{path} line {number}: aid {aid!r} was there before")
        texts[aid] = normalise(text)
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
