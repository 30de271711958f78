"""Validation: all ranks together measure the model on held-out pairs, the same ones every time."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from data_pipeline.errors import KinspanError
from data_pipeline.sampling.batch import Batch
from data_pipeline.sampling.pairs import EASY, HARD, POSITIVE
from data_pipeline.sampling.stream import PairStream
from pretrain.batches import to_tensors
from pretrain.metrics import compute_figures, group_parts
from pretrain.modeling.losses import PAPER_WEIGHTS, LossWeights
from pretrain.runtime.layout import Layout
from pretrain.runtime.ranks import sum_by_name, sum_over_ranks

SEED = 0  # of validation's order, spans and masks; it is not the run's, so that runs can be compared


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

    Areas are over all pairs, against hard and easy negatives alone, and of each part X of a mixture, ``X/pair_auc``.

    layout: of training, by which these pairs are cut too
    mark:   is told of each micro-batch, for the watchdog
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
    return {name: float(roc_auc_score(labels[own], scores[own])) for name, own in both.items()}
