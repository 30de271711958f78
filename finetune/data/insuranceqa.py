"""InsuranceQA (Feng et al., 2015): questions whose candidate pool is 200 answers to other questions.

Version 2 has pools of answers that a search engine found. A right answer that the search did not find is not among the
candidates, so that a fifth of the questions has none; papers measure on the others.
"""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from .collect import SourceRow
from .dataset import MULTICQA, DataSet, PaperCount, find_beside
from .filters import NO_ALL_NEGATIVE
from .tables import check_fields, read_fields, read_json_lines

ANSWERS = "answers.jsonl"
VOCABULARY, ENCODED_ANSWERS = "vocabulary", "InsuranceQA.label2answer.token.encoded"
POOLS = {"train": ("train", 100), "dev": ("valid", 500), "test": ("test", 500)}


def read_insuranceqa(path: Path) -> Iterator[SourceRow]:
    """Yields each question's right answers and then its negatives, whose texts are in answers.jsonl beside the file."""
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


def read_insuranceqa_v2(path: Path) -> Iterator[SourceRow]:
    """Yields each question's pool, in the order of the file.

    Texts are numbers of words. A line has the domain, the question, the right answers and the pool, separated by tabs;
    what is in a field, by spaces. In training, right answers that are not in the pool follow it.
    """
    words: dict[str, str] = {}
    for _, (key, word) in read_fields(find_beside(path, VOCABULARY), "number", "word"):
        words.setdefault(key, word)
    encoded = find_beside(path, ENCODED_ANSWERS)
    texts = {
        aid: _decode(text, words, f"{encoded} line {number}")
        for number, (aid, text) in read_fields(encoded, "answer", "words")
    }
    split = next(name for name, (part, _) in POOLS.items() if f".{part}." in path.name)
    for number, fields in read_fields(path, "domain", "question", "right answers", "pool"):
        where = f"{path} line {number}"
        question = _decode(fields[1], words, where)
        right, pool = fields[2].split(), fields[3].split()
        for aid in dict.fromkeys([*pool, *right] if split == "train" else pool):
            if aid not in texts:
                raise KinspanError(f"{where}: answer {aid!r} is not in {encoded.name}")
            yield SourceRow(number, f"{split}-{number}", question, aid, texts[aid], int(aid in right))


def _decode(text: str, words: dict[str, str], where: str) -> str:
    try:
        return normalise(" ".join([words[number] for number in text.split()]))
    except KeyError as error:
        raise KinspanError(f"{where}: word {error} is not in {VOCABULARY}") from error


def _name_pools(split: str) -> tuple[str, ...]:
    part, size = POOLS[split]
    return (f"InsuranceQA.question.anslabel.token.{size}.pool.solr.{part}.encoded",)


INSURANCEQA_V2 = DataSet(
    name="insuranceqa_v2",
    help=f"The folder V2 of InsuranceQA: {VOCABULARY}; {ENCODED_ANSWERS}; {_name_pools('dev')[0]} and "
    f"{_name_pools('test')[0]}, which have pools of 500 answers; {_name_pools('train')[0]}, with pools of 100 "
    "and the right answers.",
    file_names=_name_pools,
    read=read_insuranceqa_v2,
    paper_counts={
        ("train", NO_ALL_NEGATIVE): (PaperCount(MULTICQA, 12_889),),
        ("dev", NO_ALL_NEGATIVE): (PaperCount(MULTICQA, 1592),),
        ("test", NO_ALL_NEGATIVE): (PaperCount(MULTICQA, 1625),),
    },
    accuracy=True,
    measured_on=NO_ALL_NEGATIVE,
)
