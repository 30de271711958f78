"""Ranks the sentences of a held-out document for one of them: with a release, and with the start's own cosine."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_pipeline import tokenizers
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, NOT_BELOW_0, REQUIRED, cache_dir, cache_gb, cache_settings, setting
from data_pipeline.corpus import Corpus
from launch._cli import parse
from pretrain.evaluation.document_ranking import (
    RankedSentence,
    Score,
    compute_aucs,
    find_questions,
    load_bi_encoder,
    load_release,
    rank_sentences,
)
from pretrain.modeling.default_model import default_model, name_installed
from pretrain.planning.defaults import default_corpus

DESCRIPTION = """Ranks the sentences of one held-out document for a sentence taken from it, twice, side by side: by the
cosine of the encoder that training started from, and by the release (a bi-encoder's by its own cosine). Sentences of
the paragraph that the sentence was taken from are marked with *; a good ranking has them first.

Both are loaded with sentence-transformers alone. Below, the area under the ROC curve (AUC) of both over many held-out
documents says which one ranks better, also where that is the cosine."""

EPILOG = """examples:
  kinspan show document --model runs/quickstart/release
  kinspan show document --model releases/docs --start path/to/start --corpus corpora/docs --document 3"""

SHOWN, WIDTH = 8, 62  # sentences, and characters of each


@dataclass
class RankConfig:
    """Flags of this entry."""

    model: str = setting(REQUIRED, "A release: a folder that kinspan release wrote.", old_name="release")
    start: str | None = setting(
        None,
        "What training started from, or any other model that embeds sentences, to compare with. Without it: "
        "all-MiniLM-L6-v2, which is installed with this package.",
        is_model=True,
    )
    corpus: str | None = setting(
        None,
        "Corpus folder, or the address of a remote copy. Without it: the documentation of Python and of "
        "the pinned packages.",
    )
    cache_dir: str | None = cache_dir()
    cache_gb: float = cache_gb()
    average_over: int = setting(100, "Most documents that the closing figures are averaged over.", within=ABOVE_0)
    document: int = setting(0, "Which of the suitable held-out documents, counted from 0.", within=NOT_BELOW_0)


def main() -> None:
    config = parse(RankConfig, DESCRIPTION, EPILOG)
    if not (Path(config.model) / "config.json").is_file():
        raise KinspanError(
            f"--model {config.model} is no release of a whole model (no config.json): make one with kinspan release"
        )
    place = config.corpus or default_corpus(tokenizers.load_tokenizer(default_model()))
    corpus = Corpus(place, cache=cache_settings(config))
    questions = find_questions(corpus, tokenizers.load_tokenizer(corpus.tokenizer_folder))
    if config.document >= len(questions):
        raise KinspanError(f"--document {config.document}: the corpus has {len(questions)} suitable held-out documents")
    start = config.start or default_model()
    systems = {
        f"cosine of {tokenizers.shorten_name(name_installed(start))}": load_bi_encoder(start),
        config.model: load_release(config.model),
    }
    _show_rankings(systems, questions[config.document])
    _show_figures(systems, questions[: config.average_over])


def _show_rankings(systems: dict[str, Score], question: RankedSentence) -> None:
    """Prints how both rank the sentences of one document, side by side."""
    tidy = tokenizers.tidy_decoded
    print(f"\nheld-out document: {question.title}\nsentence: {tidy(question.sentence)}\n")
    print("    " + "".join(f"  {name:<{WIDTH}.{WIDTH}}" for name in systems).rstrip())
    rankings = [rank_sentences(score, question)[:SHOWN] for score in systems.values()]
    for place, cells in enumerate(zip(*rankings, strict=True), 1):
        texts = (f"{'*' if same else ' '} {tidy(text):<{WIDTH}.{WIDTH}}" for same, text in cells)
        print(f"{place:2d}. " + "".join(texts).rstrip())
    print(f"\n* from the same paragraph ({sum(question.same_paragraph)} of {len(question.candidates)} candidates)")


def _show_figures(systems: dict[str, Score], questions: list[RankedSentence]) -> None:
    """Prints the mean AUC of both over the documents, and on how many of them which one is better."""
    from scipy.stats import binomtest

    aucs = {name: compute_aucs(score, questions) for name, score in systems.items()}
    print(f"\nmean AUC over {len(questions)} held-out documents (1: all sentences of the paragraph first; 0.5: chance)")
    for name, of_system in aucs.items():
        print(f"  {np.mean(of_system):.3f}  {name}")
    cosine, release = aucs.values()
    wins, losses = int((release > cosine).sum()), int((release < cosine).sum())
    p = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    if p >= 0.05:
        verdict = "no difference is shown"
    else:
        verdict = "the release ranks better" if wins > losses else "the cosine of the start ranks better"
    print(f"the release is better on {wins} documents and worse on {losses} (sign test p {p:.3f}): {verdict}")
