"""Gathers the rows of a file into an AnswerSet as they stream in.

20 million rows cost the bytes of their texts and about 100 bytes each.
"""

import logging
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_pipeline.core.errors import KinspanError
from data_pipeline.matching import fold_characters
from data_pipeline.prepare.encode import normalise

from .answers import POSITIVE_GRADE, AnswerSet

log = logging.getLogger(__name__)


class SourceRow(NamedTuple):
    """One candidate with its question, or a question alone, as read from a file.

    answer:      with its white space folded; None for a question alone, which may have no candidate
    label:       0 or 1, or ASNQ's grade

    A reader gives None for an id in all rows, or in none.
    """

    line: int
    question_id: str | None
    question: str
    answer_id: str | None
    answer: str | None
    label: int


class LeftOut(str):
    """The reason why a reader leaves a record out; equal reasons are counted together."""


class TextBuffer:
    """Strings that are appended one at a time to the buffers of one Arrow array, so that ``finish`` copies nothing."""

    def __init__(self) -> None:
        self.bytes, self.ends = bytearray(), array("q", [0])

    def append(self, text: str) -> None:
        self.bytes += text.encode()
        self.ends.append(len(self.bytes))

    def finish(self) -> pa.LargeStringArray:
        buffers = pa.py_buffer(self.ends), pa.py_buffer(self.bytes)
        return pa.LargeStringArray.from_buffers(len(self.ends) - 1, *buffers)


class Collector:
    """The candidates of a file in its order, and its questions, told apart by id, or by text if there are no ids.

    notes: how often something was left out or changed
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.question, self.label, self.line = array("i"), array("b"), array("q")
        self.answers, self.answer_ids = TextBuffer(), TextBuffer()
        self.notes: Counter[str] = Counter()
        self._numbers: dict[str, int] = {}
        self._last: tuple[tuple[str | None, str], int] | None = None

    def find_question(self, row: SourceRow) -> int:
        """Returns the index of the row's question; a new one gets the next index. Raises ValueError."""
        if self._last and self._last[0] == row[1:3]:  # rows of a question are mostly adjacent
            return self._last[1]
        text = normalise(fold_characters(row.question))
        if not text:
            raise ValueError("the question is empty")
        key = text if row.question_id is None else self._clean_id(row.question_id)
        number = self._numbers.setdefault(key, len(self.ids))
        if number == len(self.ids):
            self.ids.append(f"q{number + 1}" if row.question_id is None else key)
            self.texts.append(text)
        elif self.texts[number] != text:
            raise ValueError(f"question id {key!r} has another text ({text!r}) than before ({self.texts[number]!r})")
        self._last = (row.question_id, row.question), number
        return number

    def append(self, row: SourceRow, number: int) -> None:
        """Adds a candidate of the question ``number``. Raises ValueError for an id that is empty."""
        assert row.answer is not None
        self.question.append(number)
        self.label.append(row.label)
        self.line.append(row.line)
        self.answers.append(row.answer)
        if row.answer_id is not None:
            self.answer_ids.append(self._clean_id(row.answer_id))

    def _clean_id(self, given: str) -> str:
        cleaned = "_".join(given.split())
        if not cleaned:
            raise ValueError("an id is empty")
        self.notes['ids with white space, which became "_"'] += cleaned != given
        return cleaned


