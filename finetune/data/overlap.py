"""How much the splits of an experiment share: what is trained on must not be measured on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pyarrow as pa

from data_pipeline.errors import KinspanError

from .answers import AnswerSet, fold_text


@dataclass(frozen=True)
class Overlap:
    """What two splits share.

    questions: how many questions, by text
    pairs:     how many pairs of a question and a candidate, by their texts
    whole:     whether all pairs of one of the two stand in the other
    """

    first: AnswerSet
    second: AnswerSet
    questions: int
    pairs: int
    whole: bool

    def describe(self) -> str:
        """Says it in one line."""
        return (
            f"{_name(self.first)} and {_name(self.second)} share {self.questions:,} of "
            f"{self.first.num_questions:,} and {self.second.num_questions:,} questions, and {self.pairs:,} of "
            f"{self.first.num_pairs:,} and {self.second.num_pairs:,} question-candidate pairs"
        )


def find_overlaps(splits: Sequence[AnswerSet]) -> list[Overlap]:
    """Returns what each two of these splits share, where they share any question.

    Texts are the same if they differ in nothing but case and white space.
    """
    numbers = [_number_questions(data) for data in splits]
    found = []
    for (one, of_one), (other, of_other) in combinations(zip(splits, numbers, strict=True), 2):
        shared = of_one.keys() & of_other.keys()
        if not shared:
            continue
        ours, theirs = _read_pairs(one, of_one, shared), _read_pairs(other, of_other, shared)
        whole = (len(shared) == len(of_one) and ours <= theirs) or (len(shared) == len(of_other) and theirs <= ours)
        found.append(Overlap(one, other, len(shared), len(ours & theirs), whole))
    return found


def check_overlaps(splits: Sequence[AnswerSet], allow_identical: bool) -> list[str]:
    """Returns a note of one line for each two splits that share questions, or one that none do.

    Raises KinspanError where one of two splits is a part of the other, unless ``allow_identical``.
    """
    overlaps = find_overlaps(splits)
    for overlap in overlaps:
        if overlap.whole and not allow_identical:
            raise KinspanError(
                f"{overlap.describe()}: one is a part of the other, so what is measured would mean nothing; give other "
                "data, or --allow_identical_splits"
            )
    return [overlap.describe() for overlap in overlaps] or ["the splits share no question"]


def find_unseen(data: AnswerSet, others: Sequence[AnswerSet]) -> np.ndarray:
    """Tells which questions have no right answer that is also right for a question of ``others``, ``[Q]`` bool.

    Texts are the same if they differ in nothing but case and white space.
    """
    known = {
        fold_text(text)
        for other in others
        for text in other.answers.take(pa.array(np.flatnonzero(other.labels))).to_pylist()
    }
    right = np.flatnonzero(data.labels)
    seen = [fold_text(text) in known for text in data.answers.take(pa.array(right)).to_pylist()]
    return np.bincount(data.question_of[right], weights=seen, minlength=data.num_questions) == 0


def _name(data: AnswerSet) -> str:
    return f"{data.name} {data.split}"


def _number_questions(data: AnswerSet) -> dict[str, list[int]]:
    """Returns the numbers of the questions by text; two ids may have one text."""
    numbers: dict[str, list[int]] = {}
    for number, question in enumerate(data.questions):
        numbers.setdefault(fold_text(question), []).append(number)
    return numbers


def _read_pairs(data: AnswerSet, numbers: dict[str, list[int]], questions: set[str]) -> set[tuple[str, str]]:
    """Returns the pairs of these questions; only their candidates are read."""

    def read_candidates(question: str) -> Iterator[str]:
        for number in numbers[question]:
            first, end = int(data.starts[number]), int(data.starts[number + 1])
            yield from data.answers.slice(first, end - first).to_pylist()

    return {(question, fold_text(answer)) for question in questions for answer in read_candidates(question)}
