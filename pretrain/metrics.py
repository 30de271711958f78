"""Computes the figures of training: losses and accuracies from sums, speed, and floating-point operations."""

import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from data_pipeline.sampling.batch import Batch
from data_pipeline.sampling.pairs import KINDS
from pretrain.modeling.losses import PAIR_SUMS, LossWeights
from pretrain.modeling.siamese.losses import CONTRASTIVE_SUMS

from .batches import TrainedModel
from .step import GlobalBatch

# Dense bf16 TFLOP/s of one device, from the vendors' data sheets. The first name that matches counts.
PEAK_TFLOPS = {"H200": 989, "H100 NVL": 835, "H100 PCIe": 756, "H100": 989, "B200": 2250}
PEAK_TFLOPS |= {"A100": 312, "A10": 125, "L40S": 362, "L40": 181, "L4": 121}
KEPT_LOSSES = 20  # logged losses that a new one is compared with
NUM_RECENT = 5  # the median of the last 5 is the current level
MIN_LOSSES = 8  # with fewer, no loss counts as a spike
DEVIATIONS = 6.0  # standard deviations; one in 10^9 normally distributed changes is larger
MIN_LEAP = 0.1  # share of the loss; where losses hardly differ, a smaller leap is noise


def compute_figures(sums: dict[str, float], weights: LossWeights) -> dict[str, float]:
    """Returns losses in nats per item, accuracies, and F1 of the positive class, by name. ``sums``: see losses.py

    A mixture also has figures for each part, such as ``ssp/pair_loss`` or ``wiki/ssp/pair_loss``, and for each corpus,
    such as ``wiki/pair_loss``. A figure that no item contributes to is left out.
    """
    parts = tuple(name.rpartition("/")[0] for name in sums if name.endswith("/pair_loss"))
    totals = _add_up(sums, parts)
    figures = _compute_token_figures(sums) | _compute_pair_figures(totals)
    if "queries" not in totals:
        count = sum(totals[f"{kind}_pairs"] for kind in KINDS)
        figures |= {f"share_{kind}": _divide(totals[f"{kind}_pairs"], count) for kind in KINDS}
    for name, indices in group_parts(parts).items():
        part_figures = _compute_pair_figures(_add_up(sums, [parts[index] for index in indices]))
        figures |= {f"{name}/{figure}": value for figure, value in part_figures.items()}
    defined = {name: value for name, value in figures.items() if value is not None}
    loss = sum(weight * defined.get(f"{name}_loss", 0.0) for name, weight in weights._asdict().items())
    return {"loss": loss, **defined}


def group_parts(parts: Sequence[str]) -> dict[str, list[int]]:
    """Returns the indices of a mixture's parts, by the name of the part and by that of its corpus."""
    if len(parts) == 1:
        return {}
    groups: dict[str, list[int]] = {name: [index] for index, name in enumerate(parts)}
    for index, name in enumerate(parts):
        corpus, slash, _ = name.partition("/")
        if slash:
            groups.setdefault(corpus, []).append(index)
    return groups


def _add_up(sums: Mapping[str, float], parts: Sequence[str]) -> dict[str, float]:
    items = CONTRASTIVE_SUMS if f"{parts[0]}/queries" in sums else PAIR_SUMS
    return {item: sum(sums[f"{part}/{item}"] for part in parts) for item in items}


def _compute_token_figures(sums: dict[str, float]) -> dict[str, float | None]:
    """Returns the figures of masked LM and of replaced-token detection, where replaced tokens are the positives."""
    if "mlm_loss" not in sums:  # an adapter has no token loss
        return {}
    figures = {
        "mlm_loss": _divide(sums["mlm_loss"], sums["mlm_tokens"]),
        "mlm_accuracy": _divide(sums["mlm_correct"], sums["mlm_tokens"]),
    }
    if "rtd_loss" in sums:
        tokens, replaced, predicted, hits = (sums[f"rtd_{n}"] for n in ("tokens", "replaced", "called", "found"))
        figures["rtd_loss"] = _divide(sums["rtd_loss"], tokens)
        figures["rtd_accuracy"] = _divide(tokens - (replaced - hits) - (predicted - hits), tokens)
        figures["rtd_recall"] = _divide(hits, replaced)
        figures["rtd_precision"] = _divide(hits, predicted)
        figures["replaced_share"] = _divide(replaced, tokens)
    return figures


def _compute_pair_figures(sums: dict[str, float]) -> dict[str, float | None]:
    """Returns accuracies by kind and F1 against each kind of negatives; for a bi-encoder R@1 and MRR."""
    if "queries" in sums:
        names = {"pair_loss": "pair_loss", "pair_r1": "firsts", "pair_mrr": "reciprocal_ranks"}
        return {figure: _divide(sums[item], sums["queries"]) for figure, item in names.items()}
    pairs = {kind: sums[f"{kind}_pairs"] for kind in KINDS}
    predicted = {kind: sums[f"{kind}_called_positive"] for kind in KINDS}
    right = {k: predicted[k] if k == "positive" else pairs[k] - predicted[k] for k in KINDS}
    count = sum(pairs.values())
    figures = {"pair_loss": _divide(sums["pair_loss"], count), "pair_accuracy": _divide(sum(right.values()), count)}
    figures |= {f"pair_accuracy_{k}": _divide(right[k], pairs[k]) for k in KINDS}
    for name, kinds in {"pair_f1": KINDS[1:], "pair_f1_hard": ("hard",), "pair_f1_easy": ("easy",)}.items():
        wrong = sum(predicted[k] for k in kinds) + pairs["positive"] - predicted["positive"]
        present = pairs["positive"] and sum(pairs[k] for k in kinds)
        figures[name] = _divide(2 * predicted["positive"], 2 * predicted["positive"] + wrong) if present else None
    return figures


