"""The module that trains an adapter: a frozen encoder, the adapter's layers, and the pair head."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import shorten_name
from pretrain.modeling import attention
from pretrain.modeling.losses import PAIR, compute_pair_loss, name_sums
from pretrain.modeling.pair_model import PairModel, start_at_base_rate

from .folder import (
    TENSORS,
    Adapter,
    check_base,
    fill,
    fingerprint_encoder,
    load_base,
    name_head,
    name_parts,
    read_adapter,
)
from .layers import AdapterPart, add_layers

Method = Literal["pfeiffer", "lora", "fusion"]
SIZES = {"pfeiffer": 64, "lora": 8}  # 64 gives the 5 MB of Rücklé et al., 2020; 8: Hu et al., 2021
TRAINED_IN_FUSION = ("query", "key")


class AdapterModel(PairModel):
    """A frozen encoder with an adapter and a pair head, which are trained by the pair loss alone.

    part:             the adapter; of a fusion only the query and the key are trained
    base_fingerprint: of the encoder, which is not in checkpoints and releases
    """

    losses = (PAIR,)  # type: ignore[assignment]

    def __init__(
        self, classifier: PreTrainedModel, part: AdapterPart, base_fingerprint: str, objectives: tuple[str, ...]
    ) -> None:
        super().__init__(classifier, nn.Identity(), objectives)
        self.part, self.base_fingerprint, self.masked_heads = part, base_fingerprint, ()
        self.sum_names = name_sums((), objectives)
        trained = {id(parameter) for parameter in (*self.name_trained().values(), *name_head(classifier).values())}
        for parameter in self.parameters():
            parameter.requires_grad_(id(parameter) in trained)

    def name_trained(self) -> dict[str, nn.Parameter]:
        """Returns the trained parameters of the adapter, by their names in its file."""
        named = name_parts(self.classifier.base_model)
        if self.part.kind != "fusion":
            return named
        return {name: parameter for name, parameter in named.items() if name.split(".")[2] in TRAINED_IN_FUSION}

    def name_frozen(self) -> dict[str, nn.Parameter]:
        """Returns the parameters of the adapters that a fusion weighs, by their names in its file."""
        trained, named = self.name_trained(), name_parts(self.classifier.base_model)
        return {name: parameter for name, parameter in named.items() if name not in trained}

    def forward(self, *, scales: Mapping[str, Tensor | float], **inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the weighted loss of a packed micro-batch, its sums and its pair logits, as PairModel does."""
        pair = self.score_pairs(self.encode(inputs), inputs["starts"]).float()
        loss, sums = compute_pair_loss(pair, inputs["labels"], inputs["kinds"], inputs["part"], len(self.objectives))
        return loss * scales["pair"], sums, pair.detach()


def load_adapter_model(
    base: str,
    method: Method,
    size: int | None,
    fused: Sequence[str],
    name: str,
    seed: int,
    objectives: tuple[str, ...] = ("ssp",),
    positive_share: float = 0.2,
) -> tuple[AdapterModel, list[str]]:
    """Returns the model that trains a new adapter in ``base``, and notes on its new parts.

    size:  the bottleneck's width, or LoRA's rank; None: see SIZES
    fused: folders of adapters of this base, which a fusion weighs and leaves frozen
    name:  the new adapter's name
    """
    adapters = [read_adapter(folder) for folder in fused]
    part = make_part(method, size, adapters, name)
    torch.manual_seed(seed)  # for a fresh head
    classifier, missing = load_base(base, attn_implementation=attention.NAME)
    fingerprint = fingerprint_encoder(classifier.base_model)
    for adapter in adapters:
        check_base(adapter, fingerprint, f"--model {shorten_name(base)}")
    torch.manual_seed(seed)  # whatever loading the base has drawn
    add_layers(classifier.base_model, part)
    notes = [f"{shorten_name(base)} is frozen; training the pair head and {part}"]
    if missing:
        start_at_base_rate(classifier, positive_share)
        notes.append(f"the pair head starts fresh: {shorten_name(base)} lacks {len(missing)} tensors of it")
    model = AdapterModel(classifier, part, fingerprint, objectives)
    if adapters:
        tensors = {
            name.replace(".0.", f".0.of.{index}.", 1): tensor
            for index, adapter in enumerate(adapters)
            for name, tensor in adapter.tensors.items()
        }
        fill(model.name_frozen(), tensors, adapters[0].folder / TENSORS)
    return model.train(), notes


def make_part(method: Method, size: int | None, fused: Sequence[Adapter], name: str) -> AdapterPart:
    """Returns the part of a new adapter. ``fused``: adapters that a fusion weighs"""
    if method != "fusion":
        return AdapterPart("lora" if method == "lora" else "bottleneck", name, size or SIZES[method])
    for adapter in fused:
        if adapter.part.kind != "bottleneck":
            raise KinspanError(f"--adapters {adapter.folder} is not a bottleneck: a fusion weighs bottlenecks only")
    return AdapterPart("fusion", name, of=tuple(adapter.part for adapter in fused))
