"""Sentences of held-out documents as questions: does a model find the other sentences of the same paragraph?"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from data_pipeline.core.errors import KinspanError, quote_first_line
from data_pipeline.core.files import read_object
from data_pipeline.corpus import Corpus, Shard


@dataclass(frozen=True)
class RankedSentence:
    """A sentence, and the other sentences of its document with whether they share its paragraph."""

    title: str
    sentence: str
    candidates: list[str]
    same_paragraph: list[bool]


Score = Callable[[RankedSentence], np.ndarray]  # the scores of a question's candidates, the higher the better


def find_questions(corpus: Corpus, tokenizer: object) -> list[RankedSentence]:
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
                found.append(RankedSentence(shard.document_title(row), sentence, list(texts), list(same)))
    return found


def _texts(shard: Shard, row: int, tokenizer: object) -> list[list[str]]:
    paragraphs = []
    for paragraph in range(shard.document_starts[row], shard.document_starts[row + 1]):
        bounds = shard.sentence_starts[shard.paragraph_starts[paragraph] : shard.paragraph_starts[paragraph + 1] + 1]
        ids = [shard.tokens[a:b] for a, b in pairwise(bounds)]
        paragraphs.append([tokenizer.decode(i).strip() for i in ids])  # type: ignore[attr-defined]
    return paragraphs


def load_release(folder: str) -> Score:
    """Returns how a release scores candidates: as sentence-transformers' CrossEncoder, or, where its config names no
    head for pairs, by its cosine. CrossEncoder would draw one at random.

    Raises KinspanError where it cannot be loaded.
    """
    from sentence_transformers import CrossEncoder

    config = read_object(Path(folder) / "config.json", "release it again")
    if not any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or []):
        return load_bi_encoder(folder, "--model")
    encoder = _load("--model", folder, CrossEncoder)
    return lambda question: encoder.predict([(question.sentence, text) for text in question.candidates])


def load_bi_encoder(folder: str, flag: str = "--start") -> Score:
    """Returns how an encoder scores candidates without any training here: by the cosine of its embeddings, with the
    pooling that sentence-transformers finds in its folder, or else the mean.

    Raises KinspanError where it cannot be loaded.
    """
    import torch
    from sentence_transformers import SentenceTransformer

    encoder = _load(flag, folder, SentenceTransformer, model_kwargs={"dtype": torch.float32})

    def score(question: RankedSentence) -> np.ndarray:
        texts = [question.sentence, *question.candidates]
        embeddings = encoder.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        return embeddings[1:] @ embeddings[0]

    return score


def _load(flag: str, folder: str, kind: Callable[..., Any], **options: Any) -> Any:
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # a release has heads that one of its classes does not use
    try:
        return kind(folder, trust_remote_code=False, **options)
    except Exception as error:  # a damaged file, a missing one: one line to the user
        raise KinspanError(f"{flag} {folder} cannot be loaded: {quote_first_line(error)}") from error


def rank_sentences(score: Score, question: RankedSentence) -> list[tuple[bool, str]]:
    """Returns the question's candidates, the best first: whether it shares the paragraph, and the sentence."""
    order = np.argsort(-score(question), kind="stable").tolist()
    return [(question.same_paragraph[number], question.candidates[number]) for number in order]


def compute_aucs(score: Score, questions: list[RankedSentence]) -> np.ndarray:
    """Returns for each question how often a sentence of the same paragraph is ranked above another one: ``[Q]``."""
    return np.array([roc_auc_score(q.same_paragraph, score(q)) for q in questions])
