"""Figures of training: losses and accuracies from sums, and the work that a batch takes."""

from collections.abc import Iterable
from typing import Any

import torch

from data_pipeline.sampling.batch import Batch
from data_pipeline.sampling.pairs import KINDS
from pretrain.modeling.encoder import ROUND_TO
from pretrain.modeling.losses import PAIR_SUMS, LossWeights

# Dense bf16 TFLOP/s of one device, from the vendors' data sheets.
PEAK_TFLOPS = {"H200": 989, "H100 PCIe": 756, "H100": 989, "A100": 312, "L40S": 362, "L40": 181, "L4": 121}


def compute_figures(sums: dict[str, float], weights: LossWeights) -> dict[str, float]:
    """Losses in nats per item, accuracies, and F1 of the positive class, from sums by name (see losses.py).

    Pair figures are taken over all objectives. For a mixture those of each objective follow, named ``ssp/pair_loss``
    and so on. ``loss`` is the weighted sum of the losses. A figure without any item to compute it from is left out.
    """
    objectives = [name.rpartition("/")[0] for name in sums if name.endswith("/pair_loss")]
    by_objective = [{item: sums[f"{name}/{item}"] for item in PAIR_SUMS} for name in objectives]
    everything = {item: sum(own[item] for own in by_objective) for item in PAIR_SUMS}
    out = _compute_token_figures(sums) | _compute_pair_figures(everything) | _compute_shares(everything)
    if len(objectives) > 1:
        for name, own in zip(objectives, by_objective, strict=True):
            out |= {f"{name}/{figure}": value for figure, value in _compute_pair_figures(own).items()}
    known = {name: value for name, value in out.items() if value is not None}
    loss = sum(weight * known.get(f"{name}_loss", 0.0) for name, weight in weights._asdict().items())
    return {"loss": loss, **known}


def _compute_token_figures(sums: dict[str, float]) -> dict[str, float | None]:
    """Figures of the masked-LM loss, and of replaced-token detection where the model does that.

    rtd_accuracy:  share of all tokens that were judged rightly
    rtd_recall:    share of the replaced tokens that were found
    rtd_precision: share of the tokens judged as replaced that were replaced
    """
    out = {
        "mlm_loss": _divide(sums["mlm_loss"], sums["mlm_tokens"]),
        "mlm_accuracy": _divide(sums["mlm_correct"], sums["mlm_tokens"]),
    }
    if "rtd_loss" in sums:
        tokens, replaced, called, found = (sums[f"rtd_{n}"] for n in ("tokens", "replaced", "called", "found"))
        out["rtd_loss"] = _divide(sums["rtd_loss"], tokens)
        out["rtd_accuracy"] = _divide(tokens - (replaced - found) - (called - found), tokens)
        out["rtd_recall"] = _divide(found, replaced)
        out["rtd_precision"] = _divide(found, called)
        out["replaced_share"] = _divide(replaced, tokens)
    return out


def _compute_pair_figures(sums: dict[str, float]) -> dict[str, float | None]:
    """Figures of the pair loss.

    pair_accuracy_KIND:   share of the pairs of that kind that were classified rightly
    pair_f1_hard, _easy: F1 of the positives against that kind of negatives alone
    """
    pairs = {kind: sums[f"{kind}_pairs"] for kind in KINDS}
    called = {kind: sums[f"{kind}_called_positive"] for kind in KINDS}
    right = {k: called[k] if k == "positive" else pairs[k] - called[k] for k in KINDS}
    count = sum(pairs.values())
    out = {"pair_loss": _divide(sums["pair_loss"], count), "pair_accuracy": _divide(sum(right.values()), count)}
    out |= {f"pair_accuracy_{k}": _divide(right[k], pairs[k]) for k in KINDS}
    for name, kinds in {"pair_f1": KINDS[1:], "pair_f1_hard": ("hard",), "pair_f1_easy": ("easy",)}.items():
        wrong = sum(called[k] for k in kinds) + pairs["positive"] - called["positive"]
        present = pairs["positive"] and sum(pairs[k] for k in kinds)
        out[name] = _divide(2 * called["positive"], 2 * called["positive"] + wrong) if present else None
    return out


def _compute_shares(sums: dict[str, float]) -> dict[str, float | None]:
    """The share of each kind among the pairs."""
    count = sum(sums[f"{kind}_pairs"] for kind in KINDS)
    return {f"share_{kind}": _divide(sums[f"{kind}_pairs"], count) for kind in KINDS}


def _divide(value: float, count: float) -> float | None:
    return value / count if count else None


def look_up_peak_tflops(given: float | None, precision: str) -> float | None:
    """Peak TFLOP/s of one device: as given; otherwise that of a known GPU in half precision; None if unknown."""
    if given is None and torch.cuda.is_available() and precision != "fp32":
        name = torch.cuda.get_device_name()
        return next((peak for known, peak in PEAK_TFLOPS.items() if known in name), None)
    return given


class FlopCounter:
    """Counts the floating-point operations of forward and backward, without what is recomputed or spent on padding.

    These are six per token and parameter of a matrix (two forward, four backward; Kaplan et al., 2020, section 2.1),
    where the vocabulary projection works on masked tokens alone; and ``12 * hidden * length^2`` per layer and sequence
    for attention. ``model`` names its ``encoders`` and its heads: ``masked_heads`` work on masked tokens,
    ``token_heads`` on all.
    """

    def __init__(self, model: Any) -> None:
        self.at_tokens = sum(_count_encoder_matrices(encoder) for encoder in model.encoders) + _count_matrices(
            model.token_heads
        )
        self.at_masked = _count_matrices(model.masked_heads)  # the tied decoder included
        self.attention = sum(_count_attention(encoder.config) for encoder in model.encoders)

    def __call__(self, batch: Batch) -> float:
        lengths = batch.starts[1:].astype(float) - batch.starts[:-1]
        token_work = 6.0 * (self.at_tokens * batch.num_tokens + self.at_masked * len(batch.masked_labels))
        return token_work + self.attention * float((lengths**2).sum())


def _count_matrices(heads: Iterable[torch.nn.Module]) -> int:
    return sum(p.numel() for head in heads for p in head.parameters() if p.ndim == 2)


def _count_attention(config: Any) -> int:
    return 12 * config.hidden_size * config.num_hidden_layers * getattr(config, "inner_group_num", 1)


def _count_encoder_matrices(backbone: Any) -> float:
    """Parameters of the matrices that every token passes, times how often it does. The pooler is left out, because it
    sees one token per pair."""
    groups = getattr(backbone.config, "num_hidden_groups", 1)  # ALBERT runs each group for several layers
    runs = {True: backbone.config.num_hidden_layers / groups, False: 1}
    return sum(
        module.weight.numel() * runs["albert_layer_groups" in name]
        for name, module in backbone.named_modules()
        if isinstance(module, torch.nn.Linear) and "pooler" not in name
    )


def count_padding(batch: Batch, skips_padding: bool) -> tuple[int, int]:
    """Slots of padding, and all slots, that attention computes for a batch. Linear layers see no more of it than what
    rounds a packed row up, see encoder.ROUND_TO; nor does attention where it ``skips_padding``."""
    if skips_padding:
        padding = -batch.num_tokens % ROUND_TO
        return padding, batch.num_tokens + padding
    slots = batch.num_pairs * int((batch.starts[1:] - batch.starts[:-1]).max())
    return slots - batch.num_tokens, slots
