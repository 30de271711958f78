"""The search for batch size and learning rate by cross-validation over the training questions."""

import json
import logging
import shutil
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import write_atomically
from finetune.data.filters import find_kept
from finetune.evaluation.metrics import MAP
from finetune.ranking.fusion import split_folds
from pretrain.engine.log import complete_lines
from pretrain.engine.ranks import broadcast_from_rank_0

from .config import FinetuneConfig
from .engine import Ranks
from .plan import BEST, DEV
from .stages import Data, make_target_stage
from .train import train_ranker

log = logging.getLogger(__name__)

Curve = tuple[np.ndarray, np.ndarray]  # the epochs and the MAP of a run's validations

SEED = 0


def search_settings(config: FinetuneConfig, data: Data, folder: Path, ranks: Ranks) -> FinetuneConfig:
    """Returns ``config`` with the batch size and learning rate whose MAP on held-out folds is highest on average.

    Di Liello et al., 2022, appendix B: "the best batch size out of {16, 32, 64} and learning rate ... using
    cross-validation". Each run trains on all folds but one, which also decides its early stopping, and counts with its
    best validation there, as the ranker does that is trained with these settings afterwards. That is a little too high,
    by more where a run has more validations; a common epoch would score past the peak of settings that learn fast.
    ``search.json`` in ``folder`` holds the whole table. Raises KinspanError where there are fewer questions than folds.
    """
    assert config.search_folds is not None
    if data.train.num_questions < config.search_folds:
        raise KinspanError(
            f"--search_folds {config.search_folds}: {data.train.name} has {data.train.num_questions} training questions"
        )
    settings = list(product(config.search_batch_sizes, config.search_learning_rates))
    table: list[dict[str, Any]] = []
    for number, (size, rate) in enumerate(settings, 1):
        tried = replace(config, batch_size=size, learning_rate=rate)
        epochs, maps = find_peaks(_cross_validate(tried, data, folder / f"batch-{size}-rate-{rate:g}", ranks))
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


def find_peaks(curves: list[Curve]) -> tuple[list[float], list[float]]:
    """Returns for each run the epoch of its best validation, the first of equals, and the MAP there.

    curves: of each run, how the MAP on the held-out fold went over the epochs
    """
    peaks = [int(np.argmax(maps)) for _, maps in curves]
    epochs = [float(epochs[peak]) for (epochs, _), peak in zip(curves, peaks, strict=True)]
    return epochs, [float(maps[peak]) for (_, maps), peak in zip(curves, peaks, strict=True)]


def _cross_validate(config: FinetuneConfig, data: Data, folder: Path, ranks: Ranks) -> list[Curve]:
    """Trains once per fold with these settings; returns how the MAP on each held-out fold went over the epochs."""
    assert config.search_folds is not None
    fold_of = split_folds(data.train.num_questions, config.search_folds)
    curves = []
    for fold in range(config.search_folds):
        held_out = data.train.take(fold_of == fold)
        held_out = held_out.take(find_kept(held_out, config.eval_filter))
        rest = replace(data, train=data.train.take(fold_of != fold), dev=held_out)
        settings = replace(config, test_every_validation=False)
        stage = make_target_stage(settings, rest, SEED, str(config.model), "search")
        run = folder / f"fold-{fold}"
        train_ranker(config, stage, SEED, run, ranks)
        curve = broadcast_from_rank_0(partial(_read_curve, run))
        if not len(curve[0]):
            raise KinspanError(f"{run / 'metrics.jsonl'} has no validation: delete {run} to train it again")
        curves.append(curve)
        if ranks.rank == 0:
            shutil.rmtree(run / BEST, ignore_errors=True)  # the weights of so many runs would fill a disk
    return curves


def _read_curve(folder: Path) -> Curve:
    lines = [json.loads(line) for line in complete_lines(folder / "metrics.jsonl")]
    lines = [line for line in lines if line["split"] == DEV]
    return np.array([line["epoch"] for line in lines]), np.array([line[MAP] for line in lines])
