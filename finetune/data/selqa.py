"""SelQA (Jurczyk et al., 2016), answer sentence selection: the sentences of a section of Wikipedia per question.

The published dev and test files share most of their articles, so a ranker that is trained on one has seen the text of
the other. Here all questions of the existing files are split anew, by article.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from .answers import AnswerSet
from .collect import SourceRow, collect_answers
from .dataset import DataSet, find_files, find_split
from .tables import check_fields, read_json

FILES = tuple(f"selqa-ass-{split}.json" for split in ("train", "dev", "test"))
PERCENT_TRAIN, PERCENT_DEV = 40, 10  # of the articles; the others are test


def read_selqa(path: Path, split: str | None = None) -> Iterator[SourceRow]:
    """Yields each question's candidates; ``split``: only of articles in this split.

    Questions have no ids, and two have the same text, so an id is the file's split and the question's number there.
    """
    published = path.name.removeprefix("selqa-ass-").partition(".")[0]
    for number, record in enumerate(read_json(path, list), 1):
        place, name = f"{path} question {number}", f"{published}-{number}"
        check_fields(record, place, str, "question", "article", "section")
        check_fields(record, place, list, "candidates", "answers")
        candidates, answers = record["candidates"], record["answers"]
        if not all(answer in range(len(candidates)) for answer in answers):
            raise KinspanError(f"{place}: answers {answers} are not numbers of candidates")
        if split not in (None, choose_split(normalise(record["article"]))):
            continue
        for position, text in enumerate(candidates):
            if not isinstance(text, str):
                raise KinspanError(f"{place}: candidate {position} is not text: {text!r}")
            yield SourceRow(number, name, record["question"], None, normalise(text), int(position in answers))


def choose_split(article: str) -> str:
    """Returns the split of all questions about an article: "train", "dev" or "test"."""
    percent = int(hashlib.sha256(article.encode()).hexdigest(), 16) % 100
    if percent < PERCENT_TRAIN:
        return "train"
    return "dev" if percent < PERCENT_TRAIN + PERCENT_DEV else "test"


@dataclass(frozen=True)
class SplitByArticle(DataSet):
    """SelQA, whose splits are made of all of its files."""

    def load(self, folder: Path, split: str, negative_grades: tuple[int, ...]) -> AnswerSet:
        """Reads a split, see ``registry.load_split``."""
        find_split(f"{self.name}={folder}", folder, split, FILES)  # raises if there is none
        paths = [files[0] for name in FILES if (files := find_files(folder, [name]))]  # not its compressed copy too
        rows = (row for path in paths for row in read_selqa(path, split))
        return collect_answers(self.name, split, f"{folder} question", rows)


SELQA = SplitByArticle(
    name="selqa",
    help="selqa-ass-dev.json and selqa-ass-test.json, as distributed, and selqa-ass-train.json if you have it. The "
    "published splits share articles, so all questions are split by article: 40% train, 10% dev, the rest test.",
    file_names=lambda split: FILES,
    read=read_selqa,
)
