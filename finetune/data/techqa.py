"""TechQA (Castelli et al., 2020): questions to IBM's support, answered by passages of its technical notes.

The files have the answers, but not the notes. So a question's candidates are all distinct answers of its split, or of
both splits (see PooledTechQA), for the retrieval of Yu et al., 2020, "A Technical Question Answering System with
Transfer Learning" (TransTQA), which first trains on AskUbuntu's questions with accepted answers: ``askubuntu_qa``.
"""

import hashlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from .answers import AnswerSet
from .collect import LeftOut, SourceRow, collect_answers
from .dataset import DataSet, find_split
from .tables import check_fields, read_fields, read_json

SPLITS = {"train": "training_Q_A.json", "dev": "dev_Q_A.json", "test": "test_Q_A.json"}
FIELDS = ("QUESTION_ID", "QUESTION_TITLE", "QUESTION_TEXT", "ANSWER", "ANSWERABLE")
HELD_OUT = 5  # in techqa_pool, dev is every fifth training question, in the order of a hash of its id
ASKUBUNTU_FILES = ("askubuntu-train_Q_A.raw", "askubuntu-dev_Q_A.raw")


def read_techqa(path: Path) -> Iterator[SourceRow | LeftOut]:
    """Yields each answerable question with every distinct answer of the file; only its own answer has label 1."""
    questions, left_out = read_answerable(path)
    return chain(left_out, _add_candidates(questions, questions))


def _add_candidates(asked: list[SourceRow], answered: list[SourceRow]) -> Iterator[SourceRow]:
    """Yields each question of ``asked`` with every distinct answer to ``answered``."""
    pool = {row.answer: row.answer_id for row in answered}
    for row in asked:
        for text, name in pool.items():
            yield row._replace(answer_id=name, answer=text, label=int(text == row.answer))


def read_answerable(path: Path) -> tuple[list[SourceRow], list[LeftOut]]:
    """Returns each answerable question with its own answer, and the questions that are left out.

    An answer's id is a hash of its text, so that the same answer has the same id in all splits. Raises KinspanError for
    a file that is not a list of questions.
    """
    questions, left_out = [], []
    for number, record in enumerate(read_json(path, list), 1):
        check_fields(record, f"{path} question {number}", str, *FIELDS)
        if record["ANSWERABLE"] != "Y":
            left_out.append(LeftOut("questions that are not answerable"))
        elif right := normalise(record["ANSWER"]):
            name = hashlib.blake2b(right.encode(), digest_size=6).hexdigest()
            question = f"{record['QUESTION_TITLE']} {record['QUESTION_TEXT']}"
            questions.append(SourceRow(number, record["QUESTION_ID"], question, name, right, 1))
        else:
            left_out.append(LeftOut("answerable questions without the text of an answer"))
    return questions, left_out


TECHQA = DataSet(
    name="techqa",
    help="training_Q_A.json, dev_Q_A.json and, if you have it, a labelled test_Q_A.json (not distributed); also with "
    "the prefix techqa-. The candidates of an answerable question are all distinct answers of its split.",
    file_names=lambda split: (SPLITS[split], f"techqa-{SPLITS[split]}"),
    read=read_techqa,
    unit="question",
)


class PooledTechQA(DataSet):
    """TechQA with one pool of answers: dev is a fifth of the training questions, and test is the dev file."""

    def load(self, folder: Path, split: str, negative_grades: tuple[int, ...]) -> AnswerSet:
        """Reads a split, see ``registry.load_split``."""
        place, source = f"{self.name}={folder}", "dev" if split == "test" else "train"
        paths = {part: find_split(place, folder, split, TECHQA.file_names(part)) for part in ("train", "dev")}
        (train, train_left_out), (dev, dev_left_out) = map(read_answerable, paths.values())
        left_out, asked = dev_left_out if split == "test" else train_left_out, pool_questions(train, dev, split)
        return collect_answers(self.name, split, f"{paths[source]} question", chain(left_out, asked))


def pool_questions(train: list[SourceRow], dev: list[SourceRow], split: str) -> Iterator[SourceRow]:
    """Yields the questions of a split with every distinct answer of both files; in training only with the right one,
    because the contrastive loss takes the other answers of a batch as negatives."""
    if split == "test":
        asked = dev
    else:
        order = sorted(train, key=lambda row: hashlib.sha256(str(row.question_id).encode()).digest())
        held_out = {row.question_id for row in order[::HELD_OUT]}
        asked = [row for row in train if (row.question_id in held_out) == (split == "dev")]
    return iter(asked) if split == "train" else _add_candidates(asked, [*train, *dev])


def read_pairs(path: Path) -> Iterator[SourceRow]:
    """Yields the questions and accepted answers of a file, which are separated by a tab."""
    for number, fields in read_fields(path, "question", "answer"):
        question, answer = map(normalise, fields)
        if not question or not answer:
            raise KinspanError(f"{path} line {number}: the question or its answer is empty")
        yield SourceRow(number, None, question, None, answer, 1)


TECHQA_POOL = PooledTechQA(
    name="techqa_pool",
    help="The files of techqa=: the candidates are all distinct answers of both "
    "files, dev is a fifth of the training questions, and test is the dev file. Training questions have only their "
    "right answers, for --loss contrastive.",
    file_names=TECHQA.file_names,
    read=TECHQA.read,
)
ASKUBUNTU_QA = DataSet(
    name="askubuntu_qa",
    help="askubuntu-train_Q_A.raw, or else askubuntu-dev_Q_A.raw, of Yu et al., 2020. Each line has a question, a tab "
    "and its accepted answer. There is only a train split.",
    file_names=lambda split: ASKUBUNTU_FILES if split == "train" else (),
    read=read_pairs,
)
