"""Questions with their labelled candidate answers: the form in which every data set is held in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

# ASNQ's labels. 4: the sentence is in the long answer and holds the short answer, which makes it the right one
POSITIVE_GRADE, NEGATIVE_GRADES = 4, (1, 2, 3)


@dataclass(frozen=True)
class AnswerSet:
    """One split of a data set of answer sentence selection, with Q questions and N candidates.

    The candidates of question q are the rows ``starts[q]`` to ``starts[q + 1]``, in the order of the file. The fields
    that default to None are optional columns: a data set whose source lacks one does not hold it, and pays nothing.

    name:         the data set's name, such as "wikiqa"
    split:        "train", "dev" or "test"
    question_ids: ``[Q]`` distinct
    questions:    ``[Q]`` texts
    starts:       ``[Q + 1]`` int64
    answer_ids:   ``[N]`` large_string, distinct within a question
    answers:      ``[N]`` large_string
    labels:       ``[N]`` int8, 1 where the candidate answers the question, else 0
    grades:       ``[N]`` int8, ASNQ's own labels 1 to 4
    document_ids: ``[N]`` large_string, the document that the candidate was taken from; "" where it is not known
    positions:    ``[N]`` int32, the candidate's place among the sentences of its document, from 0; -1 where not known
    titles:       ``[N]`` large_string, the title of that document; "" where it is not known
    contexts:     ``[N]`` large_string, the text around the candidate; "" where it is not known
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
    document_ids: pa.LargeStringArray | None = None
    positions: np.ndarray | None = None
    titles: pa.LargeStringArray | None = None
    contexts: pa.LargeStringArray | None = None

    @property
    def num_questions(self) -> int:
        return len(self.questions)

    @property
    def num_pairs(self) -> int:
        return len(self.labels)

    @property
    def question_of(self) -> np.ndarray:
        """``[N]``: the number of the question that each row belongs to."""
        return np.repeat(np.arange(self.num_questions), np.diff(self.starts))

    def rows(self) -> Iterator[slice]:
        """Yields the rows of each question as a slice."""
        for first, end in pairwise(self.starts.tolist()):
            yield slice(first, end)

    @property
    def positives(self) -> np.ndarray:
        """``[Q]``: how many candidates of each question answer it."""
        return np.bincount(self.question_of, weights=self.labels, minlength=self.num_questions).astype(np.int64)

    def take(self, questions: np.ndarray) -> "AnswerSet":
        """Returns these questions (numbers, or a mask ``[Q]``) with all their candidates, in the given order."""
        numbers = np.arange(self.num_questions)[questions]
        sizes = np.diff(self.starts)[numbers]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        rows = np.arange(starts[-1]) + np.repeat(self.starts[numbers] - starts[:-1], sizes)
        return replace(
            self._take_rows(rows),
            question_ids=[self.question_ids[n] for n in numbers],
            questions=[self.questions[n] for n in numbers],
            starts=starts,
        )

    def keep(self, rows: np.ndarray) -> "AnswerSet":
        """Returns the candidates of this mask ``[N]``; a question that has none left is dropped."""
        sizes = np.bincount(self.question_of[rows], minlength=self.num_questions)
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return replace(self._take_rows(np.flatnonzero(rows)), starts=starts).take(sizes > 0)

    def _take_rows(self, rows: np.ndarray) -> "AnswerSet":
        """Returns these rows of every column; the caller sets ``starts``."""
        return replace(self, **{name: take_rows(getattr(self, name), rows) for name in COLUMNS})


def number_pairs(data: AnswerSet, questions: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Numbers of the pairs of these questions with the candidates of these rows, which may be another question's.

    They begin at N, behind the rows themselves, which are the numbers of questions with their own candidates.
    """
    return data.num_pairs + questions.astype(np.int64) * data.num_pairs + rows


def resolve_pairs(pairs: np.ndarray, question_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The question of each pair, and the row of its candidate, for pairs that are rows or of ``number_pairs``."""
    size = len(question_of)
    beyond = pairs >= size
    rows = np.where(beyond, (pairs - size) % size, pairs)
    return np.where(beyond, (pairs - size) // size, question_of[rows]), rows


# The fields of an AnswerSet that have a value for each candidate
OPTIONAL_COLUMNS = ("document_ids", "positions", "titles", "contexts")
COLUMNS = ("answer_ids", "answers", "labels", "grades", *OPTIONAL_COLUMNS)


def take_rows(column: Any, rows: np.ndarray) -> Any:
    """Returns these rows of a column, which is a NumPy or Arrow array; None stays None."""
    if column is None:
        return None
    return column[rows] if isinstance(column, np.ndarray) else column.take(pa.array(rows))
