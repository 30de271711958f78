"""The module that trains an adapter: a frozen encoder, what is added to it, and the pair head."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn

from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import shorten_name
from pretrain.modeling import attention
from pretrain.modeling.losses import PAIR, compute_pair_loss, name_sums
from pretrain.modeling.pair_model import PairModel, start_at_base_rate

from . import bottleneck
from .folder import (
    TENSORS,
    Adapter,
    check_base,
    fill,
    fingerprint_encoder,
    load_base,
    name_head,
    name_parts,
    put_in,
    read_adapter,
)
from .parts import AdapterPart, describe_parts

Method = Literal["pfeiffer", "lora", "fusion"]
SIZES = {"pfeiffer": 64, "lora": 8}  # unless --adapter_size says another: Rücklé et al., 2020; Hu et al., 2021
TRAINED_IN_FUSION = ("query", "key")


class AdapterModel(PairModel):
    """An encoder of which nothing is trained but what an adapter adds, and the pair head: there is no token loss.

    parts: a tuple of the one part in the encoder; of a fusion only what weighs its bottlenecks is trained
    base:  the fingerprint of the encoder, which checkpoints and releases do not hold
    """

    losses = (PAIR,)  # type: ignore[assignment]

    def __init__(self, classifier: Any, parts: tuple[AdapterPart, ...], base: str, objectives: tuple[str, ...]) -> None:
        super().__init__(classifier, nn.Identity(), objectives)
        self.parts, self.base, self.masked_heads = parts, base, ()
        self.sum_names = name_sums((), objectives)
        trained = {id(parameter) for parameter in (*self.name_trained().values(), *name_head(classifier).values())}
        for parameter in self.parameters():
            parameter.requires_grad_(id(parameter) in trained)

    def name_trained(self) -> dict[str, nn.Parameter]:
        """Returns the trained parameters of the adapter, by the names in its file."""
        named = name_parts(self.classifier.base_model, self.parts)
        if self.parts[0].kind != "fusion":
            return named
        return {name: parameter for name, parameter in named.items() if name.split(".")[2] in TRAINED_IN_FUSION}

    def name_frozen(self) -> dict[str, nn.Parameter]:
        """Returns the parameters of the adapters that a fusion weighs, by the names in its file."""
        trained = self.name_trained()
        named = name_parts(self.classifier.base_model, self.parts)
        return {name: parameter for name, parameter in named.items() if name not in trained}

    def forward(
        self, *, scales: Mapping[str, torch.Tensor | float], **inputs: Any
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the weighted loss of a packed micro-batch, its sums and its pair logits, as PairModel does."""
        pair = self.score_pairs(self.encode(inputs), inputs["starts"]).float()
        loss, sums = compute_pair_loss(pair, inputs["labels"], inputs["kinds"], inputs["part"], len(self.objectives))
        return loss * scales["pair"], sums, pair.detach()


def load_adapter_model(
    base: str,
    method: Method,
    size: int | None,
    beneath: Sequence[str],
    name: str,
    seed: int,
    objectives: tuple[str, ...] = ("ssp",),
    positive_share: float = 0.2,
) -> tuple[AdapterModel, list[str]]:
    """Returns the model that trains a new adapter beside ``base``, and notes about what of it is new.

    size:    the width of the bottleneck, or LoRA's rank; None: SIZES
    beneath: folders of adapters of this base, which a fusion weighs and leaves frozen
    name:    of the new adapter
    seed:    of fresh weights

    Raises KinspanError where base and adapters do not go together.
    """
    adapters = [read_adapter(folder) for folder in beneath]
    parts = plan_parts(method, size, adapters, name)
    torch.manual_seed(seed)  # of fresh weights
    classifier, missing = load_base(base, attn_implementation=attention.NAME)
    if method != "lora":
        bottleneck.check_family(classifier.config, base)
    fingerprint = fingerprint_encoder(classifier.base_model)
    for adapter in adapters:
        check_base(adapter, fingerprint, f"--model {shorten_name(base)}")
    torch.manual_seed(seed)  # whatever the base's loading has drawn
    put_in(classifier, parts)
    notes = [f"{shorten_name(base)} is frozen; trained are the pair head and {describe_parts(parts)}"]
    if missing:
        start_at_base_rate(classifier, positive_share)
        notes.append(f"the pair head starts fresh ({len(missing)} tensors are not in {shorten_name(base)})")
    model = AdapterModel(classifier, parts, fingerprint, objectives)
    if adapters:
        fill(model.name_frozen(), gather_beneath(adapters), adapters[0].folder / TENSORS)
    return model.train(), notes  # type: ignore[return-value]


def plan_parts(method: Method, size: int | None, beneath: Sequence[Adapter], name: str) -> tuple[AdapterPart, ...]:
    """Returns the part of a new adapter, as a tuple of one. ``beneath``: what a fusion weighs"""
    if method != "fusion":
        kind: Any = "bottleneck" if method == "pfeiffer" else method
        return (AdapterPart(kind, name, size or SIZES[method]),)
    for adapter in beneath:
        if adapter.parts[0].kind != "bottleneck":
            raise KinspanError(f"--adapters {adapter.folder} is no bottleneck, and a fusion weighs only such")
    return (AdapterPart("fusion", name, of=tuple(adapter.parts[0] for adapter in beneath)),)


def gather_beneath(beneath: Sequence[Adapter]) -> dict[str, torch.Tensor]:
    """Returns the tensors of the adapters that a fusion weighs, by their names in its file: ``of.t`` of part 0."""
    return {
        name.replace(".0.", f".0.of.{place}.", 1): tensor
        for place, adapter in enumerate(beneath)
        for name, tensor in adapter.tensors.items()
    }