def _divide(value: float, count: float) -> float | None:
    return value / count if count else None


def is_spike(loss: float, before: Sequence[float]) -> bool:
    """Returns whether a loss exceeds the median of the last few by more than the usual change between two lines."""
    if len(before) < MIN_LOSSES:
        return False
    level = statistics.median(before[-NUM_RECENT:])
    change = 1.4826 * statistics.median(abs(b - a) for a, b in pairwise(before))  # estimates the standard deviation
    return loss > level + max(DEVIATIONS * change, MIN_LEAP * abs(level))


def find_peak_tflops(precision: str) -> float | None:
    """Returns the peak TFLOP/s of a known GPU in half precision."""
    if not torch.cuda.is_available() or precision == "fp32":
        return None
    name = torch.cuda.get_device_name()  # \b: an RTX A1000 is no A100, and an A10G no A10
    return next((peak for part, peak in PEAK_TFLOPS.items() if re.search(rf"{part}\b", name)), None)


class Clock:
    """Measures the time and work of training steps between two lines of the log, without validation and saving."""

    def __init__(self, count_flops: Callable[[Batch], float], peak: float | None) -> None:
        self.count_flops, self.peak = count_flops, peak
        self.waited_before = 0.0
        self._reset()

    def _reset(self) -> None:
        self.seconds = self.flops = self.imbalance = 0.0
        self.tokens = 0

    def start(self) -> None:
        """Starts the time of a step, before it waits for its batch."""
        self.began = time.perf_counter()

    def stop(self, global_batch: GlobalBatch, sums: torch.Tensor | None = None) -> None:
        """Ends a step. ``sums``: on the device, which is awaited, so that all of its work is timed"""
        if sums is not None:
            sums.tolist()
        self.seconds += time.perf_counter() - self.began
        tokens = global_batch.counts["num_tokens"]
        self.tokens += tokens
        self.imbalance += tokens * global_batch.imbalance
        self.flops += sum(map(self.count_flops, filter(None, global_batch.batches)))

    def read(self, waited: float) -> dict[str, float]:
        """Returns the figures since the last call. ``waited``: total seconds that training has waited for batches"""
        values = {
            "tokens_per_second": self.tokens / self.seconds,
            "data_wait_percent": 100 * (waited - self.waited_before) / self.seconds,
            "token_imbalance": self.imbalance / max(self.tokens, 1),
        }
        if self.peak:
            values["mfu_percent"] = 100 * self.flops / self.seconds / (self.peak * 1e12)
        self.waited_before = waited
        self._reset()
        return values


class FlopCounter:
    """Counts the floating-point operations of forward and backward passes, without recomputation and padding.

    A token costs six per matrix parameter (Kaplan et al., 2020, section 2.1), four if it is frozen; the vocabulary
    projection is computed for masked tokens alone. Attention costs ``12 * hidden`` per layer, for each token and each
    token that it sees.
    """

    def __init__(self, model: TrainedModel) -> None:
        self.token_parameters = sum(map(_count_encoder_matrices, model.encoders)) + _count_matrices(model.token_heads)
        self.masked_parameters = _count_matrices(model.masked_heads)  # the tied decoder included
        self.layers = [(12 * e.config.hidden_size, list_windows(e.config)) for e in model.encoders]

    def __call__(self, batch: Batch) -> float:
        work = 6.0 * (self.token_parameters * batch.num_tokens + self.masked_parameters * len(batch.masked_labels))
        return work + self.count_attention(batch.starts[1:].astype(float) - batch.starts[:-1])

    def count_attention(self, lengths: np.ndarray) -> float:
        """Returns the floating-point operations of attention in all layers, for sequences of these lengths ``[n]``."""
        return sum(
            per_pair * float(count_seen(lengths, window).sum())
            for per_pair, windows in self.layers
            for window in windows
        )


def _count_matrices(heads: Iterable[torch.nn.Module]) -> int:
    return sum(p.numel() for head in heads for p in head.parameters() if p.ndim == 2)


def list_windows(config: PretrainedConfig) -> list[int | None]:
    """Returns each layer's window: tokens see those less than this many positions away; None: they see all."""
    num_layers = config.num_hidden_layers * getattr(config, "inner_group_num", 1)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * num_layers
    return [config.sliding_window + 1 if kind == "sliding_attention" else None for kind in kinds]


def count_seen(lengths: np.ndarray, window: int | None) -> np.ndarray:
    """Returns for each sequence length ``[n]`` how many tokens its tokens see in total; ``window``: see list_windows"""
    reach = lengths if window is None else np.minimum(lengths, window)
    hidden = lengths - reach  # rows of each of the two hidden corners of the attention matrix
    return lengths**2 - hidden * (hidden + 1)


def _count_encoder_matrices(backbone: PreTrainedModel) -> float:
    """Returns the matrix parameters that each token passes, without the pooler; a frozen one counts 2/3."""
    groups = getattr(backbone.config, "num_hidden_groups", 1)  # ALBERT uses each group in several layers
    runs = {True: backbone.config.num_hidden_layers / groups, False: 1}
    return sum(
        module.weight.numel() * runs["albert_layer_groups" in name] * (1 if module.weight.requires_grad else 2 / 3)
        for name, module in backbone.named_modules()
        if isinstance(module, torch.nn.Linear) and "pooler" not in name
    )
