"""A forum's questions as a data set of answer selection, as the LAS data sets were made.

Rücklé et al., 2019, "COALA: A Neural Coverage-Based Approach for Long Answer Selection with Small Data", and Rücklé et
al., 2020, "MultiCQA", section 3.2: the accepted answer of a question is right, and the other candidates are the
accepted answers to similar questions, which BM25 finds. Titles with bodies, and questions with their duplicates,
become data sets in the same way.

Duplicates, direct or indirect, ask the same, so a duplicate's text is never a wrong candidate: it is right if a link
says so, and else left out. A training question has no candidate of a dev or test question, or with its text: it would
be learned as always wrong.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import bm25s
import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import make_folder, write_atomically
from data_pipeline.core.progress import show_progress
from data_pipeline.matching import WORD, write_bigrams
from data_pipeline.prepare.cleaning import Rules, Tally, clean, normalise
from data_pipeline.prepare.document import Document, Rejected
from data_pipeline.prepare.encode import is_held_out, name_split
from data_pipeline.prepare.read import MAX_REJECTED, read_input
from data_pipeline.prepare.readers.reader import Record
from data_pipeline.prepare.readers.registry import parse_record
from finetune.data.answers import fold_text

log = logging.getLogger(__name__)
SPLITS = ("train", "dev", "test")
CANDIDATES = 100  # of a question (Rücklé et al., 2020, section 3.2)


@dataclass(frozen=True)
class ForumQuestion:
    """A question of a forum, as plain text; a missing part is "".

    accepted: the index of the accepted answer; -1 if there is none
    links: ids of the questions that it is a duplicate of
    group: name shared by all questions that links connect, in any direction; they are in one split
    """

    id: str
    title: str
    body: str
    answers: tuple[str, ...]
    accepted: int
    links: tuple[str, ...]
    group: str

    @property
    def answer(self) -> str:
        """Returns the accepted answer; "" if there is none."""
        return self.answers[self.accepted] if self.accepted >= 0 else ""


def read_questions(inputs: list[str], max_rejected: float = MAX_REJECTED) -> list[ForumQuestion]:
    """Reads all questions of a forum's dump, or of ``questions:FILE.jsonl``, cleaned as kinspan prepare cleans them.

    max_rejected: the share of the bytes that may be rejected, see data_pipeline/prepare/read.py
    """
    questions = read_input(inputs, _parse_questions, _make_questions, max_rejected)
    if not questions:
        raise KinspanError(f"{' '.join(inputs)}: no questions in it: give a Posts.xml, its .7z or questions:FILE.jsonl")
    group_of: dict[str, str] = {}
    for question in questions:
        if question.id in group_of:
            raise KinspanError(f"question {question.id!r} comes twice: name each file once, and each forum by itself")
        group_of[question.id] = question.group
    for question in questions:
        for link in question.links:
            if group_of.get(link, question.group) != question.group:
                raise KinspanError(f"question {question.id!r} is a duplicate of {link!r}, which is in another file")
    return questions


def _parse_questions(record: Record) -> list[Document]:
    questions = [document for document in parse_record(record) if document.title_is_text]
    if not questions:
        raise Rejected("no question but a document: name the reader, such as questions:FILE.jsonl")
    return questions


def _make_questions(document: Document) -> list[ForumQuestion]:
    paragraphs = clean(document, Rules(), Tally()) or []
    body = " ".join(paragraphs)
    title = normalise(document.title)
    question = ForumQuestion(
        document.id,
        title,
        body if body != title else "",
        tuple(map(normalise, document.answers)),
        -1 if document.accepted is None else document.accepted,
        tuple(document.links),
        name_split(document, []),
    )
    return [question]


class Kind(NamedTuple):
    """Functions that return a question's text as a query and as a candidate; "" if it cannot be one."""

    query: Callable[[ForumQuestion], str]
    candidate: Callable[[ForumQuestion], str]


def _join(question: ForumQuestion) -> str:
    return f"{question.title} {question.body}".strip()


KINDS = {
    "title_body": Kind(lambda q: q.title, lambda q: q.body),
    "title_answer": Kind(lambda q: q.title, lambda q: q.answer),
    "duplicate": Kind(lambda q: _join(q) if q.links else "", _join),
}


