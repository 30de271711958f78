"""InsuranceQA, version 2, as Feng et al., 2015 distribute it: pools of answers that a search engine found.

Texts are numbers of words. A right answer that the search did not find is not among the candidates, so that a fifth of
the questions has none; papers measure on the others.
"""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from ..collect import SourceRow
from ..dataset import MULTICQA, DataSet, PaperCount, find_beside
from ..filters import NO_ALL_NEGATIVE
from ..tables import read_fields

VOCABULARY, ANSWERS = "vocabulary", "InsuranceQA.label2answer.token.encoded"
POOLS = {"train": ("train", 100), "dev": ("valid", 500), "test": ("test", 500)}


def read_insuranceqa_v2(path: Path) -> Iterator[SourceRow]:
    """Yields each question's pool, in the order of the file.

    A line has the domain, the question, the right answers and the pool, separated by tabs; what is in a field, by
    spaces. In training, right answers that are not in the pool follow it.

    Raises KinspanError, naming the file and the line, where the vocabulary or the answers are missing, where a line has
    another number of fields, and for a word or an answer that is not there.
    """
    words: dict[str, str] = {}
    for _, (key, word) in read_fields(find_beside(path, VOCABULARY), "number", "word"):
        words.setdefault(key, word)
    encoded = find_beside(path, ANSWERS)
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


def _name_files(split: str) -> tuple[str, ...]:
    part, size = POOLS[split]
    return (f"InsuranceQA.question.anslabel.token.{size}.pool.solr.{part}.encoded",)


INSURANCEQA_V2 = DataSet(
    name="insuranceqa_v2",
    help=f"The folder V2 of InsuranceQA: {VOCABULARY}; {ANSWERS}; {_name_files('dev')[0]} and "
    f"{_name_files('test')[0]}, which have pools of 500 answers; {_name_files('train')[0]}, with pools of 100 "
    "and the right answers.",
    file_names=_name_files,
    read=read_insuranceqa_v2,
    paper_counts={
        ("train", NO_ALL_NEGATIVE): (PaperCount(MULTICQA, 12_889),),
        ("dev", NO_ALL_NEGATIVE): (PaperCount(MULTICQA, 1592),),
        ("test", NO_ALL_NEGATIVE): (PaperCount(MULTICQA, 1625),),
    },
    accuracy=True,
    measured_on=NO_ALL_NEGATIVE,
)
