"""Batch size and learning rate by cross-validation over the training questions."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_pipeline.errors import KinspanError
from finetune.data.answers import filtered

from .config import FinetuneConfig
from .engine import Ranks
from .groups import random_of
from .train import BEST, train_ranker

if TYPE_CHECKING:
    from .stages import Data

SEED = 0
FOLDS_KEY = 2**33  # of the random numbers that deal questions to folds


def folds(num_questions: int, count: int) -> np.ndarray:
    """``[Q]``: the fold of each question, sizes as even as can be."""
    return random_of(SEED, FOLDS_KEY).permutation(np.arange(num_questions) % count)


def searched(
    config: FinetuneConfig, data: "Data", folder: Path, ranks: Ranks, say: Callable[[str], None]
) -> FinetuneConfig:
    """``config`` with the batch size and learning rate of the highest MAP on held-out folds, in the mean.

    Di Liello et al., 2022, appendix B: "the best batch size out of {16, 32, 64} and learning rate ... using
    cross-validation". Each fold's training questions stop early by the fold itself. Raises KinspanError where there are
    fewer questions than folds.
    """
    from .stages import Data, target_stage

    assert config.search_folds is not None
    if data.train.num_questions < config.search_folds:
        raise KinspanError(
            f"--search_folds {config.search_folds}: {data.train.name} has {data.train.num_questions} training questions"
        )
    fold = folds(data.train.num_questions, config.search_folds)
    table: list[dict[str, Any]] = []
    for size, rate in product(config.search_batch_sizes, config.search_learning_rates):
        tried = replace(
            config, batch_size=size, learning_rate=rate, micro_batch_size=min(size, config.micro_batch_size)
        )
        maps = []
        for number in range(config.search_folds):
            own = Data(
                data.train.take(fold != number),
                filtered(data.train.take(fold == number), config.eval_filter),
                data.test,
                None,
                [],
            )
            stage = target_stage(replace(tried, test_every_validation=False), own, SEED, str(config.model), "search")
            where = folder / f"batch-{size}-rate-{rate:g}" / f"fold-{number}"
            maps.append(train_ranker(tried, stage, SEED, where, ranks)["dev_map"])
            if ranks.rank == 0:
                shutil.rmtree(where / BEST, ignore_errors=True)  # weights of so many runs fill a disk
        table.append({"batch_size": size, "learning_rate": rate, "map": float(np.mean(maps)), "folds": maps})
        say(f"search: batch {size}, learning rate {rate:g}: MAP {np.mean(maps):.4f} over {len(maps)} folds")
    best = max(table, key=lambda row: row["map"])
    if ranks.rank == 0:
        (folder / "search.json").write_text(json.dumps({"table": table, "best": best}, indent=1) + "\n")
    say(f"search: chosen are batch {best['batch_size']} and learning rate {best['learning_rate']:g}")
    return replace(config, batch_size=best["batch_size"], learning_rate=best["learning_rate"])
