"""How much the splits of an experiment share: what is trained on must not be measured on."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from data_pipeline.core.errors import KinspanError

from .answers import AnswerSet, fold_text


@dataclass(frozen=True)
class Overlap:
    """How many questions, and pairs of question and candidate, two splits share, and whether one is in the other."""

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
    """Returns what each two of these splits share, by folded texts, where they share any question."""
    asked = [list(map(fold_text, data.questions)) for data in splits]  # two ids may have one text
    overlaps = []
    for (first, of_first), (second, of_second) in combinations(zip(splits, asked, strict=True), 2):
        shared = set(of_first) & set(of_second)
        if not shared:
            continue
        pairs = _read_pairs(first, of_first, shared), _read_pairs(second, of_second, shared)
        whole = (shared == set(of_first) and pairs[0] <= pairs[1]) or (
            shared == set(of_second) and pairs[1] <= pairs[0]
        )
        overlaps.append(Overlap(first, second, len(shared), len(pairs[0] & pairs[1]), whole))
    return overlaps


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


def _name(data: AnswerSet) -> str:
    return f"{data.name} {data.split}"


def _read_pairs(data: AnswerSet, asked: list[str], shared: set[str]) -> set[tuple[str, str]]:
    """Returns the pairs of the shared questions; only their candidates are read."""
    found = (
        (question, rows) for question, rows in zip(asked, data.question_slices(), strict=True) if question in shared
    )
    return {(question, fold_text(text)) for question, rows in found for text in data.answers[rows].to_pylist()}
