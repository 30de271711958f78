"""SelQA (Jurczyk et al., 2016): answer sentence selection among the sentences of a Wikipedia section.

The published dev and test files share most of their articles, so a ranker that is trained on one has seen the text of
the other. Here all questions of the existing files are split anew, by article.
"""

import hashlib
from collections.abc import Iterator
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
    """Yields the candidates of all questions, or of those about articles that ``choose_split`` puts into ``split``.

    Questions have no ids, and two have the same text, so an id is the file's part, such as "dev", and the number there.
    """
    part = path.name.removeprefix("selqa-ass-").partition(".")[0]
    for number, record in enumerate(read_json(path, list), 1):
        place, question_id = f"{path} question {number}", f"{part}-{number}"
        check_fields(record, place, str, "question", "article", "section")
        check_fields(record, place, list, "candidates", "answers")
        question, candidates, answers = record["question"], record["candidates"], record["answers"]
        if not all(answer in range(len(candidates)) for answer in answers):
            raise KinspanError(f"{place}: answers {answers} are not indices of candidates")
        if split and split != choose_split(normalise(record["article"])):
            continue
        for index, text in enumerate(candidates):
            if not isinstance(text, str):
                raise KinspanError(f"{place}: candidate {index} is not text: {text!r}")
            label = int(index in answers)
            yield SourceRow(number, question_id, question, answer_id=None, answer=normalise(text), label=label)


def choose_split(article: str) -> str:
    """Returns the split of all questions about an article: "train", "dev" or "test"."""
    percent = int(hashlib.sha256(article.encode()).hexdigest(), 16) % 100
    if percent < PERCENT_TRAIN:
        return "train"
    return "dev" if percent < PERCENT_TRAIN + PERCENT_DEV else "test"


class SplitByArticle(DataSet):
    """SelQA, whose splits are made of all of its files."""

    def load(self, folder: Path, split: str, negative_grades: tuple[int, ...]) -> AnswerSet:
        """Reads a split, see ``registry.load_split``."""
        find_split(f"{self.name}={folder}", folder, split, FILES)  # raises if no file is there
        paths = [files[0] for name in FILES if (files := find_files(folder, [name]))]  # plain or compressed, not both
        rows = (row for path in paths for row in read_selqa(path, split))
        return collect_answers(self.name, split, f"{folder} question", rows)


SELQA = SplitByArticle(
    name="selqa",
    help="selqa-ass-dev.json and selqa-ass-test.json, as distributed, and selqa-ass-train.json if you have it. The "
    "published splits share articles, so all questions are split by article: 40% train, 10% dev, the rest test.",
    file_names=lambda split: FILES,
    read=read_selqa,
)
