"""Loads a release as a CrossEncoder and ranks the sentences of a held-out document for one of them."""

import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

import numpy as np
from sklearn.metrics import roc_auc_score

from data_pipeline import tokenizers
from data_pipeline.corpus import Corpus, Shard
from data_pipeline.errors import KinspanError, first_line
from launch._cli import parse, run
from pretrain.modeling.default_model import default_model
from pretrain.planning.defaults import default_corpus

DESCRIPTION = """Ranks the sentences of one held-out document for a sentence taken from it.

The release is loaded with sentence-transformers alone. A good one ranks high the sentences of the paragraph
that the sentence was taken from; they are marked with *."""


@dataclass
class RankConfig:
    """Flags of this entry."""

    release: str = field(metadata={"help": "Folder written by launch/release.py."})
    corpus: str | None = field(default=None, metadata={"help": "Corpus folder. Default: the embedded one."})
    average_over: int = field(default=30, metadata={"help": "Documents that the closing figure is over."})
    document: int = field(default=0, metadata={"help": "Which of the suitable held-out documents, from 0."})


@dataclass(frozen=True)
class Question:
    """A sentence, and the other sentences of its document with whether they share its paragraph."""

    title: str
    sentence: str
    candidates: list[str]
    same_paragraph: list[bool]


def questions(corpus: Corpus, tokenizer: object) -> list[Question]:
    """One for each held-out document of 10-60 sentences with a paragraph of three or more: its longest sentence."""
    found = []
    for number in range(len(corpus.manifest.shards)):
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


def main() -> None:
    config = parse(RankConfig, DESCRIPTION)
    if not (Path(config.release) / "config.json").is_file():
        raise KinspanError(f"--release {config.release} is no release: make one with launch/release.py")
    corpus = Corpus(config.corpus or default_corpus(tokenizers.load_tokenizer(default_model())))
    found = questions(corpus, tokenizers.load_tokenizer(str(corpus.folder / "tokenizer")))
    if not 0 <= config.document < len(found):
        raise KinspanError(f"--document {config.document}: the corpus has {len(found)} suitable held-out documents")
    question = found[config.document]
    from sentence_transformers import CrossEncoder
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        encoder = CrossEncoder(config.release, trust_remote_code=False)
    except Exception as error:  # a damaged file, a missing one: one line to the user
        raise KinspanError(f"--release {config.release} cannot be loaded: {first_line(error)}") from error
    ranked = encoder.rank(question.sentence, question.candidates)
    print(f"\nheld-out document: {question.title}\nsentence: {question.sentence}\n")
    for place, hit in enumerate(ranked[:8], 1):
        number = int(hit["corpus_id"])
        mark = "*" if question.same_paragraph[number] else " "
        print(f"{place:2d}. {mark} {hit['score']:.3f}  {question.candidates[number][:150]}")
    print(f"\n* from the same paragraph ({sum(question.same_paragraph)} of {len(ranked)} candidates)")
    asked = found[: config.average_over]
    aucs = [roc_auc_score(q.same_paragraph, encoder.predict([(q.sentence, c) for c in q.candidates])) for q in asked]
    print(
        f"over {len(asked)} such documents, a sentence of the same paragraph is ranked above another one in "
        f"{100 * np.mean(aucs):.0f}% of cases (by chance 50%)"
    )


if __name__ == "__main__":
    run(main)
