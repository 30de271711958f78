"""Searches the documents for candidates of labelled questions: of those with right passages alone, and of others."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.spill import save_atomically
from finetune.data.answers import concatenate
from finetune.data.folds import group_questions
from finetune.data.passages import Paragraphs, RankedRows, find_candidates, locate_answers, read_passage_questions
from finetune.evaluation.bm25 import count_words, score_bm25_by
from finetune.ranking.embedder import Embedder, fingerprint_bi_encoder
from finetune.ranking.kinds import BI_ENCODER, find_kind
from finetune.ranking.retrieval import find_exactly, rank_by_words
from pretrain.modeling.pair_model import holds_no_weights

from .questions import MIN_QUESTIONS, Questions, divide, thin

DEPTH, MAX_QUESTIONS = 25, 1000  # paragraphs that each search finds, and questions
ADDED_DEPTH, MAX_ADDED, MAX_PARAGRAPHS = 10, 100, 20_000  # limits of a search beside labels, to take minutes
CACHED = 50_000  # texts whose vectors are stored in one file, so that a killed command keeps those before
MIN_PAIRS = 5  # of words, of a labelled answer that is sought in longer paragraphs


def search_candidates(
    path: Path, columns: dict[str, str], read: Callable[[], Paragraphs], model: str, folder: Path, language: str | None
) -> Questions:
    """Returns the questions with the paragraphs that a search finds as candidates.

    path: a table of questions and right passages, see ``read_passage_questions``
    read: reads the paragraphs, which may take long
    """
    asked, documents = read_passage_questions(path, columns)
    if asked.num_questions < MIN_QUESTIONS:
        raise KinspanError(f"--questions {path}: {asked.num_questions} questions are too few: label fifty or more")
    notes: list[str] = []
    asked = thin(asked, (MAX_QUESTIONS, asked.num_pairs), notes)
    paragraphs, right = locate_answers(asked, documents, read())
    rankings = _search(paragraphs.texts, asked.questions, DEPTH, model, folder, language)
    data, found, clear = find_candidates(asked, right, paragraphs, rankings, DEPTH)
    places = [{"\t".join(paragraphs.documents[row]).strip() for row in rows} - {""} for rows in right]
    share = found[data.labels == 1].mean()
    notes.append(f"{len(paragraphs.texts):,} paragraphs are searched: {share:.0%} of right ones are found, and ranked")
    questions = divide(str(path), data, clear, None, folder, notes, places)
    found = found[questions.compared[data.question_of]]
    words = score_bm25_by(count_words(paragraphs.texts, language), questions.scored)
    return replace(questions, searched=questions.judged, found=found, words=words)


def add_search(
    questions: Questions, paragraphs: Paragraphs, model: str, folder: Path, language: str | None
) -> Questions:
    """Returns the questions with up to MAX_ADDED of them scored again, with paragraphs that a search finds.

    These have a right answer in the documents; those that share a right paragraph are in one group. With fewer than
    MIN_QUESTIONS such questions or groups of them, the questions stay as they are.
    """
    train, texts = questions.train, paragraphs.texts
    right = [list[int]() for _ in train.questions]
    located = locate_answers(train.keep(train.labels == 1), {}, paragraphs, MIN_PAIRS)[1]
    for number, rows in zip(np.unique(train.question_of[train.labels == 1]), located, strict=True):
        right[number] = [row for row in rows if row < len(texts)]
    groups = group_questions(train, [list(map(str, rows)) for rows in right])
    there = np.flatnonzero(questions.compared & np.array(list(map(bool, right))))
    count = f"{len(there):,} of {questions.compared.sum():,} questions have a right answer in the documents"
    if len(np.unique(groups[there])) < MIN_QUESTIONS:
        return replace(questions, notes=[*questions.notes, f"{count}: too few to measure a search of them"])
    numbers = there[np.linspace(0, len(there) - 1, min(len(there), MAX_ADDED), dtype=int)]
    asked = train.take(numbers)
    rankings = _search(texts, asked.questions, ADDED_DEPTH, model, folder, language)
    data, found, _ = find_candidates(asked, [right[number] for number in numbers], paragraphs, rankings, ADDED_DEPTH)
    scored = concatenate([questions.judging, replace(data, split="search")])
    return replace(
        questions,
        groups=groups,
        scored=scored,
        asked=np.append(questions.asked, numbers),
        searched=np.append(questions.searched, np.ones(len(numbers), dtype=bool)),
        found=np.append(questions.found, found),
        words=score_bm25_by(count_words(texts, language), scored),
        notes=[*questions.notes, f"{count}; a search of {len(texts):,} paragraphs is measured by {len(numbers):,}"],
    )


def _search(
    texts: list[str], asked: Sequence[str], depth: int, model: str, folder: Path, language: str | None
) -> list[list[RankedRows]]:
    """Returns the first texts that BM25 and the model, if it is a bi-encoder, find for each question."""
    rankings = [rank_by_words(texts, asked, depth, language)]
    if find_kind(model) == BI_ENCODER and not holds_no_weights(model):
        embedder = Embedder(model)
        parts = [texts[first : first + CACHED] for first in range(0, len(texts), CACHED)]
        name, vectors = fingerprint_bi_encoder(model), folder / "vectors"
        encoded = [cache_array(vectors, "\0".join([name, *p]), partial(embedder.embed_answers, p)) for p in parts]
        rankings.insert(0, find_exactly(np.concatenate(encoded), embedder.embed_queries(asked), depth))
    return rankings


def cache_array(folder: Path, key: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns the folder's array of this key, which is computed only once."""
    path = folder / f"{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:16]}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        save_atomically(path, compute())
    return np.load(path)
