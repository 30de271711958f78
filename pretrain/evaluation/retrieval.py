"""Validation of a bi-encoder: each held-out query's own text among the texts of all held-out pairs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from data_pipeline.errors import KinspanError
from data_pipeline.sampling.stream import PairStream
from pretrain.metrics import compute_figures
from pretrain.modeling.losses import LossWeights
from pretrain.modeling.siamese.cached import split_rows
from pretrain.modeling.siamese.losses import add_up_queries, bar_known, compare_texts
from pretrain.runtime.layout import Layout
from pretrain.runtime.ranks import sum_by_name, sum_over_ranks

from .validation import Validation, run_model


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
