"""Measures how well a model tells held-out pairs of an objective apart: accuracy, F1 and AUC with intervals."""

import json
from dataclasses import dataclass
from typing import Literal

from data_pipeline.core.settings import ABOVE_0, REQUIRED, SEEDS, cache_dir, cache_gb, cache_settings, setting
from data_pipeline.corpus import Corpus
from launch._cli import parse
from objectives import parse_mixture

DESCRIPTION = """Validation as in table 3 of Di Liello et al., 2022: the same held-out pairs for every model.

Scores a release, any sequence classifier with 1 or 2 labels, BERT with its next-sentence head, or ALBERT with its
sentence-order head. Where the model's tokenizer is not the corpus's, texts are decoded and encoded again; tokens of
RoBERTa decode to the exact text, those of uncased BERT to lower case.
Prints accuracy, F1 and AUC over all pairs, and of positives against hard and easy negatives alone, with 95% confidence
intervals (bootstrap over anchors), the same at one positive in two, and with --json a line of JSON after them."""

EPILOG = """examples:
  kinspan evaluate pairs --model releases/ssp --corpus corpora/docs --objective ssp
  kinspan evaluate pairs --model bert-base-uncased --corpus corpora/docs --objective nsp"""


@dataclass
class EvaluatePairsConfig:
    """Flags of this entry."""

    model: str = setting(REQUIRED, "A release, another weights folder, or a hub name.", is_model=True)
    corpus: str = setting(
        REQUIRED, "Corpus folder, or the address of a remote copy; use the same one for all models that are compared."
    )
    objective: str = setting(
        REQUIRED, "As for kinspan pretrain; of a mixture, each objective is measured, and weights do not matter."
    )
    sampling: Literal["matched", "paper"] = setting("matched", "As for kinspan pretrain.")
    anchors: int = setting(1000, "Number of held-out anchors: the first in the order of the seed.", within=ABOVE_0)
    max_length: int | None = setting(None, "Most tokens of a pair. Without it: each objective's own.", within=ABOVE_0)
    micro_batch_size: int = setting(64, "Most pairs in one forward pass.", within=ABOVE_0, old_name="batch_size")
    seed: int = setting(0, "Seed of the order of anchors, their spans and the bootstrap.", within=SEEDS)
    cache_dir: str | None = cache_dir()
    cache_gb: float = cache_gb()
    json: bool = setting(False, "Print the figures as a line of JSON too, last.")


def main() -> None:
    config = parse(EvaluatePairsConfig, DESCRIPTION, EPILOG)
    corpus = Corpus(config.corpus, cache=cache_settings(config))
    objectives = parse_mixture(config.objective, config.sampling)
    from pretrain.evaluation.pair_tests import evaluate_pairs, format_figures
    from pretrain.modeling.scorer import load_scorer  # after what needs no model to be checked
    from pretrain.release.folder import fingerprint_model

    result = evaluate_pairs(
        load_scorer(config.model),
        corpus,
        objectives,
        config.anchors,
        config.max_length,
        config.micro_batch_size,
        config.seed,
    )
    print(format_figures(result))
    if config.json:
        print(json.dumps({**result, "fingerprints": {"model": fingerprint_model(config.model)}}))
