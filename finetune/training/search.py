"""The search for batch size and learning rate by cross-validation over the training questions."""

import json
import logging
import shutil
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import JsonObject, write_atomically
from finetune.data.filters import find_kept
from finetune.data.folds import assign_folds, group_questions, iterate_folds
from finetune.evaluation.metrics import MAP
from pretrain.engine.log import read_metrics
from pretrain.engine.ranks import broadcast_from_rank_0

from .config import FinetuneConfig
from .setup import Ranks
from .stages import BEST, DEV, Data, make_target_stage
from .train import train_ranker

log = logging.getLogger(__name__)

SEED = 0


def search_settings(config: FinetuneConfig, data: Data, folder: Path, ranks: Ranks) -> FinetuneConfig:
    """Returns ``config`` with the batch size and learning rate whose MAP on held-out folds is highest on average.

    Di Liello et al., 2022, appendix B: "the best batch size out of {16, 32, 64} and learning rate ... using
    cross-validation". Each run trains on all folds but one, which also decides its early stopping, and is scored by
    its best validation there. ``search.json`` in ``folder`` holds the whole table.
    """
    assert config.search_folds is not None
    judging = find_kept(data.train, config.eval_filter)
    fold_of = assign_folds(group_questions(data.train), config.search_folds, np.maximum(judging, 1e-3))
    if (count := len(np.unique(fold_of[judging]))) < config.search_folds:
        raise KinspanError(f"--search_folds {config.search_folds}: {data.train.name} has questions for {count} folds")
    settings = list(product(config.search_batch_sizes, config.search_learning_rates))
    table: list[JsonObject] = []
    for number, (size, rate) in enumerate(settings, 1):
        trial = replace(config, batch_size=size, learning_rate=rate)
        peaks = _cross_validate(trial, data, fold_of, folder / f"batch-{size}-rate-{rate:g}", ranks)
        epochs, maps = ([peak[key] for peak in peaks] for key in ("epoch", MAP))
        mean = float(np.mean(maps))
        table.append({"batch_size": size, "learning_rate": rate, "map": mean, "folds": maps, "epochs": epochs})
        log.info("search %s of %s: batch %s, rate %g: MAP %.4f", number, len(settings), size, rate, mean)
    best = max(table, key=lambda row: row["map"])
    if ranks.rank == 0:
        write_atomically(folder / "search.json", json.dumps({"table": table, "best": best}, indent=1) + "\n")
    log.info("search: chosen are batch %s and learning rate %g", best["batch_size"], best["learning_rate"])
    if not any(best["epochs"]):
        log.warning("search: no update of any setting raised the MAP: try higher rates, or longer")
    return replace(config, batch_size=best["batch_size"], learning_rate=best["learning_rate"])


def _cross_validate(
    config: FinetuneConfig, data: Data, fold_of: np.ndarray, folder: Path, ranks: Ranks
) -> list[JsonObject]:
    """Trains once per fold with these settings; returns each run's best validation on its held-out fold."""
    peaks = []
    for fold, (trained, held_out) in enumerate(iterate_folds(fold_of)):
        dev = data.train.take(held_out)
        rest = replace(data, train=data.train.take(trained), dev=dev.take(find_kept(dev, config.eval_filter)))
        settings = replace(config, test_every_validation=False)
        stage = make_target_stage(settings, rest, SEED, str(config.model), "search")
        run = folder / f"fold-{fold}"
        train_ranker(stage, SEED, run, ranks)
        lines = broadcast_from_rank_0(partial(list[JsonObject], read_metrics(run)))
        validations = [line for line in lines if line["split"] == DEV]
        peaks.append(max(validations, key=lambda row: row[MAP]))  # the first of equals
        if ranks.rank == 0:
            shutil.rmtree(run / BEST, ignore_errors=True)  # the weights of all runs would fill a disk
    return peaks
