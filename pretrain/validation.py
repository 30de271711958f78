"""Validation: all ranks together measure the model on held-out pairs, the same ones every time."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from data_pipeline.core.errors import KinspanError
from data_pipeline.sampling.batch import Batch
from data_pipeline.sampling.pairs import EASY, HARD, POSITIVE
from data_pipeline.sampling.stream import PairStream
from pretrain.batches import Inputs, to_tensors
from pretrain.engine.deepspeed_compat import Engine
from pretrain.engine.layout import Layout
from pretrain.engine.ranks import sum_by_name, sum_over_ranks
from pretrain.engine.stop import interrupt_if_asked
from pretrain.engine.watch import note_place
from pretrain.metrics import compute_figures, group_parts
from pretrain.modeling.losses import PAPER_WEIGHTS, LossWeights
from pretrain.modeling.siamese.cached import split_rows
from pretrain.modeling.siamese.losses import add_up_queries, bar_known, compare_texts


def run_model(
    engine: Engine, stream: PairStream, layout: Layout, rank: int, weights: LossWeights
) -> Iterator[tuple[slice, Batch, Inputs, tuple[torch.Tensor, ...]]]:
    """Runs the model on this rank's share of the held-out pairs; yields rows, micro-batch, inputs and output."""
    first, end = layout.share(rank)
    share = stream.batch(first, max(end - first, 1))
    engine.eval()
    for a, b in layout.cut(share.lengths[: end - first]):
        note_place(f"validation, pairs {first + a} to {first + b}")
        interrupt_if_asked()
        # For an empty micro-batch a pair runs that does not count: under ZeRO 3 all ranks must run the model
        batch = share.cut(a, b) if b > a else share.cut(0, 1)
        inputs = to_tensors(batch, engine.device)
        outputs = engine(**inputs, scales=dict.fromkeys(weights._fields, 1.0))
        if b > a:
            yield slice(first + a, first + b), batch, inputs, outputs
    engine.train()


@torch.no_grad()
def evaluate(
    engine: Engine, stream: PairStream, num_pairs: int, layout: Layout, rank: int, weights: LossWeights = PAPER_WEIGHTS
) -> dict[str, float]:
    """Returns losses, accuracies, F1 and areas under the ROC curve of the first ``num_pairs`` validation pairs.

    pair_auc_hard, _easy: the positives against this kind of negatives alone
    X/pair_auc:           part X of a mixture
    layout:               the layout of training, by which these pairs are cut too
    """
    num_pairs, names = min(num_pairs, stream.epoch_pairs), engine.module.sum_names
    results = torch.zeros(3, num_pairs, dtype=torch.float64, device=engine.device)  # scores, kinds, parts
    stats = torch.zeros(len(names), dtype=torch.float64, device=engine.device)
    layout = replace(layout, size=num_pairs)
    for rows, _, inputs, (_, sums, logits) in run_model(engine, stream, layout, rank, weights):
        results[:, rows] = torch.stack([x.double() for x in (logits, inputs["kinds"], inputs["part"])])
        stats += sums
    results = sum_over_ranks(results)  # each column is filled by one rank
    if not torch.isfinite(results).all():
        raise KinspanError("the model's scores are not finite: lower --learning_rate, with another --output_dir")
    scores, kinds, part = results.cpu().numpy()
    areas = _compute_areas(scores, kinds, part, stream.mixture.names)
    return compute_figures(sum_by_name(stats, names), weights) | areas


def _compute_areas(scores: np.ndarray, kinds: np.ndarray, part: np.ndarray, parts: tuple[str, ...]) -> dict[str, float]:
    """Returns areas under the ROC curve by name, if there are positives and negatives. Arrays: ``[num_pairs]``"""
    rows = {"pair_auc": np.ones(len(scores), dtype=bool)}
    rows |= {f"pair_auc_{n}": (kinds == POSITIVE) | (kinds == k) for n, k in (("hard", HARD), ("easy", EASY))}
    rows |= {f"{name}/pair_auc": np.isin(part, indices) for name, indices in group_parts(parts).items()}
    labels = kinds == POSITIVE
    usable = {name: mask for name, mask in rows.items() if 0 < labels[mask].sum() < mask.sum()}
    return {name: compute_auc(labels[mask], scores[mask]) for name, mask in usable.items()}


def compute_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Returns the area under the ROC curve: how often a positive scores above a negative, ties counting half."""
    _, position, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[position]
    positives = int(labels.sum())
    above = ranks[labels].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(labels) - positives)))


@torch.no_grad()
def evaluate_retrieval(
    engine: Engine, stream: PairStream, num_pairs: int, layout: Layout, rank: int, weights: LossWeights
) -> dict[str, float]:
    """Returns losses, MRR and R@1 of the first ``num_pairs`` validation pairs, among all of their texts."""
    num_pairs, per_pair = min(num_pairs, stream.epoch_pairs), stream.sequences_per_pair
    layout = replace(layout, size=num_pairs)
    model = engine.module
    stats = torch.zeros(len(model.sum_names), dtype=torch.float64, device=engine.device)
    texts = torch.zeros(num_pairs, per_pair, model.config.hidden_size, device=engine.device)
    part = torch.zeros(num_pairs, dtype=torch.int64, device=engine.device)
    groups = torch.zeros(num_pairs, per_pair, 2, dtype=torch.int64, device=engine.device)
    for rows, batch, inputs, (_, sums, embeddings) in run_model(engine, stream, layout, rank, weights):
        texts[rows], part[rows] = embeddings, inputs["part"]
        groups[rows] = torch.from_numpy(batch.groups).unflatten(0, (-1, per_pair)).to(engine.device)
        stats += sums
    texts, part, groups = (sum_over_ranks(rows) for rows in (texts, part, groups))  # each row is filled by one rank
    if not torch.isfinite(texts).all():
        raise KinspanError("the model's embeddings are not finite: lower --learning_rate, with another --output_dir")
    pair_sums = stats[-len(model.pair_sum_names) :]
    for rows in split_rows(*layout.share(rank), num_pairs * (per_pair - 1)):
        compared = compare_texts(texts, rows, model.temperature, bar_known(groups, rows))
        pair_sums += add_up_queries(compared, part[rows], len(model.objectives))
    return compute_figures(sum_by_name(stats, model.sum_names), weights)
