"""A row of the study: trains what it needs, ranks every target, and returns what a line of results holds."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.evidence.work import describe_machine
from data_pipeline.files import read_object
from finetune.data.answers import AnswerSet
from finetune.ranking.bi_encoder import score_by_similarity
from finetune.ranking.encode import encode_pairs
from finetune.ranking.ranker import load_own_tokenizer, load_ranker
from finetune.ranking.score import load_classifier, score_pairs
from finetune.transfer.fusion import weigh_adapters
from finetune.transfer.matrix import Target
from launch.commands._adapters import RELEASE, train_all
from pretrain.config import PretrainConfig
from pretrain.finished import SUMMARY

from .materials import Places, summarize
from .recipe import COSINE, FUSION, MULTI, UNTRAINED, Row

FIRST_SEED = 1  # whose fusion is looked into


def run_row(
    row: Row, seed: int, of_fusion: list[Row], places: Places, targets: list[Target], length: int
) -> dict[str, Any]:
    """Trains and measures a row. Raises Stopped, with a checkpoint, where the command was asked to stop.

    of_fusion: the rows whose adapters a fusion weighs
    """
    began, spent = time.monotonic(), time.process_time()
    start = places.starts[row.start]
    weights: dict[str, Any] | None = None
    learned: dict[str, Any] | None = None
    score: Callable[[AnswerSet], np.ndarray]
    if row.arm == COSINE:
        score = lambda data: score_by_similarity(start, data, length)[0]  # noqa: E731
    elif row.arm == UNTRAINED:
        score = _load_untrained(start, seed, length)
    else:
        adapters = [train(one, seed, [], places) for one in of_fusion]
        folder = train(row, seed, adapters, places)
        learned = summarize_training(folder.parent)
        score = load_classifier(str(folder), length)[0]
        if row.arm == FUSION and seed == FIRST_SEED:
            weights = {t.name: weigh_adapters(str(folder), t.data, length).round(4).tolist() for t in targets}
    trained = time.process_time() - spent
    figures = {target.name: summarize(target.data, score(target.data)) for target in targets}
    if row.settings is not None:
        _tidy(row, seed, places)
    return {
        "targets": figures,
        "weights": weights,
        "training": learned,
        "seconds": round(time.monotonic() - began, 1),
        "processor_seconds": round(time.process_time() - spent, 1),
        "of_training": round(trained, 1),
        **describe_machine(),
    }


def train(row: Row, seed: int, adapters: list[Path], places: Places, **more: Any) -> Path:
    """Returns the release of a row's model, trained unless it is there.

    more: settings that differ from the row's
    """
    folder = name_run(row, seed, places)
    if not (folder / RELEASE).is_dir():
        settings = {**(row.settings or {}), "seed": seed, "model": places.starts[row.start], **more}
        settings |= {"corpus": [str(places.name_corpus(forum)) for forum in row.forums]}
        settings |= {"adapters": list(map(str, adapters)), "output_dir": str(folder)}
        train_all({row.name: PretrainConfig(**settings)}, lambda line: None)
    return folder / RELEASE


def summarize_training(run: Path) -> dict[str, Any]:
    """What tells whether a run learned anything: its last training loss, and how it does on held-out pairs."""
    told = read_object(run / SUMMARY, "delete its folder to have it trained again")
    first, last = told["first_validation"], told["last_validation"]
    return {
        "updates": told["steps"],
        "skipped": told["skipped_steps"],
        "loss": round(told["last_losses"]["pair_loss"], 4),
        "held_out_loss": [round(line["pair_loss"], 4) for line in (first, last)],
        "held_out_auc": [round(line["pair_auc"], 4) for line in (first, last)],
    }


def name_run(row: Row, seed: int, places: Places) -> Path:
    """The folder of a row's run."""
    return places.work / "trained" / f"{row.start}-{row.arm}-{row.fingerprint}-{seed}"


def _tidy(row: Row, seed: int, places: Places) -> None:
    """Keeps of a finished run the adapter alone, and of one that trained all weights nothing."""
    folder = name_run(row, seed, places)
    if row.arm in (MULTI, FUSION):
        shutil.rmtree(folder)
    else:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _load_untrained(start: str, seed: int, length: int) -> Callable[[AnswerSet], np.ndarray]:
    """What scores by the start's encoder and a pair head that was just drawn."""
    ranker, _ = load_ranker(start, seed, fresh_head=True)
    tokenizer = load_own_tokenizer(start)

    def score(data: AnswerSet) -> np.ndarray:
        return score_pairs(ranker.eval(), encode_pairs(data, tokenizer, length), torch.device("cpu"))

    return score
