"""Gathers the rows of a file into an AnswerSet as they stream in.

20 million rows cost the bytes of their texts and about 100 bytes each.
"""

import zlib
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.document import Rejected
from data_pipeline.prepare.encode import normalise

from .answers import POSITIVE_GRADE, AnswerSet, take_rows

MANY = 20  # questions: with fewer, right answers may have the highest ids by chance
SUSPICIOUS = 0.9  # share of questions in which they have
ID_ORDER = (
    "right answers have the {extreme} ids in {count:,} of {mixed:,} questions, and equal scores are ranked by falling "
    "id, as trec_eval does: a ranker with many equal scores looks {effect} than it is; leave the ids out, or number "
    "the candidates at random"
)


class SourceRow(NamedTuple):
    """One candidate, or a question alone, as a reader finds it in a file.

    answer:      with its white space folded; None for a question alone, which may have no candidate
    label:       0 or 1, or ASNQ's grade

    A file either has ids or does not: a reader gives None in all rows, or in none.
    """

    line: int
    question_id: str | None
    question: str
    answer_id: str | None
    answer: str | None
    label: int


class LeftOut(NamedTuple):
    """Something that a reader leaves out, and why, in words that a count can follow."""

    line: int
    reason: str


class TextBuffer:
    """Strings that are appended one at a time to the buffers of one Arrow array, so that the end copies nothing."""

    def __init__(self) -> None:
        self.bytes, self.ends = bytearray(), array("q", [0])

    def append(self, text: str) -> None:
        self.bytes += text.encode()
        self.ends.append(len(self.bytes))

    def finish(self) -> pa.LargeStringArray:
        buffers = pa.py_buffer(self.ends), pa.py_buffer(self.bytes)
        return pa.LargeStringArray.from_buffers(len(self.ends) - 1, *buffers)