def collect_answers(
    name: str,
    split: str,
    place: str,
    rows: Iterable[SourceRow | LeftOut],
    negative_grades: tuple[int, ...] | None = None,
) -> AnswerSet:
    """Returns the rows as an AnswerSet, grouped by question, and logs what was left out or changed.

    place:           text before a line's number in messages, such as "train.tsv line"
    negative_grades: the labels are ASNQ's grades, of which POSITIVE_GRADE is positive and these are negative; other
                     candidates are left out. None: the labels are 0 and 1

    White space in questions is folded, and becomes "_" in ids, for TREC's files. Missing question ids are q1, q2, ...;
    for answer ids see ``_make_answer_ids``. A question without candidates is left out.
    """
    collector = Collector()
    kept = None if negative_grades is None else {POSITIVE_GRADE, *negative_grades}
    for row in rows:
        if isinstance(row, LeftOut):
            collector.notes[f"{row}, left out"] += 1
            continue
        try:
            number = collector.find_question(row)
            if row.answer is None:
                continue
            if kept is not None and row.label not in kept:
                collector.notes[f"candidates of label {row.label}, left out"] += 1
            else:
                collector.append(row, number)
        except ValueError as error:
            raise KinspanError(f"{place} {row.line}: {error}") from error
    if not collector.label:
        raise KinspanError(f"{place.rsplit(' ', 1)[0]}: no candidate answer in this file")
    question = np.frombuffer(collector.question, dtype=np.int32)
    label = np.frombuffer(collector.label, dtype=np.int8)
    answers, ids = collector.answers.finish(), None
    if len(collector.answer_ids.ends) > 1:
        ids = collector.answer_ids.finish()
        _check_ids_differ(place, collector, question, ids)
    sizes = np.bincount(question, minlength=len(collector.ids))
    keep = np.flatnonzero(sizes)
    collector.notes["questions without a candidate, left out"] = len(sizes) - len(keep)
    collector.notes["candidates without text, kept"] = int((pc.binary_length(answers).to_numpy() == 0).sum())
    for note, count in collector.notes.items():
        if count:
            log.info("%s %s: %s: %s", name, split, note, f"{count:,}")
    if (np.diff(question) < 0).any():  # a question's rows need not be adjacent
        order = np.argsort(question, kind="stable")
        answers, label = answers.take(pa.array(order)), label[order]
        ids = None if ids is None else ids.take(pa.array(order))
    starts = np.concatenate([[0], np.cumsum(sizes[keep])]).astype(np.int64)
    question_ids = [collector.ids[n] for n in keep]
    return AnswerSet(
        name=name,
        split=split,
        question_ids=question_ids,
        questions=[collector.texts[n] for n in keep],
        starts=starts,
        answer_ids=_make_answer_ids(question_ids, starts, answers) if ids is None else ids,
        answers=answers,
        labels=label if kept is None else (label == POSITIVE_GRADE).astype(np.int8),
    )


def _check_ids_differ(place: str, collector: Collector, question: np.ndarray, ids: pa.Array) -> None:
    """Raises KinspanError, naming the line, if an answer id occurs twice in a question."""
    codes = ids.dictionary_encode().indices.to_numpy()
    keys = question.astype(np.int64) * (int(codes.max()) + 1) + codes
    order = np.argsort(keys, kind="stable")
    repeated = order[1:][np.diff(keys[order]) == 0]
    if len(repeated):
        row = int(repeated.min())
        name, line = collector.ids[int(question[row])], collector.line[row]
        raise KinspanError(f"{place} {line}: answer id {ids[row].as_py()!r} occurs twice in question {name!r}")


def _make_answer_ids(question_ids: list[str], starts: np.ndarray, answers: pa.LargeStringArray) -> pa.LargeStringArray:
    """Returns ids like q7-1, q7-2, ... for the candidates of each question, numbered by a hash of their texts.

    Ties between scores are broken by id. Many files list right answers first, so numbers in the order of the file would
    give the labels away. Equal texts have equal hashes; a bit of the hash decides their order.
    """
    sizes = np.diff(starts)
    question, row = np.repeat(np.arange(len(sizes)), sizes), np.arange(starts[-1])
    chunks = range(0, len(answers), 100_000)
    hashes = (zlib.crc32(text.encode()) for first in chunks for text in answers.slice(first, 100_000).to_pylist())
    digest = np.fromiter(hashes, dtype=np.int64, count=len(answers))
    order = np.lexsort((np.where(digest % 2, row, -row), digest, question))
    rank = np.empty(len(answers), dtype=np.int64)
    rank[order] = row - np.repeat(starts[:-1], sizes) + 1
    of_question = pa.array(question_ids, pa.large_string()).take(pa.array(question))
    return pc.binary_join_element_wise(
        of_question, pc.cast(pa.array(rank), pa.large_string()), pa.scalar("-", pa.large_string())
    )
