"""Questions with their labelled candidate answers: the form in which every data set is held in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, starmap

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from data_pipeline.matching import fold_characters

# ASNQ's labels. 4: the sentence is in the long answer and holds the short answer, which makes it the right one
POSITIVE_GRADE, NEGATIVE_GRADES = 4, (1, 2, 3)


@dataclass(frozen=True)
class AnswerSet:
    """One split of a data set of answer sentence selection, with Q questions and N candidates.

    The candidates of question q are the rows ``starts[q]`` to ``starts[q + 1]``, in the order of the file.

    question_ids: ``[Q]`` distinct
    starts:       ``[Q + 1]`` int64
    answer_ids:   ``[N]`` large_string, distinct within a question
    answers:      ``[N]`` large_string
    labels:       ``[N]`` int8, 1 where the candidate answers the question, else 0
    """

    name: str
    split: str
    question_ids: Sequence[str]
    questions: Sequence[str]
    starts: np.ndarray
    answer_ids: pa.LargeStringArray
    answers: pa.LargeStringArray
    labels: np.ndarray

    @property
    def num_questions(self) -> int:
        return len(self.questions)

    @property
    def num_pairs(self) -> int:
        return len(self.labels)

    @property
    def question_of(self) -> np.ndarray:
        """Returns ``[N]``: the index of the question that each row belongs to."""
        return np.repeat(np.arange(self.num_questions), np.diff(self.starts))

    def question_slices(self) -> Iterator[slice]:
        """Yields the rows of each question as a slice."""
        return starmap(slice, pairwise(self.starts.tolist()))

    @property
    def positives(self) -> np.ndarray:
        """Returns ``[Q]``: how many candidates of each question answer it."""
        return np.bincount(self.question_of, weights=self.labels, minlength=self.num_questions).astype(np.int64)

    @cached_property
    def distinct(self) -> "Distinct":
        """Returns the distinct candidates, and what is right and wrong by their texts."""
        encoded = self.answers.dictionary_encode()  # InsuranceQA's 27,000 answers occur in millions of pairs
        which = _number_texts(encoded.dictionary)[encoded.indices.to_numpy()]
        rows = np.unique(which, return_index=True)[1]
        groups = _number_texts(pa.array(self.questions, pa.large_string()))
        codes = len(rows) * groups[self.question_of] + which
        right = np.unique(codes[self.labels == 1])
        return Distinct(rows, which, (self.labels == 0) & ~np.isin(codes, right), groups, right)

    def take(self, questions: np.ndarray) -> "AnswerSet":
        """Returns these questions (indices, or a mask ``[Q]``) with all their candidates, in the given order."""
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
        """Returns the candidates of this mask ``[N]``; questions that have none left are dropped."""
        sizes = np.bincount(self.question_of[rows], minlength=self.num_questions)
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return replace(self._take_rows(np.flatnonzero(rows)), starts=starts).take(sizes > 0)

    def _take_rows(self, rows: np.ndarray) -> "AnswerSet":
        """Returns these rows of every column; the caller sets ``starts``."""
        return replace(
            self,
            answer_ids=self.answer_ids.take(pa.array(rows)),
            answers=self.answers.take(pa.array(rows)),
            labels=self.labels[rows],
        )


@dataclass(frozen=True)
class Distinct:
    """The D distinct candidates of an AnswerSet, by their folded texts, in the order of their first rows.

    A candidate is right for a question if it has the label 1 there, or at a question of the same folded text: two ids
    may ask the same, and two candidates say the same.

    rows:   ``[D]`` the first row of each distinct candidate
    which:  ``[N]`` the distinct candidate of each row
    wrong:  ``[N]`` bool, the rows with the label 0 whose candidate is not right for their question
    groups: ``[Q]`` the number of each question's distinct text
    right:  ``D * group + candidate`` of all that are right, ascending
    """

    rows: np.ndarray
    which: np.ndarray
    wrong: np.ndarray
    groups: np.ndarray
    right: np.ndarray

    def find_right(self, question: int) -> np.ndarray:
        """Returns the distinct candidates that are right for the question of this index, ascending."""
        first = len(self.rows) * int(self.groups[question])
        begin, end = np.searchsorted(self.right, [first, first + len(self.rows)])
        return self.right[begin:end] - first


def concatenate(sets: Sequence[AnswerSet]) -> AnswerSet:
    """Returns the questions of all splits as one; an id that is in two splits gets the split's name."""
    taken: set[str] = set()
    ids: list[str] = []
    for data in sets:
        ids += [f"{data.split} {name}" if name in taken else name for name in data.question_ids]
        taken |= set(data.question_ids)
    sizes = np.concatenate([np.diff(data.starts) for data in sets])
    return replace(
        sets[0],
        question_ids=ids,
        questions=[text for data in sets for text in data.questions],
        starts=np.append(0, np.cumsum(sizes)).astype(np.int64),
        answer_ids=pa.concat_arrays([data.answer_ids for data in sets]),
        answers=pa.concat_arrays([data.answers for data in sets]),
        labels=np.concatenate([data.labels for data in sets]),
    )


def _number_texts(texts: pa.LargeStringArray) -> np.ndarray:
    """Returns a number per text, ``[T]``, equal if the folded texts are, from 0 in the order of first occurrence."""
    chunks = (texts.slice(first, 10_000).to_pylist() for first in range(0, len(texts), 10_000))
    folded = (xxh3_64_intdigest(fold_text(text).encode("utf-8", "surrogatepass")) for chunk in chunks for text in chunk)
    hashes = pa.array(np.fromiter(folded, np.uint64, len(texts)))
    return hashes.dictionary_encode().indices.to_numpy().astype(np.int64)


def fold_text(text: str) -> str:
    """Returns the text without case, invisible characters and more than single spaces: equal ones are the same text."""
    return " ".join(fold_characters(text).casefold().split())


def number_pairs(data: AnswerSet, questions: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns numbers, from N on, of the pairs of these questions with these rows, which may be another question's."""
    return (1 + questions.astype(np.int64)) * data.num_pairs + rows


def resolve_pairs(pairs: np.ndarray, question_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the question and the candidate's row of each pair; pairs: rows, or from ``number_pairs``."""
    number, rows = np.divmod(pairs, len(question_of))
    return np.where(number, number - 1, question_of[rows]), rows
