"""The questions of TransTQA (Yu et al., 2020, "A Technical Question Answering System with Transfer Learning").

The target is TechQA, where each question looks for its answer among all that there are. The source is what users of
another community asked, each question with the answer that it accepted.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.errors import KinspanError
from data_pipeline.prepare.encode import normalise
from data_pipeline.prepare.readers.compression import open_decompressed

from .answers import AnswerSet
from .collect import SourceRow, collect_answers
from .dataset import DataSet, MissingSplit, explain_missing, find_files
from .techqa import TECHQA, read_answerable

HELD_OUT = 5  # every fifth training question, in the order of a hash of its id, is of dev
PAIRS = ("askubuntu-train_Q_A.raw", "askubuntu-dev_Q_A.raw")


@dataclass(frozen=True)
class PooledTechQA(DataSet):
    """TechQA with one pool: its dev split is a fifth of the training questions, and its test split the file of dev."""

    def load(self, folder: Path, split: str, negative_grades: tuple[int, ...]) -> tuple[AnswerSet, list[str]]:
        """Reads a split, see ``registry.load_split``."""
        found = {}
        for part in ("train", "dev"):
            names = TECHQA.file_names(part)
            paths = find_files(folder, names)
            if not paths:
                raise MissingSplit(f"{self.name}={folder}: no split {split}: {explain_missing(folder, names)}")
            found[part] = list(read_answerable(paths[0]))
        file = find_files(folder, TECHQA.file_names("dev" if split == "test" else "train"))[0]
        rows = pool_questions(found["train"], found["dev"], split)
        return collect_answers(self.name, split, f"{file} line", rows)


def pool_questions(train: list[SourceRow], dev: list[SourceRow], split: str) -> Iterator[SourceRow]:
    """Yields the questions of a split with their candidates: all distinct answers of both files; in training the right
    one alone, since the other answers of the batch are what it is compared with.

    train, dev: each question with its right answer, as the files have them
    """
    if split == "test":
        asked = dev
    else:
        order = sorted(train, key=lambda row: hashlib.sha256(str(row.question_id).encode()).digest())
        held_out = {row.question_id for row in order[::HELD_OUT]}
        asked = [row for row in train if (row.question_id in held_out) == (split == "dev")]
    pool = {row.answer: row.answer_id for row in [*train, *dev]}
    for row in asked:
        if split == "train":
            yield row
            continue
        for text, name in pool.items():
            yield row._replace(answer_id=name, answer=text, label=int(text == row.answer))


def read_pairs(path: Path) -> Iterator[SourceRow]:
    """Yields the lines of a file of questions and their accepted answers, a tab between them.

    Raises KinspanError, naming the line, for one that has not two texts.
    """
    for number, line in enumerate(_read_lines(path), 1):
        texts = [normalise(text) for text in line.split("\t")]
        if len(texts) != 2 or not all(texts):
            raise KinspanError(f"{path} line {number}: not a question, a tab and its answer")
        yield SourceRow(number, None, texts[0], None, texts[1], 1)


def _read_lines(path: Path) -> Iterable[str]:
    try:
        with open_decompressed(path) as file:
            return file.read().decode().splitlines()
    except (OSError, EOFError, ValueError) as error:
        raise KinspanError(f"{path} cannot be read: {error}") from error


TECHQA_POOL = PooledTechQA(
    name="techqa_pool",
    help="The files of techqa=, as Yu et al., 2020, search them: the candidates are all distinct answers of both "
    "files, dev is a fifth of the training questions, and test is the file of dev. Training questions have their "
    "answers alone: they are for --loss contrastive.",
    file_names=TECHQA.file_names,
    read=TECHQA.read,
)
ASKUBUNTU_QA = DataSet(
    name="askubuntu_qa",
    help="askubuntu-train_Q_A.raw, or else askubuntu-dev_Q_A.raw, of the same paper: lines of a question, a tab and "
    "its accepted answer, all of which are the split train. There is no other one.",
    file_names=lambda split: PAIRS if split == "train" else (),
    read=read_pairs,
)
