"""Validation: the same held-out pairs every time, on all ranks together."""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from sklearn.metrics import roc_auc_score

from data_pipeline.errors import KinspanError
from data_pipeline.stream import PairStream

from .batches import Layout, to_tensors
from .metrics import figures, summed
from .model import STATS

SEED = 0  # of validation's order, spans and masks: not the run's, so that runs compare


@torch.no_grad()
def evaluate(
    engine: Any,
    stream: PairStream,
    num_pairs: int,
    micro: int,
    rank: int,
    world: int,
    weights: tuple[float, float] = (1.0, 1.0),
) -> dict[str, float]:
    """Losses, accuracies, F1 and the area under the ROC curve of the first ``num_pairs`` validation pairs."""
    num_pairs = min(num_pairs, stream.epoch_pairs)
    layout = Layout(num_pairs, micro, world)
    scores = torch.zeros(num_pairs, dtype=torch.float64, device=engine.device)
    stats = torch.zeros(len(STATS), dtype=torch.float64, device=engine.device)
    engine.eval()
    for start, end in layout.micro_batches(rank):
        batch = stream.batch(start, max(end - start, 1))  # ZeRO-3 needs a forward of every rank
        _, sums, logits = engine(**to_tensors(batch, engine.device), mlm_scale=1.0, pair_scale=1.0)
        if end > start:
            scores[start:end] = logits.double()
            stats += sums
    engine.train()
    if world > 1:
        dist.all_reduce(scores)
    out = figures(summed(stats), weights)
    labels = np.concatenate([(rows.kinds == 0) for rows in stream.pairs(0, num_pairs)])
    if not torch.isfinite(scores).all():
        raise KinspanError("the model's scores are not finite: lower --learning_rate, with another --output_dir")
    if 0 < labels.sum() < len(labels):
        out["pair_auc"] = float(roc_auc_score(labels, scores.cpu().numpy()))
    return out
