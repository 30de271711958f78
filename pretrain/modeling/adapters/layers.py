"""The modules that adapters add to a frozen encoder: bottlenecks and their fusion, and LoRA by the library ``peft``.

Pfeiffer et al., 2021, "AdapterFusion: Non-Destructive Task Composition for Transfer Learning": with ``f`` the output of
a layer's feed-forward block, ``x`` its input and ``LN`` the layer's last normalisation, a layer with a bottleneck gives

    LN(f + x + B(LN(f + x)))        B(h) = U relu(D h + d) + u

It needs only the sum ``f + x``, the input of ``LN``: it lives in the ``LN``, and no other module changes.

Hu et al., 2021, "LoRA: Low-Rank Adaptation of Large Language Models": ``W + scale * B A``, B starting at zero.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from data_pipeline.core.errors import KinspanError

# The families whose layers end in a module LN(f + x). ALBERT's layers share theirs, ModernBERT normalises before its
# blocks.
FAMILIES_WITH_BOTTLENECKS = ("bert", "roberta", "electra", "mpnet", "deberta-v2")
LAST_NORM = re.compile(r"(?:^|\.)layer\.(\d+)\.output\.LayerNorm(?:\.parts\.(.+))?$")
INITIAL_DEVIATION = 0.02  # as BERT's matrices
LORA_NAME = "default"  # peft's name of the adapter, in the names of its parameters
LORA_SCALE = 2.0  # alpha over rank, whatever the rank
LORA_TARGETS = {  # the linear layers of each family that make queries and values
    "bert": ("query", "value"),
    "roberta": ("query", "value"),
    "electra": ("query", "value"),
    "albert": ("query", "value"),
    "mpnet": ("q", "v"),
    "deberta-v2": ("query_proj", "value_proj"),
    "modernbert": ("Wqkv",),
}


@dataclass(frozen=True)
class AdapterPart:
    """Names the modules that an adapter adds to every layer.

    name: the adapter's, of its training data; it tells the bottlenecks of a fusion apart
    size: the width of the bottleneck, or LoRA's rank; 0 for a fusion
    of:   the bottlenecks that a fusion weighs
    """

    kind: Literal["bottleneck", "fusion", "lora"]
    name: str
    size: int = 0
    of: tuple["AdapterPart", ...] = ()

    def __str__(self) -> str:
        if self.kind == "fusion":
            return f"the fusion of {', '.join(part.name for part in self.of)}"
        return f"{'LoRA of rank' if self.kind == 'lora' else 'a bottleneck of'} {self.size} ({self.name})"


class Bottleneck(nn.Module):
    """``B(h) = U relu(D h + d) + u``: ``[..., hidden]`` to the same shape, by way of ``size`` numbers.

    U and u start at zero, where Pfeiffer et al. draw U: an untrained adapter then is the plain model, to the bit.
    """

    def __init__(self, hidden: int, size: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(hidden, size), nn.Linear(size, hidden)
        nn.init.normal_(self.down.weight, std=INITIAL_DEVIATION)
        for tensor in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(tensor)

    def forward(self, h: Tensor) -> Tensor:
        return self.up(torch.relu(self.down(h)))


class Fusion(nn.Module):
    """AdapterFusion without a value matrix: ``sum_t p_t B_t(h)``, ``p = softmax_t((Q h + q) . K B_t(h))``.

    As in Rücklé et al., 2020, section 5.1: the outputs are weighed and not transformed. ``[..., hidden]`` to the same
    shape.
    """

    def __init__(self, hidden: int, sizes: Iterable[int]) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden, bias=False)  # K transposed, see forward
        self.of = nn.ModuleList(Bottleneck(hidden, size) for size in sizes)
        nn.init.normal_(self.query.weight, std=INITIAL_DEVIATION)
        nn.init.normal_(self.key.weight, std=INITIAL_DEVIATION)
        nn.init.zeros_(self.query.bias)

    def forward(self, h: Tensor) -> Tensor:
        added = torch.stack([adapter(h) for adapter in self.of], -2)
        keyed = self.key(self.query(h))  # K' (Q h + q), so that K is applied once and not to each adapter's output
        scores = (keyed[..., None, :] * added).sum(-1)
        return (torch.softmax(scores.float(), -1).to(added.dtype)[..., None] * added).sum(-2)


class AdaptedNorm(nn.LayerNorm):
    """A layer's last normalisation, with the adapter before it."""

    parts: nn.ModuleList  # one, or none

    def forward(self, input: Tensor) -> Tensor:
        total = input
        for part in self.parts:
            total = total + part(super().forward(total))
        return super().forward(total)


def add_layers(encoder: PreTrainedModel, part: AdapterPart) -> None:
    """Adds an adapter's layers to an encoder, drawn from torch's generator; bottlenecks replace those that are there.

    Raises KinspanError where the family's layers have no place for bottlenecks.
    """
    if part.kind == "lora":
        from peft import LoraConfig, inject_adapter_in_model

        targets = list(LORA_TARGETS[encoder.config.model_type])
        options = LoraConfig(r=part.size, lora_alpha=LORA_SCALE * part.size, target_modules=targets)  # type: ignore[arg-type]
        inject_adapter_in_model(options, encoder)
    elif encoder.config.model_type not in FAMILIES_WITH_BOTTLENECKS:
        raise KinspanError(f"--adapter: layers of {encoder.config.model_type} take no bottlenecks: give --adapter lora")
    else:
        attach(encoder, build_layers(encoder.config, part))


def build_layers(config: PreTrainedConfig, part: AdapterPart) -> nn.ModuleList:
    """Returns the new modules of each layer, for ``attach``."""
    hidden = config.hidden_size
    return nn.ModuleList(
        nn.ModuleList([Fusion(hidden, [below.size for below in part.of]) if part.of else Bottleneck(hidden, part.size)])
        for _ in range(config.num_hidden_layers)
    )


def attach(encoder: nn.Module, layers: nn.ModuleList) -> None:
    """Puts modules into the layers' last normalisations, in place of any that are there."""
    for norm, parts in zip(list_norms(encoder), layers, strict=True):
        norm.__class__ = AdaptedNorm
        norm.parts = parts


def list_norms(encoder: nn.Module) -> list[nn.LayerNorm]:
    """Returns the last normalisation of each layer, in the order of the layers."""
    norms = {}
    for name, module in encoder.named_modules():
        if isinstance(module, nn.LayerNorm) and (place := LAST_NORM.search(name)):
            norms[int(place[1])] = module
    return [norms[number] for number in sorted(norms)]


def merge_lora(classifier: nn.Module) -> None:
    """Adds LoRA's products into the weights of a model, and leaves a plain one."""
    from peft.tuners.lora import LoraLayer

    for parent in list(classifier.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, LoraLayer):
                layer.merge(safe_merge=True)  # type: ignore[attr-defined]
                setattr(parent, name, layer.get_base_layer())


def shorten(name: str) -> str | None:
    """Returns the name in an adapter's file of an encoder's parameter, such as ``3.0.down.weight`` of layer 3.

    None for a parameter of the encoder itself. ``name``: from the encoder on
    """
    if ".lora_" in name:
        return name.replace(f".{LORA_NAME}.", ".")
    place = LAST_NORM.search(name)
    return f"{place[1]}.{place[2]}" if place and place[2] else None
