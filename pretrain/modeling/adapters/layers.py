"""The modules that adapters add to a frozen encoder: bottlenecks and their fusion, and LoRA by the library ``peft``.

Pfeiffer et al., 2021, "AdapterFusion: Non-Destructive Task Composition for Transfer Learning": with ``f`` the output of
a layer's feed-forward block, ``x`` its input and ``LN`` the layer's last normalisation, a layer with a bottleneck gives

    LN(f + x + B(LN(f + x)))        B(h) = U relu(D h + d) + u

It needs only the input of ``LN``, ``f + x``, so that only the ``LN`` module is replaced.

Hu et al., 2021, "LoRA: Low-Rank Adaptation of Large Language Models": ``W + scale * B A``, B starting at zero.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from data_pipeline.core.errors import KinspanError

# The families whose layers end in a module LN(f + x). ALBERT's layers share one; ModernBERT normalises before its
# blocks.
FAMILIES_WITH_BOTTLENECKS = (
    *("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "mpnet", "deberta-v2"),
)
LAST_NORM = re.compile(r"(?:^|\.)layer\.(\d+)\.output(?:\.LayerNorm|_layer_norm)(?:\.parts\.(.+))?$")
INITIAL_DEVIATION = 0.02  # of new matrices, as in BERT
LORA_NAME = "default"  # the adapter's name in the names of peft's parameters
LORA_SCALE = 2.0  # alpha over rank, whatever the rank
LORA_TARGETS = {  # the linear layers of each family that make queries and values
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra", "albert"), ("query", "value")),
    "distilbert": ("q_lin", "v_lin"),
    "mpnet": ("q", "v"),
    "deberta-v2": ("query_proj", "value_proj"),
    "modernbert": ("Wqkv",),
}


@dataclass(frozen=True)
class AdapterPart:
    """Describes the modules that an adapter adds to every layer.

    name: the adapter's name; identifies a bottleneck in a fusion
    size: the bottleneck's width, or LoRA's rank; 0 for a fusion
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
    """``B(h) = U relu(D h + d) + u``: ``[..., hidden]`` to the same shape, with ``size`` hidden units.

    U and u start at zero (Pfeiffer et al. draw U at random), so that an untrained adapter leaves the model unchanged.
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

    As in Rücklé et al., 2020, section 5.1, outputs are weighed, not transformed. ``[..., hidden]`` to the same shape.
    """

    def __init__(self, hidden: int, sizes: Iterable[int]) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden, bias=False)  # K transposed
        self.of = nn.ModuleList(Bottleneck(hidden, size) for size in sizes)
        nn.init.normal_(self.query.weight, std=INITIAL_DEVIATION)
        nn.init.normal_(self.key.weight, std=INITIAL_DEVIATION)
        nn.init.zeros_(self.query.bias)

    def forward(self, h: Tensor) -> Tensor:
        outputs = torch.stack([adapter(h) for adapter in self.of], -2)
        query_key = self.key(self.query(h))  # K' (Q h + q): K is applied once, not to each output
        scores = (query_key[..., None, :] * outputs).sum(-1)
        return (torch.softmax(scores.float(), -1).to(outputs.dtype)[..., None] * outputs).sum(-2)


class AdaptedNorm(nn.LayerNorm):
    """A layer's last normalisation, with the adapter before it."""

    parts: nn.ModuleList  # one adapter, whose index 0 is in the parameters' names; empty: a plain LayerNorm

    def forward(self, input: Tensor) -> Tensor:
        total = input
        for part in self.parts:
            total = total + part(super().forward(total))
        return super().forward(total)


def add_layers(encoder: PreTrainedModel, part: AdapterPart) -> None:
    """Adds an adapter's modules, randomly initialised, to an encoder. Bottlenecks and fusions replace earlier ones."""
    if part.kind == "lora":
        from peft import LoraConfig, inject_adapter_in_model

        targets = list(LORA_TARGETS[encoder.config.model_type])
        options = LoraConfig(r=part.size, lora_alpha=LORA_SCALE * part.size, target_modules=targets)  # type: ignore[arg-type]
        inject_adapter_in_model(options, encoder)
    elif encoder.config.model_type not in FAMILIES_WITH_BOTTLENECKS:
        raise KinspanError(f"--adapter: layers of {encoder.config.model_type} take no bottlenecks: give --adapter lora")
    else:
        hidden, sizes = encoder.config.hidden_size, [fused.size for fused in part.of]
        layers = range(encoder.config.num_hidden_layers)
        added = [Fusion(hidden, sizes) if sizes else Bottleneck(hidden, part.size) for _ in layers]
        for norm, module in zip(list_norms(encoder), added, strict=True):
            norm.__class__ = AdaptedNorm
            norm.parts = nn.ModuleList([module])


def list_norms(encoder: nn.Module) -> list[nn.LayerNorm]:
    """Returns the last normalisation of each layer, in the order of the layers."""
    norms = {}
    for name, module in encoder.named_modules():
        if isinstance(module, nn.LayerNorm) and (match := LAST_NORM.search(name)):
            norms[int(match[1])] = module
    return [norms[layer] for layer in sorted(norms)]


def merge_lora(classifier: nn.Module) -> None:
    """Merges LoRA into the weights, which leaves a plain model."""
    from peft.tuners.lora import LoraLayer

    for parent in list(classifier.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, LoraLayer):
                layer.merge(safe_merge=True)  # type: ignore[attr-defined]
                setattr(parent, name, layer.get_base_layer())


def name_in_adapter(name: str) -> str | None:
    """Returns a parameter's name in the adapter's file, such as ``3.0.down.weight``; None for the encoder's own."""
    if ".lora_" in name:
        return name.replace(f".{LORA_NAME}.", ".")
    match = LAST_NORM.search(name)
    return f"{match[1]}.{match[2]}" if match and match[2] else None
