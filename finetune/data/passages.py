"""Questions with only their right passages, and the candidates that searches of documents find for them.

A paragraph is wrong for a question unless it is one of its right passages. So rankers are measured by searching all
paragraphs, and trained on wrong ones that a search found.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_pipeline.core.errors import KinspanError
from data_pipeline.matching import list_words

from .answers import AnswerSet, fold_text
from .collect import collect_answers
from .files import NAME, list_tables
from .filters import NO_ALL_NEGATIVE
from .registry import load_filtered
from .tables import IDS, LABELS, OPTIONAL, REQUIRED, Table, read_candidates, read_table

log = logging.getLogger(__name__)

DOCUMENT, LABEL = "document", "label"  # columns
NEAR = 0.8  # of a text's words, or pairs of words, that are in another which nearly contains it

RankedRows = tuple[np.ndarray, np.ndarray]  # rows of texts, best first, and their scores
Documents = dict[str, str]  # the id or title of the document that an answer is in, by answer id


@dataclass(frozen=True)
class Paragraphs:
    """The P paragraphs of documents, in their order.

    texts:     ``[P]`` distinct when folded
    documents: ``[P]`` the names of each paragraph's document: its id, parts of that, and its title
    headings:  ``[P]`` the heading above each, "" if it is not known
    """

    texts: list[str]
    documents: Sequence[tuple[str, ...]]
    headings: Sequence[str]


def load_passage_questions(spec: str, split: str, columns: dict[str, str] | None) -> tuple[AnswerSet, Documents]:
    """Reads the questions of a file without labels, see ``read_passage_questions``, or a split's right candidates."""
    path = Path(spec.removeprefix(f"{NAME}="))
    if path.exists() and not has_labels(path, columns):
        return read_passage_questions(path, columns or {})
    data = load_filtered(spec, split, NO_ALL_NEGATIVE, columns)
    return data.keep(data.labels == 1), {}


def has_labels(place: Path, columns: Mapping[str, str] | None) -> bool:
    """Returns whether the place is a folder, or a table that says which candidates are right, and not 1 in all rows.

    Raises KinspanError for a folder of tables without labels.
    """
    name, tables = (columns or {}).get(LABEL, LABEL), [read_table(path) for path in list_tables(place)]
    labelled = [table for table in tables if name in table.fields]
    if not tables or (not labelled and LABEL in (columns or {})):
        return True  # reading it then says what is missing
    if any(label != "1" for table in labelled for label in _read_labels(table, name)):
        return True
    if place.is_dir() and not labelled:
        raise KinspanError(f"{place}: no labels: name their column by --columns, or give right passages as one file")
    return place.is_dir()


def _read_labels(table: Table, column: str) -> Iterator[str]:
    """Yields the values in a column as text: 0, 1, a grade such as 4, or any other."""
    values = (str(record.get(column)) for _, record in table.records([column]))
    return (str(LABELS.get(value, value.removesuffix(".0"))) for value in values)


def read_passage_questions(path: Path, columns: Mapping[str, str]) -> tuple[AnswerSet, Documents]:
    """Reads a table with a question and one of its right passages in each row, whose number becomes the answer's id.

    columns: the table's names for question, answer, question_id and document, if they differ; the last two are optional
    """
    table, column = read_table(path), columns.get(DOCUMENT, DOCUMENT)
    records = table.records([column])
    documents = {str(line): str(record[column]) for line, record in records if record.get(column) is not None}
    if DOCUMENT in columns and not documents:
        raise KinspanError(f"--columns: {path} has no column {column!r}; there are {', '.join(table.fields)}")
    names = {c: name for c, name in columns.items() if c not in (DOCUMENT, LABEL)}
    rows = read_candidates(table, names, labelled=False)
    right = (row._replace(answer_id=str(row.line), label=1) for row in rows)
    data = collect_answers(path.name, "questions", table.place, right)
    if empty := [name for name, text in zip(data.answer_ids, data.answers, strict=True) if not text.as_py()]:
        raise KinspanError(f"{table.place} {empty[0]}: the answer is empty")
    unread = set(table.fields) - {*REQUIRED, *OPTIONAL, *chain(*IDS.values()), *columns.values()}
    for name in sorted(unread) if data.num_pairs >= 2 * data.num_questions else ():
        if {"0"} < set(_read_labels(table, name)) <= set("01234"):
            advice = f"add label={name}, with no values but 0 and 1, or remove {name}"
            raise KinspanError(f"--columns: {path} has several answers a question: {advice}")
    return data, documents


