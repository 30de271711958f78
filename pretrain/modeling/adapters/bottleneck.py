"""Bottleneck adapters and AdapterFusion, in the layers of encoders that normalise after each block.

Pfeiffer et al., 2021, "AdapterFusion: Non-Destructive Task Composition for Transfer Learning": with ``f`` the output of
a layer's feed-forward block, ``x`` its input and ``LN`` the layer's own normalisation, a layer with a bottleneck gives

    LN(f + x + B(LN(f + x)))        B(h) = U relu(D h + d) + u

so that all that it needs is the sum ``f + x``, which is what ``LN`` is given. Hence it lives in the ``LN``: no other
module changes. Parts that are stacked follow one another, ``s <- s + part(LN(s))``, before the last ``LN``.
"""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from data_pipeline.core.errors import KinspanError

from .parts import AdapterPart

# The families whose layers end in LN(f + x) of a module of its own. ALBERT's layers share theirs, ModernBERT normalises
# before its blocks.
FAMILIES_WITH_BOTTLENECKS = ("bert", "roberta", "electra", "mpnet", "deberta-v2")
PLACE = re.compile(r"(?:^|\.)layer\.(\d+)\.output\.LayerNorm(?:\.|$)")
PARTS = "parts"  # the attribute of a layer's normalisation that holds them
INITIAL_DEVIATION = 0.02  # as BERT's own matrices


class Bottleneck(nn.Module):
    """``B(h) = U relu(D h + d) + u``: ``[..., hidden]`` to the same shape, by way of ``size`` numbers.

    U and u start at zero, where Pfeiffer et al. draw U: an untrained adapter then is the plain model, to the bit.
    """

    def __init__(self, hidden: int, size: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(hidden, size), nn.Linear(size, hidden)
        nn.init.normal_(self.down.weight, std=INITIAL_DEVIATION)
        for start in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(start)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.up(torch.relu(self.down(h)))


class Fusion(nn.Module):
    """AdapterFusion without a value matrix: ``sum_t p_t B_t(h)``, ``p = softmax_t((Q h + q) . K B_t(h))``.

    As in Rücklé et al., 2020, section 5.1: what the adapters add is weighed and not transformed. ``[..., hidden]`` to
    the same shape.
    """

    def __init__(self, hidden: int, sizes: Iterable[int]) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden, bias=False)  # K transposed, see forward
        self.of = nn.ModuleList(Bottleneck(hidden, size) for size in sizes)
        nn.init.normal_(self.query.weight, std=INITIAL_DEVIATION)
        nn.init.normal_(self.key.weight, std=INITIAL_DEVIATION)
        nn.init.zeros_(self.query.bias)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        added = torch.stack([adapter(h) for adapter in self.of], -2)
        asked = self.key(self.query(h))  # K' (Q h + q), so that K is applied once and not to each adapter's output
        scores = (asked[..., None, :] * added).sum(-1)
        return (torch.softmax(scores.float(), -1).to(added.dtype)[..., None] * added).sum(-2)


class AdaptedNorm(nn.LayerNorm):
    """A layer's last normalisation, with the parts that stand before it."""

    parts: nn.ModuleList

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        total = input
        for part in self.parts:
            total = total + part(super().forward(total))
        return super().forward(total)


def check_family(config: Any, name: str) -> None:
    """Raises KinspanError where the layers of this family have no place for a bottleneck."""
    if config.model_type not in FAMILIES_WITH_BOTTLENECKS:
        raise KinspanError(
            f"--model {name} is of the type {config.model_type}, whose layers have no place for bottlenecks: use one "
            f"of {', '.join(FAMILIES_WITH_BOTTLENECKS)}, or LoRA (--adapter lora)"
        )


def build_layers(config: Any, parts: Iterable[AdapterPart]) -> nn.ModuleList:
    """The modules of the parts, by layer and then by part: what ``attach`` takes. Drawn from torch's generator."""
    parts, hidden = tuple(parts), config.hidden_size
    return nn.ModuleList(
        nn.ModuleList(
            Fusion(hidden, [one.size for one in part.of]) if part.kind == "fusion" else Bottleneck(hidden, part.size)
            for part in parts
        )
        for _ in range(config.num_hidden_layers)
    )


def list_norms(encoder: nn.Module) -> list[nn.LayerNorm]:
    """The last normalisation of each layer, in the order of the layers."""
    found = {}
    for name, module in encoder.named_modules():
        if isinstance(module, nn.LayerNorm) and (place := PLACE.search(name)):
            found[int(place[1])] = module
    return [found[number] for number in sorted(found)]


def attach(encoder: nn.Module, layers: nn.ModuleList) -> None:
    """Puts parts into the encoder's layers, in place of any that are there: adapters of one base take turns so."""
    for norm, parts in zip(list_norms(encoder), layers, strict=True):
        norm.__class__ = AdaptedNorm
        norm.parts = parts


def shorten(name: str) -> str | None:
    """A parameter's name in adapter.json's file, ``3.0.down.weight`` of layer 3 and part 0; None where
    it is no part's."""
    place = PLACE.search(name)
    if place is None or not name[place.end() :].startswith(f"{PARTS}."):
        return None
    return f"{place[1]}.{name[place.end() + len(PARTS) + 1 :]}"
