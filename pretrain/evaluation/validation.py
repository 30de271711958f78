"""Validation: all ranks together measure the model on held-out pairs, the same ones every time."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from data_pipeline.core.errors import KinspanError
from data_pipeline.sampling.batch import Batch
from data_pipeline.sampling.pairs import EASY, HARD, POSITIVE
from data_pipeline.sampling.stream import PairStream
from pretrain.batches import to_tensors
from pretrain.engine.layout import Layout
from pretrain.engine.ranks import sum_by_name, sum_over_ranks
from pretrain.metrics import compute_figures, group_parts
from pretrain.modeling.losses import PAPER_WEIGHTS, LossWeights
from pretrain.modeling.siamese.cached import split_rows
from pretrain.modeling.siamese.losses import add_up_queries, bar_known, compare_texts


class Validation(NamedTuple):
    """What a validation found: figures by name, and each pair's logit, of a bi-encoder its cosine, ``[num_pairs]``."""

    figures: dict[str, float]
    logits: np.ndarray


def run_model(
    engine: Any, stream: PairStream, layout: Layout, rank: int, weights: LossWeights, mark: Callable[[str], None]
) -> Iterator[tuple[slice, Batch, dict[str, Any], Any]]:
    """Runs the model on this rank's share of the first ``layout.size`` held-out pairs.

    Yields of each micro-batch its place among all pairs, itself, the inputs, and what the model returned.
    """
    first, end = layout.share(rank)
    share = stream.batch(first, max(end - first, 1))
    engine.eval()
    for a, b in layout.cut(share.lengths[: end - first]):
        mark(f"validation, pairs {first + a} to {first + b}")
        # Where there is none, a pair runs that does not count: under ZeRO 3 all ranks must run the model
        batch = share.cut(a, b) if b > a else share.cut(0, 1)
        inputs = to_tensors(batch, engine.device)
        outputs = engine(**inputs, scales=dict.fromkeys(weights._fields, 1.0))
        if b > a:
            yield slice(first + a, first + b), batch, inputs, outputs
    engine.train()


@torch.no_grad()
def evaluate(
    engine: Any,
    stream: PairStream,
    num_pairs: int,
    layout: Layout,
    rank: int,
    weights: LossWeights = PAPER_WEIGHTS,
    mark: Callable[[str], None] = lambda place: None,
) -> Validation:
    """Losses, accuracies, F1 and areas under the ROC curve of the first ``num_pairs`` validation pairs.

    pair_auc_hard, _easy: of the positives against that kind of negatives alone
    X/pair_auc:           of part X of a mixture
    layout:               of training, by which these pairs are cut too
    mark:                 is told of each micro-batch, for the watchdog

    Raises KinspanError where a score is not finite.
    """
    num_pairs, names = min(num_pairs, stream.epoch_pairs), engine.module.sum_names
    found = torch.zeros(3, num_pairs, dtype=torch.float64, device=engine.device)  # scores, kinds, parts
    stats = torch.zeros(len(names), dtype=torch.float64, device=engine.device)
    for rows, _, inputs, (_, sums, logits) in run_model(
        engine, stream, replace(layout, size=num_pairs), rank, weights, mark
    ):
        found[:, rows] = torch.stack([x.double() for x in (logits, inputs["kinds"], inputs["part"])])
        stats += sums
    found = sum_over_ranks(found)  # each column is filled by one rank
    if not torch.isfinite(found).all():
        raise KinspanError("the model's scores are not finite: lower --learning_rate, with another --output_dir")
    scores, kinds, part = found.cpu().numpy()
    areas = _compute_areas(scores, kinds, part, stream.mixture.names)
    return Validation(compute_figures(sum_by_name(stats, names), weights) | areas, scores)


def _compute_areas(scores: np.ndarray, kinds: np.ndarray, part: np.ndarray, parts: tuple[str, ...]) -> dict[str, float]:
    """Areas under the ROC curve, by name; one that lacks positives or negatives is left out. Arguments:
    ``[num_pairs]``"""
    rows = {"pair_auc": np.ones(len(scores), dtype=bool)}
    rows |= {f"pair_auc_{n}": (kinds == POSITIVE) | (kinds == k) for n, k in (("hard", HARD), ("easy", EASY))}
    rows |= {f"{name}/pair_auc": np.isin(part, numbers) for name, numbers in group_parts(parts).items()}
    labels = kinds == POSITIVE
    both = {name: own for name, own in rows.items() if 0 < labels[own].sum() < own.sum()}
    return {name: compute_auc(labels[own], scores[own]) for name, own in both.items()}


def compute_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Returns the area under the ROC curve: how often a positive scores above a negative, ties counting half."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positives = int(labels.sum())
    above = ranks[labels].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(labels) - positives)))


@torch.no_grad()
def evaluate_retrieval(
    engine: Any,
    stream: PairStream,
    num_pairs: int,
    layout: Layout,
    rank: int,
    weights: LossWeights,
    mark: Callable[[str], None] = lambda place: None,
) -> Validation:
    """Losses, MRR and R@1 of the first ``num_pairs`` validation pairs, whose texts are all candidates of each query.

    The candidates are those of the whole validation and not of a batch, so that runs with other batches compare.
    """
    num_pairs, per_pair = min(num_pairs, stream.epoch_pairs), stream.per_pair
    layout = replace(layout, size=num_pairs)
    model = engine.module
    stats = torch.zeros(len(model.sum_names), dtype=torch.float64, device=engine.device)
    every = torch.zeros(num_pairs, per_pair, model.config.hidden_size, device=engine.device)
    part = torch.zeros(num_pairs, dtype=torch.int64, device=engine.device)
    groups = torch.zeros(num_pairs, per_pair, 2, dtype=torch.int64, device=engine.device)
    for rows, batch, inputs, (_, sums, embeddings) in run_model(engine, stream, layout, rank, weights, mark):
        every[rows], part[rows] = embeddings, inputs["part"]
        groups[rows] = torch.from_numpy(batch.groups).unflatten(0, (-1, per_pair)).to(engine.device)
        stats += sums
    every, part, groups = (sum_over_ranks(rows) for rows in (every, part, groups))  # each row is filled by one rank
    if not torch.isfinite(every).all():
        raise KinspanError("the model's embeddings are not finite: lower --learning_rate, with another --output_dir")
    cosines = torch.zeros(num_pairs, dtype=torch.float64, device=engine.device)
    of_pairs = stats[-len(model.pair_sum_names) :]
    for rows in split_rows(*layout.share(rank), num_pairs * (per_pair - 1)):
        compared = compare_texts(every, rows, model.temperature, model.symmetric, bar_known(groups, rows))
        of_pairs += add_up_queries(compared, part[rows], len(model.objectives))
        cosines[rows] = compared.cosines.double()
    figures = compute_figures(sum_by_name(stats, model.sum_names), weights)
    return Validation(figures, sum_over_ranks(cosines).cpu().numpy())
