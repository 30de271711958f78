"""Labelled questions that have only their right passages: a search of the documents finds the wrong candidates."""

import hashlib
from pathlib import Path

import numpy as np

from data_pipeline.core.errors import KinspanError
from finetune.data.passages import Paragraphs, RankedRows, find_candidates, locate_answers, read_passage_questions
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
        rankings.insert(0, search_by_model(model, texts, list(asked.questions), folder / "vectors"))
    data, found, clear = find_candidates(asked, right, paragraphs, rankings, DEPTH)
    places = ["\t".join(paragraphs.documents[rows[0]]).strip() for rows in right]  # "" for a text that joined
    share = found[data.labels == 1].mean()
    searched = f"{len(texts):,} paragraphs are searched"
    notes.append(f"{searched}: {share:.0%} of the right ones are found, and then ranked by others")
    many = len(set(places)) > MIN_QUESTIONS
    return divide(str(path), data, found, clear, None, folder, notes, places if many else ())


def search_by_model(model: str, texts: list[str], questions: list[str], cache: Path) -> list[RankedRows]:
    """Returns the rows of the paragraphs that the model finds for each question; their vectors stay in ``cache``."""
    embedder = Embedder(model)
    key = hashlib.sha256("\0".join([fingerprint_bi_encoder(model), *texts]).encode("utf-8", "replace")).hexdigest()
    path = cache / f"{key[:16]}.npy"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".tmp.npy")
        np.save(partial, embedder.embed_answers(texts))
        partial.replace(path)
    return list(find_exactly(np.load(path), embedder.embed_queries(questions), DEPTH))
