"""Questions with their labelled candidate answers, as every data set is held here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from data_pipeline.errors import KinspanError

RAW, NO_ALL_NEGATIVE, CLEAN = FILTERS = ("raw", "no-all-negative", "clean")


@dataclass(frozen=True)
class AnswerSet:
    """One split of a data set of answer sentence selection.

    The candidates of question q are the rows ``starts[q]`` to ``starts[q + 1]``, in the order of the file.

    name:         of the data set, such as "wikiqa"
    split:        "train", "dev" or "test"
    question_ids: ``[Q]``, each once
    questions:    ``[Q]`` texts
    starts:       ``[Q + 1]`` int64
    answer_ids:   ``[N]`` large_string; each once within a question
    answers:      ``[N]`` large_string
    labels:       ``[N]`` int8, 1 where the candidate answers the question, else 0
    grades:       ``[N]`` int8, ASNQ's own labels 1 to 4; None elsewhere
    """

    name: str
    split: str
    question_ids: Sequence[str]
    questions: Sequence[str]
    starts: np.ndarray
    answer_ids: pa.LargeStringArray
    answers: pa.LargeStringArray
    labels: np.ndarray
    grades: np.ndarray | None = None

    @property
    def num_questions(self) -> int:
        return len(self.questions)

    @property
    def num_pairs(self) -> int:
        return len(self.labels)

    @property
    def question_of(self) -> np.ndarray:
        """``[N]``: the question of each row."""
        return np.repeat(np.arange(self.num_questions), np.diff(self.starts))

    def rows(self) -> Iterator[slice]:
        """Of each question, its rows."""
        for first, end in pairwise(self.starts.tolist()):
            yield slice(first, end)

    @property
    def positives(self) -> np.ndarray:
        """``[Q]``: candidates of each question that answer it."""
        return np.bincount(self.question_of, weights=self.labels, minlength=self.num_questions).astype(np.int64)

    def take(self, questions: np.ndarray) -> "AnswerSet":
        """The questions of these numbers (or of this mask), in this order, whole."""
        numbers = np.arange(self.num_questions)[questions]
        sizes = np.diff(self.starts)[numbers]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        rows = np.arange(starts[-1]) + np.repeat(self.starts[numbers] - starts[:-1], sizes)
        return replace(
            self._rows(rows),
            question_ids=[self.question_ids[n] for n in numbers],
            questions=[self.questions[n] for n in numbers],
            starts=starts,
        )

    def keep(self, rows: np.ndarray) -> "AnswerSet":
        """The candidates of this mask ``[N]``; a question that has none left goes."""
        sizes = np.bincount(self.question_of[rows], minlength=self.num_questions)
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return replace(self._rows(np.flatnonzero(rows)), starts=starts).take(sizes > 0)

    def _rows(self, rows: np.ndarray) -> "AnswerSet":
        """Those rows; ``starts`` is the caller's to set."""
        return replace(
            self,
            answer_ids=self.answer_ids.take(pa.array(rows)),
            answers=self.answers.take(pa.array(rows)),
            labels=self.labels[rows],
            grades=None if self.grades is None else self.grades[rows],
        )


def filtered(data: AnswerSet, mode: str) -> AnswerSet:
    """The questions that ``mode`` leaves (Garg et al., 2020, "TandA", table 2).

    raw: all; no-all-negative: those with an answer; clean: those with an answer and with a candidate that is none

    Raises KinspanError where none is left.
    """
    positives, sizes = data.positives, np.diff(data.starts)
    keep = np.ones(data.num_questions, dtype=bool)
    if mode != RAW:
        keep &= positives > 0
    if mode == CLEAN:
        keep &= positives < sizes
    if not keep.any():
        raise KinspanError(f"{data.name} {data.split}: the filter {mode} leaves none of {data.num_questions} questions")
    return data if keep.all() else data.take(keep)