def build_forum_set(
    questions: Sequence[ForumQuestion], kind: str, folder: Path, shares: dict[str, float], candidates: int = CANDIDATES
) -> dict[str, int]:
    """Writes ``train.jsonl``, ``dev.jsonl`` and ``test.jsonl``, and returns how many questions each has.

    A split whose share is 0 has no file; one of an earlier call is removed.

    kind:   of KINDS
    shares: of "dev" and "test", chosen by a hash of the id: kinspan prepare with a --validation_share of both
            together holds out the same ones
    """
    form, index_of = KINDS[kind], {question.id: n for n, question in enumerate(questions)}
    texts = [fold_text(form.candidate(question)) for question in questions]
    splits = [choose_split(question, shares) for question in questions]
    held_out = {text for text, split in zip(texts, splits, strict=True) if split != "train"}
    pool = np.array([bool(text) for text in texts])
    pool_of_train = pool & [text not in held_out for text in texts]
    if (count := int(pool_of_train.sum())) < candidates:
        log.warning("--candidates %d: only %d texts can be candidates of training questions", candidates, count)
    index = bm25s.BM25()
    indexed = [write_bigrams(_join(question)) for question in questions]
    words = bm25s.tokenize(indexed, token_pattern=WORD, return_ids=False, show_progress=False)
    if not any(words):
        raise KinspanError(f"--kind {kind}: no question has a word")
    index.index(words, show_progress=False)
    drawn: dict[str, list[tuple[int, list[int], np.ndarray]]] = {split: [] for split in SPLITS}
    size, num_shared = len(questions), 0
    for n, question in enumerate(show_progress("candidates", "questions", questions)):
        split = splits[n]
        right = [index_of[k] for k in question.links if index_of.get(k, n) != n] if kind == "duplicate" else [n]
        if not form.query(question) or not right or not pool[right].all():
            continue
        offered = pool_of_train if split == "train" else pool
        if not offered[right].all():
            num_shared += 1
            continue
        right_texts = {texts[k] for k in right}  # not wrong under another id
        scores, missing = index.get_scores(words[n]) if words[n] else np.zeros(size), max(0, candidates - len(right))
        for limit in (min(10 * candidates, size), size):  # sorting all takes long, and is rarely needed
            rows = np.flatnonzero(scores >= np.partition(scores, size - limit)[size - limit])
            ranked = rows[np.argsort(-scores[rows], kind="stable")].tolist()
            similar = (k for k in ranked if offered[k] and questions[k].group != question.group)
            wrong = list(islice((k for k in similar if texts[k] not in right_texts), missing))
            if len(wrong) == missing:
                break
        drawn[split].append((n, right, np.array(wrong, dtype=np.int32)))
    if num_shared:
        log.info("left out %d training questions with the right candidate of a dev or test question", num_shared)
    counts = {split: len(rows) for split, rows in drawn.items()}
    if empty := [split for split in SPLITS if not counts[split] and (split == "train" or shares[split])]:
        raise KinspanError(f"--kind {kind}: no question for {empty[0]}; {sum(counts.values())} have what it needs")
    make_folder(folder)
    for split in SPLITS:
        if counts[split]:
            lines = (_write_lines(questions[n], form, questions, right, wrong) for n, right, wrong in drawn[split])
            write_atomically(folder / f"{split}.jsonl", chain.from_iterable(lines))
        else:  # an earlier call with other shares may have left one
            (folder / f"{split}.jsonl").unlink(missing_ok=True)
    return counts


def choose_split(question: ForumQuestion, shares: dict[str, float]) -> str:
    """Returns the split of a question and its duplicates."""
    if is_held_out(question.group, shares["test"]):
        return "test"
    return "dev" if is_held_out(question.group, shares["test"] + shares["dev"]) else "train"


def _write_lines(
    question: ForumQuestion, form: Kind, questions: Sequence[ForumQuestion], right: list[int], wrong: Iterable[int]
) -> list[str]:
    """Returns a line per candidate, ordered by a hash."""
    rows = [*((n, 1) for n in right), *((n, 0) for n in wrong)]
    rows.sort(key=lambda row: hashlib.blake2b(f"{question.id} {questions[row[0]].id}".encode()).digest())
    fields = {"question_id": question.id, "question": form.query(question)}
    candidates = ({"answer_id": questions[n].id, "answer": form.candidate(questions[n]), "label": k} for n, k in rows)
    return [json.dumps(fields | candidate, ensure_ascii=False) + "\n" for candidate in candidates]
