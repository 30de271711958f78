"""Shows the pairs that training would see: for people, and as JSON for programs."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from data_pipeline import tokenizers
from data_pipeline.browse import decode_pairs, format_pair
from data_pipeline.core.command_line import parse
from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, NOT_BELOW_0, SEEDS, setting
from data_pipeline.sampling.stream import PairStream
from pretrain.config import VALIDATION_SEED, DataSettings
from pretrain.planning.corpora import build_mixture, drop_untrainable, list_sources, mix_validation, open_corpora

log = logging.getLogger(__name__)

DESCRIPTION = """Prints training pairs of a corpus as text, by their index in the order that a seed gives.

The pairs are those that kinspan pretrain with the same --objective, --sampling, --seed and --max_length trains on:
step k of a global batch of B sees the indices from k * B up to, but not including, (k + 1) * B."""

EPILOG = """examples:
  kinspan show pairs --corpus corpora/docs --count 10
  kinspan show pairs --corpus corpora/docs --objective ssp:2+psd:1 --start 6400 --count 64 --json
  kinspan show pairs --corpus s3://bucket/wiki=3 corpora/news=1,psd --cache_dir /local/cache"""

MAX_PAIRS = 2**48  # random numbers are not distinct for higher indices


@dataclass
class InspectConfig(DataSettings):
    objective: str = setting("ssp")
    """As for kinspan pretrain: ssp, all, ssp:2+sp:1 ..."""
    pair_loss: Literal["contrastive"] | None = setting(None)
    """As for kinspan pretrain."""
    own_negatives: int | None = setting(None, ABOVE_0, needs="pair_loss")
    """As for kinspan pretrain."""
    global_batch_size: int = setting(64, ABOVE_0, needs="corpus_schedule")
    """As for kinspan pretrain."""
    split: Literal["train", "validation"] = setting("train")
    """Split that the documents are from."""
    start: int = setting(0, NOT_BELOW_0)
    """Index of the first pair."""
    count: int = setting(5, ABOVE_0)
    """Number of pairs."""
    seed: int | None = setting(None, SEEDS)
    """The run's seed. Without it: 1, or 0 for --split validation, as in every run."""
    json: bool = setting(False)
    """Print one JSON object per line."""


def main() -> Iterator[str]:
    config = parse(InspectConfig, DESCRIPTION, EPILOG)
    if config.start + config.count >= MAX_PAIRS:
        raise KinspanError(f"--start {config.start} --count {config.count}: their sum must be below {MAX_PAIRS}")
    sources = list_sources(config)
    mixture = build_mixture(config, sources)
    corpora = open_corpora(sources, config.cache, lambda: tokenizers.load_tokenizer(default_model()))
    tokenizer = tokenizers.load_tokenizer(corpora[0].tokenizer_folder)
    mixture, notes = drop_untrainable(mixture.read_from(*corpora))
    default_seed = 1
    if config.split == "validation":
        mixture, unvalidated = mix_validation(mixture)
        notes, default_seed = [*notes, *unvalidated], VALIDATION_SEED
    for note in notes:
        log.info(note)
    stream = PairStream(
        mixture,
        template=tokenizers.read_template(tokenizer, alone=bool(config.pair_loss)),
        seed=default_seed if config.seed is None else config.seed,
        split=config.split,
        max_length=config.max_length,
    )
    for pair in decode_pairs(stream, tokenizer, config.start, config.count):
        yield json.dumps(pair, ensure_ascii=False) if config.json else format_pair(pair) + "\n"