def locate_answers(
    questions: AnswerSet, documents: Documents, paragraphs: Paragraphs, min_pairs: int = 1
) -> tuple[Paragraphs, list[list[int]]]:
    """Returns the paragraphs, joined by the answers that are in none, and the rows of each question's right passages.

    A passage is the paragraph with the answer's text. Else it is the one that has most of the answer's pairs of words,
    and NEAR of them; of several that have as many, all, if their document is named, and else none. An answer that is
    longer has the paragraphs that it contains, if they make up NEAR of it. A heading in a named document stands for
    the paragraphs below it. Of an answer with fewer than ``min_pairs`` pairs of words the text alone counts.
    """
    texts, size = list(paragraphs.texts), len(paragraphs.texts)
    row_of = {fold_text(text): row for row, text in enumerate(texts)}
    answers = questions.answers.to_pylist()
    wanted = {pair for text in answers if fold_text(text) not in row_of for pair in _pair_words(text)}
    rows_of_pair, num_pairs = defaultdict[tuple[str, ...], list[int]](list), list[int]()
    for row, text in enumerate(texts if wanted else ()):
        num_pairs.append(len(pairs_of_row := _pair_words(text)))
        for pair in wanted & pairs_of_row:
            rows_of_pair[pair].append(row)

    rows_below = defaultdict[str, list[int]](list)
    for row, heading in enumerate(paragraphs.headings if documents else ()):
        rows_below[fold_text(heading)].append(row)

    def is_in(row: int, document: str) -> bool:
        return any(f"/{_fold_name(name)}".endswith(f"/{document}") for name in paragraphs.documents[row])

    def find(text: str, document: str) -> list[int]:
        if document and (below := [row for row in rows_below[fold_text(text)] if is_in(row, document)]):
            return below
        if len(pairs := _pair_words(text)) < min_pairs:
            return []
        rows = (row for pair in pairs for row in rows_of_pair[pair])
        counts = Counter(row for row in rows if not document or is_in(row, document))
        most = max(counts.values(), default=0)
        best = [row for row, count in counts.items() if count == most >= NEAR * len(pairs)]
        parts = [row for row, count in counts.items() if count >= NEAR * num_pairs[row]]
        if not best and sum(counts[row] for row in parts) >= NEAR * len(pairs):
            return parts
        return best if document or len(best) == 1 else []

    asked, num_found = list(map(fold_text, questions.questions)), 0
    right: dict[str, set[int]] = {question: set() for question in asked}
    for number, text, name in zip(questions.question_of, answers, questions.answer_ids.to_pylist(), strict=True):
        key = fold_text(text)
        rows = [row_of[key]] if row_of.get(key, size) < size else find(text, _fold_name(documents.get(name, "")))
        if not rows:
            rows = [row_of.setdefault(key, len(texts))]
            texts += [text] * (rows[0] == len(texts))
        right[asked[number]].update(rows)
        num_found += rows[0] < size
    log.info("%d of %d right passages are in the documents", num_found, questions.num_pairs)
    rows_of = [sorted(right[question]) for question in asked]
    names, headings = [("", "")] * (len(texts) - size), [""] * (len(texts) - size)
    return Paragraphs(texts, [*paragraphs.documents, *names], [*paragraphs.headings, *headings]), rows_of


def _fold_name(name: str) -> str:
    return fold_text(name).replace(" ", "_")  # as ids of answers are written


def _pair_words(text: str) -> set[tuple[str, ...]]:
    """Returns the pairs of neighbouring words of a text, or its only word."""
    words = list_words(text)
    return set(pairwise(words)) or {tuple(words)}


def find_candidates(
    questions: AnswerSet,
    right: Sequence[Sequence[int]],
    paragraphs: Paragraphs,
    rankings: Sequence[Sequence[RankedRows]],
    depth: int,
) -> tuple[AnswerSet, np.ndarray, np.ndarray]:
    """Returns the first ``depth`` paragraphs of each ranking and the right passages as candidates, and two masks.

    right, paragraphs: from ``locate_answers``; the candidates' ids are the rows of paragraphs
    rankings:          the rows that each search found for each question, ``[R][Q]``

    The first mask, ``[N]`` bool, is False for right passages that no search found: they have no rank. The second is
    False for wrong candidates that may be right: one nearly contains the other, or it is beside a right passage in a
    document.
    """
    texts, documents = paragraphs.texts, paragraphs.documents
    read_words = cache(lambda row: frozenset(list_words(texts[row])))

    def may_be_right(row: int, passage: int) -> bool:
        a, b = read_words(row), read_words(passage)
        is_beside = abs(row - passage) == 1 and documents[row] == documents[passage] != ("", "")
        return is_beside or len(a & b) >= NEAR * min(len(a), len(b))

    columns, sizes = list[tuple[int, bool, bool, bool]](), [0]
    for number, passages in enumerate(right):
        seen = set(chain(*(ranking[number][0][:depth].tolist() for ranking in rankings)))
        for row in sorted(seen.union(passages)):
            is_right = row in passages
            is_clear = is_right or not any(may_be_right(row, passage) for passage in passages)
            columns.append((row, is_right, row in seen, is_clear))
        sizes.append(len(columns))
    rows, labels, found, clear = map(np.array, zip(*columns, strict=True))
    data = replace(
        questions,
        starts=np.array(sizes, dtype=np.int64),
        answer_ids=pa.array(map(str, rows.tolist()), pa.large_string()),
        answers=pa.array([texts[row] for row in rows], pa.large_string()),
        labels=labels.astype(np.int8),
    )
    return data, found, clear
