"""The model of how fast many GPUs train, which scaling.py and costs.py use; benchmarks/SCALING.md explains it."""

import math
from dataclasses import dataclass

import numpy as np

from pretrain.runtime.layout import Layout

BUCKET = 5e7  # elements that ds_configs/zero1.json reduces or gathers at once


@dataclass(frozen=True)
class Cluster:
    """What is assumed of the machines: bytes/s are those that an all-reduce gets out of the links of a GPU or node.

    speed:        FLOP/s of a GPU
    within, between: bus bandwidth of an all-reduce among the GPUs of a node, and among nodes
    latency:      seconds of a collective whatever its size
    """

    speed: float
    within: float
    between: float
    latency: float
    node: int = 8


@dataclass(frozen=True)
class Work:
    """What is counted of the model and its pairs. flops: per token, forward and backward"""

    parameters: int
    flops: float
    pair_tokens: float


def count_communication(parameters: int, gpus: int, cluster: Cluster) -> tuple[float, float]:
    """Bytes that each GPU sends in an update, and the seconds that this takes.

    A ring sends 2 (n - 1) / n times the gradients (4 bytes) and (n - 1) / n times the weights (2 bytes).
    """
    if gpus == 1:
        return 0.0, 0.0
    sent = (gpus - 1) / gpus * (2 * 4 + 2) * parameters
    collectives = 2 * math.ceil(parameters / BUCKET)
    bandwidth = cluster.within if gpus <= cluster.node else cluster.between
    return sent, sent / bandwidth + collectives * cluster.latency


def predict(work: Work, gpus: int, pairs: int, imbalance: float, cluster: Cluster) -> tuple[float, float]:
    """Tokens per second of all GPUs, and the share of the speed that they would have with nothing to wait for."""
    tokens = pairs * work.pair_tokens
    even = tokens / gpus * work.flops / cluster.speed
    seconds = even * imbalance + count_communication(work.parameters, gpus, cluster)[1]
    return tokens / seconds, even / seconds


def count_imbalance(lengths: np.ndarray, gpus: int, pairs: int) -> float:
    """Tokens of the largest of the shares that Layout deals out, over the mean; averaged over these pairs' batches."""
    layout = Layout(pairs, pairs, gpus)
    cuts = [layout.share(rank)[0] for rank in range(gpus)]
    batches = lengths[: len(lengths) // pairs * pairs].reshape(-1, pairs)
    shares = np.add.reduceat(batches, cuts, axis=1)
    return float((shares.max(1) / shares.mean(1)).mean())
