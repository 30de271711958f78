"""A quick fine-tuning of what is being pre-trained: does pre-training help ranking, and from which step on?

Its figures lie below those of launch/finetune.py, which sees all pairs and keeps its best epoch. They compare with the
figures of the same probe at other steps and in other runs.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.progress import show_progress
from finetune.data.answers import AnswerSet
from finetune.data.filters import CLEAN, filter_questions
from finetune.data.registry import load_split
from finetune.evaluation.metrics import compute_means, compute_question_metrics
from finetune.ranking.encode import encode_pairs
from finetune.ranking.ranker import check_takes, load_own_tokenizer, load_ranker
from finetune.ranking.score import score_pairs
from pretrain.engine.engine import set_learning_rate
from pretrain.engine.layout import Layout
from pretrain.engine.schedule import Schedule
from pretrain.engine.world import read_launcher_variables

from .config import FinetuneConfig
from .engine import make_engine
from .groups import draw_lists, make_generator
from .losses import listwise
from .update import Trainer, update_ranker

SEED = 0  # of pairs, order and dropout; it is not the seed of the run, so that runs compare
DEV_KEY = 2**34  # of the random numbers that draw dev questions
DEV_PAIRS = 10_000  # the most candidates to rank; the dev sets of WikiQA and TREC-QA are smaller
# A list is an answer and at most seven negatives: from few pairs the listwise loss learns more than the pointwise
LIST_SIZE, BATCH_LISTS, EPOCHS, LEARNING_RATE = 8, 2, 3, 5e-5
MAX_LENGTH = 128  # tokens of a pair, as in both papers


def make_probe(
    spec: str | None, *, num_pairs: int, every_steps: int, say: Callable[[str], None] = print
) -> Callable[[Path], dict[str, float]] | None:
    """The function that measures a release by fine-tuning a copy of it, as ``--probe`` asks.

    spec:      the data set, as of ``--probe``; without one there is no probe, and None is returned
    num_pairs: the most pairs that a probe fine-tunes on
    every_steps: the steps between two probes, for the screen

    Returns None on all ranks but the first, which alone probes. Raises KinspanError for a data set that is none, or
    that has nothing to learn from.
    """
    if spec is None or read_launcher_variables()[0]:
        return None
    try:
        train, dev = draw_probe_sets(spec, num_pairs)
    except KinspanError as error:
        raise KinspanError(f"--probe {error}") from error
    say(
        f"probe: every {every_steps} steps a copy is fine-tuned on {train.num_pairs:,} pairs of {train.name}, "
        f"and ranks the {dev.num_pairs:,} candidates of {dev.num_questions:,} dev questions"
    )
    return partial(measure_fine_tuned, train=train, dev=dev)


def draw_probe_sets(spec: str, num_pairs: int) -> tuple[AnswerSet, AnswerSet]:
    """What the probe trains on and what it ranks; the same every time.

    The training set has at most ``num_pairs`` pairs: answers, each with negatives of its question, and at least one of
    them. The dev set has whole clean questions, at least one, with at most DEV_PAIRS candidates together. Raises
    KinspanError.
    """
    train, dev = (filter_questions(load_split(spec, split)[0], CLEAN) for split in ("train", "dev"))
    lists = draw_lists(train, SEED, 0, LIST_SIZE)
    chosen = np.zeros(train.num_pairs, dtype=bool)
    chosen[lists.rows[: lists.starts[_count_fitting(lists.starts[1:], num_pairs)]]] = True
    order = make_generator(SEED, DEV_KEY).permutation(dev.num_questions)
    asked = order[: _count_fitting(np.cumsum(np.diff(dev.starts)[order]), DEV_PAIRS)]
    return train.keep(chosen), dev.take(np.sort(asked))


def _count_fitting(ends: np.ndarray, num_rows: int) -> int:
    """How many groups that end there have at most ``num_rows`` rows together; at least one."""
    return max(1, int(np.searchsorted(ends, num_rows, side="right")))


def measure_fine_tuned(folder: Path, train: AnswerSet, dev: AnswerSet) -> dict[str, float]:
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
    layout = Layout(BATCH_LISTS, BATCH_LISTS, 1)
    engine, _ = make_engine(ranker, settings, layout, None)
    trainer = Trainer(pairs=pairs, labels=train.labels, loss=listwise, layout=layout, rank=0, seed=SEED)
    epoch_steps = math.ceil(len(draw_lists(train, SEED, 0, LIST_SIZE)) / BATCH_LISTS)
    total = EPOCHS * epoch_steps
    schedule = Schedule("triangular", LEARNING_RATE, total // 10, total)
    for step in show_progress("probe", "steps", range(total), leave=False):
        if step % epoch_steps == 0:
            lists = draw_lists(train, SEED, step // epoch_steps, LIST_SIZE)
        first = step % epoch_steps * BATCH_LISTS
        set_learning_rate(engine, schedule.rate(step))
        update_ranker(engine, trainer, lists, np.arange(first, min(first + BATCH_LISTS, len(lists))), step)
    return compute_means(
        compute_question_metrics(dev, score_pairs(ranker.eval(), dev_pairs, engine.device, what="probe", alone=True))
    )