class Questions:
    """Questions in the order of first appearance, told apart by id, or by text where the file has no ids."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.mended_ids = 0
        self._numbers: dict[str, int] = {}
        self._last: tuple[str | None, str, int] = (None, "", -1)

    def find_number(self, question_id: str | None, question: str) -> int:
        """Returns the number of this question; a new one gets the next number. Raises Rejected."""
        last_id, last_question, number = self._last
        if question == last_question and question_id == last_id and number >= 0:
            return number
        text = normalise(question)
        key = text if question_id is None else "_".join(question_id.split())
        if not text:
            raise Rejected("the question is empty")
        if not key:
            raise Rejected("the question id is empty")
        number = self._numbers.setdefault(key, len(self.ids))
        if number == len(self.ids):
            self.ids.append(f"q{number + 1}" if question_id is None else key)
            self.texts.append(text)
            self.mended_ids += question_id is not None and key != question_id
        elif self.texts[number] != text:
            raise Rejected(f"question id {key!r} has another text here ({text!r}) than before ({self.texts[number]!r})")
        self._last = question_id, question, number
        return number


@dataclass
class Candidates:
    """What is gathered of N candidates, in the order of the file.

    digest:   hash of the answer's text
    columns:  texts by the field of SourceRow; AnswerSet names them in the plural
    left_out: how many candidates were left out, by grade
    """

    question: array = field(default_factory=lambda: array("i"))
    label: array = field(default_factory=lambda: array("b"))
    line: array = field(default_factory=lambda: array("q"))
    digest: array = field(default_factory=lambda: array("q"))
    columns: dict[str, TextBuffer] = field(default_factory=dict)
    mended_ids: int = 0
    left_out: Counter[int] = field(default_factory=Counter)

    def append(self, number: int, row: SourceRow) -> None:
        """Adds a candidate of the question ``number``. Raises Rejected for an id that is empty."""
        if not self.label:
            names = ("answer",) if row.answer_id is None else ("answer_id", "answer")
            self.columns = {name: TextBuffer() for name in names}
        if row.answer_id is not None:
            cleaned = "_".join(row.answer_id.split())
            if not cleaned:
                raise Rejected("the answer id is empty")
            self.mended_ids += cleaned != row.answer_id
            row = row._replace(answer_id=cleaned)
        self.question.append(number)
        self.label.append(row.label)
        self.line.append(row.line)
        self.digest.append(hash(row.answer))
        for name, buffer in self.columns.items():
            buffer.append(getattr(row, name))

    def finish(self) -> dict[str, Any]:
        return {f"{name}s": buffer.finish() for name, buffer in self.columns.items()}


def collect_answers(
    name: str,
    split: str,
    place: str,
    rows: Iterator[SourceRow] | Iterator[SourceRow | LeftOut],
    negative_grades: tuple[int, ...] | None = None,
) -> tuple[AnswerSet, list[str]]:
    """Returns the rows as an AnswerSet, grouped by question, and a note of one line for every policy that mattered.

    place:           what stands before a line's number in messages, such as "train.tsv line"
    negative_grades: the labels are ASNQ's grades, of which POSITIVE_GRADE is positive and these are negative; other
                     candidates are left out. None: the labels are 0 and 1

    White space in questions is folded to single spaces, as in a corpus; in ids it becomes "_", since a TREC file
    separates its columns by white space. Where the file has no question ids, they are q1, q2, ...; where it has no
    answer ids, they are the question's followed by -1, -2, ... in the order of a hash of the text, see
    ``_make_answer_ids``. A question without candidates is left out; a candidate without text is kept.

    Raises KinspanError, naming place and line, where there are no rows, where a question or an id is empty, where a
    question id has two texts, and where an answer id stands twice in a question.
    """
    questions, candidates = Questions(), Candidates()
    missing: Counter[str] = Counter()
    kept = None if negative_grades is None else {POSITIVE_GRADE, *negative_grades}
    line = 0
    try:
        for row in rows:
            line = row.line
            if isinstance(row, LeftOut):
                missing[row.reason] += 1
                continue
            number = questions.find_number(row.question_id, row.question)
            if row.answer is None:
                continue
            if kept is not None and row.label not in kept:
                candidates.left_out[row.label] += 1
            else:
                candidates.append(number, row)
    except Rejected as reason:
        raise KinspanError(f"{place} {line}: {reason}") from reason
    if not candidates.label:
        raise KinspanError(f"{place.rsplit(' ', 1)[0]}: no candidate answer in this file")
    question = np.frombuffer(candidates.question, dtype=np.int32)
    columns = candidates.finish()
    if "answer_ids" in columns:
        _check_ids_differ(place, questions, question, columns["answer_ids"], candidates.line)
    label = np.frombuffer(candidates.label, dtype=np.int8)
    labels = label if kept is None else (label == POSITIVE_GRADE).astype(np.int8)
    notes = [f"{reason}, left out: {count:,}" for reason, count in missing.items()]
    notes += _describe_oddities(questions, question, candidates, labels)
    if "answer_ids" in columns and split != "train":  # which nothing is measured on
        notes += _describe_id_order(question, columns["answer_ids"], labels)
    columns |= {"labels": labels, "grades": None if kept is None else label}
    return _group_by_question(name, split, questions, question, columns), [f"{name} {split}: {note}" for note in notes]


def _group_by_question(
    name: str, split: str, questions: Questions, question: np.ndarray, columns: dict[str, Any]
) -> AnswerSet:
    """Puts the candidates of a question side by side, in the order of the file; empty questions are left out."""
    if (np.diff(question) < 0).any():
        order = np.argsort(question, kind="stable")
        columns = {column: take_rows(values, order) for column, values in columns.items()}
    sizes = np.bincount(question, minlength=len(questions.ids))
    keep = sizes > 0
    starts = np.concatenate([[0], np.cumsum(sizes[keep])]).astype(np.int64)
    question_ids = [i for i, there in zip(questions.ids, keep, strict=True) if there]
    if "answer_ids" not in columns:
        columns["answer_ids"] = _make_answer_ids(question_ids, starts, columns["answers"])
    return AnswerSet(
        name=name,
        split=split,
        question_ids=question_ids,
        questions=[t for t, there in zip(questions.texts, keep, strict=True) if there],
        starts=starts,
        **columns,
    )


def _describe_oddities(
    questions: Questions, question: np.ndarray, candidates: Candidates, labels: np.ndarray
) -> list[str]:
    """Returns a note for everything that was left out or changed, or that looks like a mistake in the data."""
    num_empty = int(np.count_nonzero(np.diff(np.frombuffer(candidates.columns["answer"].ends, dtype=np.int64)) == 0))
    num_conflicts, num_repeats = _count_repeats(question, np.frombuffer(candidates.digest, dtype=np.int64), labels)
    counts = {
        "questions without a candidate, left out": len(questions.ids) - len(np.unique(question)),
        "candidates without text, kept": num_empty,
        "answers that stand twice or more under one question, with different labels, kept": num_conflicts,
        "answers that stand twice or more under one question, kept": num_repeats,
        'question ids with white space, which became "_"': questions.mended_ids,
        'answer ids with white space, which became "_"': candidates.mended_ids,
    }
    left_out = sorted(candidates.left_out.items())
    notes = [f"candidates of label {grade} are left out: {count:,}" for grade, count in left_out]
    return notes + [f"{words}: {count:,}" for words, count in counts.items() if count]


def _describe_id_order(question: np.ndarray, ids: pa.Array, labels: np.ndarray) -> list[str]:
    """Returns a note where candidates with equal scores are ranked by their labels, because their ids follow these."""
    ranks = pc.rank(ids, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    order = np.lexsort((-ranks, question))
    notes = []
    for extreme, effect, wanted in (("highest", "better", labels), ("lowest", "worse", 1 - labels)):
        mixed, count = _count_sorted_questions(question[order], wanted[order])
        if mixed >= MANY and count > SUSPICIOUS * mixed:
            notes.append(ID_ORDER.format(extreme=extreme, effect=effect, count=count, mixed=mixed))
    return notes


def _count_sorted_questions(question: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
    """Counts the questions that have both labels, and those of them whose ones come first; ``question`` ascends."""
    starts = np.flatnonzero(np.append(True, np.diff(question) != 0))
    ones = np.add.reduceat(labels.astype(np.int64), starts)
    mixed = (ones > 0) & (ones < np.diff(np.append(starts, len(labels))))
    rises = np.append(False, (np.diff(labels) > 0) & (np.diff(question) == 0))
    return int(mixed.sum()), int((mixed & ~np.logical_or.reduceat(rises, starts)).sum())


def _count_repeats(question: np.ndarray, digest: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
    """Counts the texts that one question has twice or more: those under both labels, and those under one."""
    key = digest.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + question.astype(np.uint64)
    order = np.argsort(key)
    first = np.flatnonzero(np.append(True, np.diff(key[order]) != 0))
    ordered = labels[order]
    mixed = np.minimum.reduceat(ordered, first) != np.maximum.reduceat(ordered, first)
    repeated = np.diff(np.append(first, len(order))) > 1
    return int(np.count_nonzero(mixed)), int(np.count_nonzero(repeated & ~mixed))


def _check_ids_differ(place: str, questions: Questions, question: np.ndarray, ids: pa.Array, line: array) -> None:
    """Raises KinspanError, naming the line, where an answer id stands twice in a question."""
    codes = ids.dictionary_encode().indices.to_numpy()
    key = question.astype(np.int64) * (int(codes.max()) + 1) + codes
    order = np.argsort(key, kind="stable")
    again = order[1:][np.diff(key[order]) == 0]
    if len(again):
        row = int(again.min())
        number = int(question[row])
        raise KinspanError(
            f"{place} {line[row]}: answer id {ids[row].as_py()!r} stands twice in question {questions.ids[number]!r}: "
            "ids must differ within a question"
        )


def _make_answer_ids(question_ids: list[str], starts: np.ndarray, answers: pa.LargeStringArray) -> pa.LargeStringArray:
    """Returns ids like q7-1, q7-2, ... for the candidates of each question, numbered by a hash of their texts.

    Ties between scores are broken by id. Many files list right answers first, so numbers in the order of the file would
    give the labels away. Equal texts have equal hashes; a bit of the hash says which of them comes first.
    """
    sizes = np.diff(starts)
    question, row = np.repeat(np.arange(len(sizes)), sizes), np.arange(starts[-1])
    chunks = range(0, len(answers), 100_000)
    hashes = (zlib.crc32(text.encode()) for first in chunks for text in answers.slice(first, 100_000).to_pylist())
    digest = np.fromiter(hashes, dtype=np.int64, count=len(answers))
    order = np.lexsort((np.where(digest % 2, row, -row), digest, question))
    place = np.empty(len(answers), dtype=np.int64)
    place[order] = row - np.repeat(starts[:-1], sizes) + 1
    of_question = pa.array(question_ids, pa.large_string()).take(pa.array(question))
    return pc.binary_join_element_wise(
        of_question, pc.cast(pa.array(place), pa.large_string()), pa.scalar("-", pa.large_string())
    )
