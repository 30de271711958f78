"""A quick fine-tuning of what is being pre-trained: does pre-training help ranking, and from which step on?

Its figures lie below those of launch/finetune.py, which sees all pairs and keeps its best epoch: they compare with the
same probe's at other steps and in other runs.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from data_pipeline.errors import KinspanError
from finetune.data.answers import AnswerSet
from finetune.data.filters import CLEAN, filter_questions
from finetune.data.registry import load_split
from finetune.evaluation.metrics import compute_means, compute_question_metrics
from finetune.ranking.encode import encode_pairs
from finetune.ranking.ranker import check_takes, load_own_tokenizer, load_ranker
from finetune.ranking.score import score_pairs
from pretrain.config import PretrainConfig
from pretrain.runtime.dropout import dropout_seed
from pretrain.runtime.engine import read_launcher_variables, set_learning_rate
from pretrain.runtime.layout import Layout
from pretrain.runtime.schedule import learning_rate_of

from .config import FinetuneConfig
from .engine import make_engine
from .groups import lists_of_epoch, random_of
from .losses import listwise

SEED = 0  # of pairs, order and dropout: not the run's, so that runs compare
DEV_KEY = 2**34  # of the random numbers that draw dev questions
DEV_PAIRS = 10_000  # at most: WikiQA's and TREC-QA's dev sets are whole
# Of few pairs the listwise loss learns more than the pointwise: an answer, and at most seven negatives
LIST_SIZE, BATCH_LISTS, EPOCHS, LEARNING_RATE = 8, 2, 3, 5e-5
MAX_LENGTH = 128  # tokens of a pair, both papers'


def make_probe(config: PretrainConfig, say: Callable[[str], None] = print) -> Callable[[Path], dict[str, float]] | None:
    """What ``--probe`` asks for; None without it, and on all ranks but the first, which alone probes.

    Raises KinspanError for a data set that is none, or that has nothing to learn from.
    """
    if config.probe is None or read_launcher_variables()[0]:
        return None
    try:
        train, dev = probe_sets(config.probe, config.probe_pairs)
    except KinspanError as error:
        raise KinspanError(f"--probe {error}") from error
    say(
        f"probe: every {config.probe_steps} steps a copy is fine-tuned on {train.num_pairs:,} pairs of {train.name}, "
        f"and ranks the {dev.num_pairs:,} candidates of {dev.num_questions:,} dev questions"
    )
    return partial(fine_tuned_figures, train=train, dev=dev)


def probe_sets(spec: str, num_pairs: int) -> tuple[AnswerSet, AnswerSet]:
    """At most ``num_pairs`` training pairs, answers with negatives of their questions; and whole clean dev questions.

    At least one answer with its negatives, and one dev question. The same every time. Raises KinspanError.
    """
    train, dev = (filter_questions(load_split(spec, split)[0], CLEAN) for split in ("train", "dev"))
    lists = lists_of_epoch(train, SEED, 0, LIST_SIZE)
    chosen = np.zeros(train.num_pairs, dtype=bool)
    chosen[lists.rows[: lists.starts[_fit(lists.starts[1:], num_pairs)]]] = True
    order = random_of(SEED, DEV_KEY).permutation(dev.num_questions)
    asked = order[: _fit(np.cumsum(np.diff(dev.starts)[order]), DEV_PAIRS)]
    return train.keep(chosen), dev.take(np.sort(asked))


def _fit(ends: np.ndarray, num_rows: int) -> int:
    """How many groups that end there have at most ``num_rows`` rows together; at least one."""
    return max(1, int(np.searchsorted(ends, num_rows, side="right")))


def fine_tuned_figures(folder: Path, train: AnswerSet, dev: AnswerSet) -> dict[str, float]:
    """MAP, MRR, P@1 and nDCG@10 on ``dev`` of the release in ``folder``, fine-tuned on ``train``.

    In this process alone: other ranks wait.
    """
    tokenizer = load_own_tokenizer(str(folder))
    ranker, _ = load_ranker(str(folder), SEED)
    try:
        check_takes(ranker, tokenizer, str(folder), MAX_LENGTH)
    except KinspanError as error:
        raise KinspanError(
            f"--probe has pairs of {MAX_LENGTH} tokens, too long for this model: leave it out"
        ) from error
    pairs, dev_pairs = (encode_pairs(data, tokenizer, MAX_LENGTH) for data in (train, dev))
    settings = FinetuneConfig(data=train.name, learning_rate=LEARNING_RATE)
    engine, _ = make_engine(ranker, settings, Layout(BATCH_LISTS, BATCH_LISTS, 1), None)
    ranker.train()
    epoch_steps = math.ceil(len(lists_of_epoch(train, SEED, 0, LIST_SIZE)) / BATCH_LISTS)
    total = EPOCHS * epoch_steps
    for step in tqdm(range(total), desc="probe", unit=" steps", leave=False, disable=None):
        if step % epoch_steps == 0:
            lists = lists_of_epoch(train, SEED, step // epoch_steps, LIST_SIZE)
        first = step % epoch_steps * BATCH_LISTS
        numbers = np.arange(first, min(first + BATCH_LISTS, len(lists)))
        rows, list_of = lists.some(numbers)
        labels, group_of = (torch.from_numpy(a).long().to(engine.device) for a in (train.labels[rows], list_of))
        set_learning_rate(engine, learning_rate_of(step, LEARNING_RATE, total // 10, total))
        torch.manual_seed(dropout_seed(SEED, step, 0))
        logits = engine(**pairs.pack(rows, engine.device))
        engine.backward(listwise(logits, labels, group_of) / len(numbers))
        engine.step()
    return compute_means(
        compute_question_metrics(dev, score_pairs(ranker.eval(), dev_pairs, engine.device, what="probe", alone=True))
    )
