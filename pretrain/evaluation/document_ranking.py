"""Sentences of held-out documents as questions: does a release find the other sentences of the same paragraph?"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from data_pipeline.corpus import Corpus, Shard
from data_pipeline.errors import KinspanError, quote_first_line


@dataclass(frozen=True)
class Question:
    """A sentence, and the other sentences of its document with whether they share its paragraph."""

    title: str
    sentence: str
    candidates: list[str]
    same_paragraph: list[bool]


def find_questions(corpus: Corpus, tokenizer: object) -> list[Question]:
    """One for each held-out document of 10-60 sentences with a paragraph of three or more: its longest sentence."""
    found = []
    for number, info in enumerate(corpus.manifest.shards):
        if info.split == "train":
            continue
        shard = corpus.shard(number)
        for row in np.flatnonzero(shard.held_out).tolist():
            paragraphs = _texts(shard, row, tokenizer)
            long = [p for p, sentences in enumerate(paragraphs) if len(sentences) >= 3]
            if long and len(paragraphs) > 1 and 10 <= sum(map(len, paragraphs)) <= 60:
                home = long[len(long) // 2]
                rest = [(s, p == home) for p, sentences in enumerate(paragraphs) for s in sentences]
                sentence = max(paragraphs[home], key=len)  # one that says something
                rest.remove((sentence, True))
                texts, same = zip(*rest, strict=True)
                found.append(Question(shard.document_title(row), sentence, list(texts), list(same)))
    return found


def _texts(shard: Shard, row: int, tokenizer: object) -> list[list[str]]:
    """The document's sentences as text, paragraph by paragraph."""
    paragraphs = []
    for paragraph in range(shard.document_starts[row], shard.document_starts[row + 1]):
        bounds = shard.sentence_starts[shard.paragraph_starts[paragraph] : shard.paragraph_starts[paragraph + 1] + 1]
        ids = [shard.tokens[a:b] for a, b in pairwise(bounds)]
        paragraphs.append([tokenizer.decode(i).strip() for i in ids])  # type: ignore[attr-defined]
    return paragraphs


def load_cross_encoder(folder: str) -> Any:
    """A release as sentence-transformers' CrossEncoder. Raises KinspanError where it cannot be loaded."""
    from sentence_transformers import CrossEncoder
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        return CrossEncoder(folder, trust_remote_code=False)
    except Exception as error:  # a damaged file, a missing one: one line to the user
        raise KinspanError(f"--model {folder} cannot be loaded: {quote_first_line(error)}") from error


def rank_sentences(encoder: Any, question: Question) -> list[tuple[float, bool, str]]:
    """The question's candidates, the best first: score, whether it shares the paragraph, and the sentence."""
    hits = encoder.rank(question.sentence, question.candidates)
    numbers = [int(hit["corpus_id"]) for hit in hits]
    return [
        (float(hit["score"]), question.same_paragraph[number], question.candidates[number])
        for hit, number in zip(hits, numbers, strict=True)
    ]


def mean_auc(encoder: Any, questions: list[Question]) -> float:
    """How often a sentence of the same paragraph is ranked above another one, on average over questions."""
    aucs = [
        roc_auc_score(q.same_paragraph, encoder.predict([(q.sentence, candidate) for candidate in q.candidates]))
        for q in questions
    ]
    return float(np.mean(aucs))
