"""Rows of a file -> an AnswerSet, streamed: 20 million rows cost their texts and about 100 bytes each."""

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_pipeline.errors import KinspanError
from data_pipeline.prepare.document import Rejected
from data_pipeline.prepare.encode import normalise

from .answers import AnswerSet

# Line, question id or None, question, answer id or None, answer with its white space folded (None: just the question,
# which may have no candidate), label
Row = tuple[int, str | None, str, str | None, str | None, int]

POSITIVE_GRADE = 4  # ASNQ: in the long answer, with the short answer


class Texts:
    """Strings, appended one at a time to the buffers of one array: nothing is copied at the end."""

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

    def number(self, question_id: str | None, question: str) -> int:
        """Of the question with this id and text; a new one gets the next number. Raises Rejected."""
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
class Columns:
    """What ``collect`` gathers of N candidates, in the order of the file."""

    question: array = field(default_factory=lambda: array("i"))  # number
    label: array = field(default_factory=lambda: array("b"))  # 0 and 1, or the grades
    line: array = field(default_factory=lambda: array("q"))
    digest: array = field(default_factory=lambda: array("q"))  # of the answer's text
    answers: Texts = field(default_factory=Texts)
    ids: Texts = field(default_factory=Texts)
    mended_ids: int = 0
    left_out: Counter[int] = field(default_factory=Counter)  # by grade


def collect(
    name: str, split: str, place: str, rows: Iterator[Row], graded: bool = False, negatives: tuple[int, ...] = ()
) -> tuple[AnswerSet, list[str]]:
    """The rows as an AnswerSet, grouped by question, and a note, one line, for every policy that mattered.

    place:     what stands before a line's number in messages: "train.tsv line"
    graded:    labels are ASNQ's: 4 is positive, those in ``negatives`` are negative, others are left out

    White space in questions is folded to single spaces, as in a corpus; in ids it becomes "_", since a TREC file parts
    its columns by white space. Where the file has no question ids they are q1, q2, ...; where it has no answer ids they
    are the question's with -1, -2, ... A question without candidates is left out; a candidate without text stays.

    Raises KinspanError with place and line: no rows; a question that is empty; an id that is empty, or that has two
    texts, or that stands twice in a question.
    """
    questions, columns = Questions(), Columns()
    kept = {POSITIVE_GRADE, *negatives}
    line = 0
    try:
        for line, question_id, question, answer_id, answer, label in rows:
            number = questions.number(question_id, question)
            if answer is None:
                continue
            if graded and label not in kept:
                columns.left_out[label] += 1
                continue
            if answer_id is not None:
                _append_id(columns, answer_id)
            columns.question.append(number)
            columns.label.append(label)
            columns.line.append(line)
            columns.digest.append(hash(answer))
            columns.answers.append(answer)
    except Rejected as reason:
        raise KinspanError(f"{place} {line}: {reason}") from reason
    if not columns.label:
        raise KinspanError(f"{place.rsplit(' ', 1)[0]}: no candidate answer in this file")
    return _grouped(name, split, place, questions, columns, graded)


def _append_id(columns: Columns, answer_id: str) -> None:
    cleaned = "_".join(answer_id.split())
    if not cleaned:
        raise Rejected("the answer id is empty")
    columns.mended_ids += cleaned != answer_id
    columns.ids.append(cleaned)


def _grouped(
    name: str, split: str, place: str, questions: Questions, columns: Columns, graded: bool
) -> tuple[AnswerSet, list[str]]:
    """Candidates of a question side by side, in the order of the file."""
    question = np.frombuffer(columns.question, dtype=np.int32)
    label = np.frombuffer(columns.label, dtype=np.int8)
    labels = (label == POSITIVE_GRADE).astype(np.int8) if graded else label
    sizes = np.bincount(question, minlength=len(questions.ids))
    empty = int(np.count_nonzero(np.diff(np.frombuffer(columns.answers.ends, dtype=np.int64)) == 0))
    conflicts = _conflicts(question, np.frombuffer(columns.digest, dtype=np.int64), labels)
    ids = columns.ids.finish() if len(columns.ids.ends) > 1 else None
    if ids is not None:
        _check_once(place, questions, question, ids, columns.line)
    answers, grades = columns.answers.finish(), label if graded else None
    if (np.diff(question) < 0).any():
        order = np.argsort(question, kind="stable")
        answers, labels = answers.take(pa.array(order)), labels[order]
        ids = None if ids is None else ids.take(pa.array(order))
        grades = None if grades is None else grades[order]
    keep = sizes > 0
    starts = np.concatenate([[0], np.cumsum(sizes[keep])]).astype(np.int64)
    question_ids = [i for i, there in zip(questions.ids, keep, strict=True) if there]
    data = AnswerSet(
        name,
        split,
        question_ids,
        [t for t, there in zip(questions.texts, keep, strict=True) if there],
        starts,
        _made_ids(question_ids, starts) if ids is None else ids,
        answers,
        labels,
        grades,
    )
    notes = [f"candidates of label {grade} are left out: {n:,}" for grade, n in sorted(columns.left_out.items())]
    notes += [
        f"{words}: {n:,}"
        for n, words in (
            (int((~keep).sum()), "questions without a candidate, left out"),
            (empty, "candidates without text, kept"),
            (conflicts, "answers that stand twice or more under one question, with different labels, kept"),
            (questions.mended_ids, 'question ids with white space, which became "_"'),
            (columns.mended_ids, 'answer ids with white space, which became "_"'),
        )
        if n
    ]
    return data, [f"{name} {split}: {note}" for note in notes]


def _conflicts(question: np.ndarray, digest: np.ndarray, labels: np.ndarray) -> int:
    """Texts that a question has under both labels."""
    key = digest.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + question.astype(np.uint64)
    order = np.argsort(key)
    first = np.flatnonzero(np.append(True, np.diff(key[order]) != 0))
    ordered = labels[order]
    return int(np.count_nonzero(np.minimum.reduceat(ordered, first) != np.maximum.reduceat(ordered, first)))


def _check_once(place: str, questions: Questions, question: np.ndarray, ids: pa.Array, line: array) -> None:
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


def _made_ids(question_ids: list[str], starts: np.ndarray) -> pa.LargeStringArray:
    sizes = np.diff(starts)
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes) + 1
    of_question = pa.array(question_ids, pa.large_string()).take(pa.array(np.repeat(np.arange(len(sizes)), sizes)))
    return pc.binary_join_element_wise(
        of_question, pc.cast(pa.array(place), pa.large_string()), pa.scalar("-", pa.large_string())
    )
