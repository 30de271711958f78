"""Labelled questions that have only their right passages: a search of the documents finds the wrong candidates."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from data_pipeline.core.errors import KinspanError
from finetune.data.passages import Paragraphs, find_candidates, locate_answers, read_passage_questions
from finetune.ranking.embedder import Embedder, fingerprint_bi_encoder
from finetune.ranking.kinds import BI_ENCODER, find_kind
from finetune.ranking.retrieval import find_exactly, rank_by_words
from pretrain.modeling.pair_model import holds_no_weights

from .questions import MIN_QUESTIONS, Questions, divide, thin

DEPTH = 25  # paragraphs that each search finds
MAX_QUESTIONS = 1000


def search_candidates(
    path: Path, columns: dict[str, str], paragraphs: Paragraphs, model: str, folder: Path, language: str | None
) -> Questions:
    """Returns the questions with the paragraphs that BM25 and the model, if it is a bi-encoder, find as candidates.

    path: a table of questions and right passages, see ``read_passage_questions``
    """
    asked, documents = read_passage_questions(path, columns)
    if asked.num_questions < MIN_QUESTIONS:
        raise KinspanError(f"--questions {path}: {asked.num_questions} questions are too few: label fifty or more")
    notes: list[str] = []
    asked = thin(asked, (MAX_QUESTIONS, asked.num_pairs), notes)
    paragraphs, right = locate_answers(asked, documents, paragraphs)
    texts = paragraphs.texts
    rankings = [rank_by_words(texts, asked.questions, DEPTH, language)]
    if find_kind(model) == BI_ENCODER and not holds_no_weights(model):
        embedder = Embedder(model)
        key = "\0".join([fingerprint_bi_encoder(model), *texts])
        vectors = cache_array(folder / "vectors", key, partial(embedder.embed_answers, texts))
        rankings.insert(0, find_exactly(vectors, embedder.embed_queries(asked.questions), DEPTH))
    data, found, clear = find_candidates(asked, right, paragraphs, rankings, DEPTH)
    places = ["\t".join(paragraphs.documents[rows[0]]).strip() for rows in right]  # "" for a text that joined
    share = found[data.labels == 1].mean()
    notes.append(f"{len(texts):,} paragraphs are searched: {share:.0%} of the right ones are found, and then ranked")
    many = len(set(places)) > MIN_QUESTIONS
    return divide(str(path), data, found, clear, None, folder, notes, places if many else ())


def cache_array(folder: Path, key: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns the array of this key in the folder, which it is computed for once."""
    path = folder / f"{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:16]}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp.npy")
        np.save(unfinished, compute())
        unfinished.replace(path)
    return np.load(path)
