"""Adapters of one base put together without training: stacked, or averaged."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from data_pipeline.core.errors import KinspanError

from . import lora
from .folder import HEAD, SPEC, TENSORS, Adapter, Base, format_spec
from .model import gather_beneath
from .parts import AdapterPart


def check_one_base(adapters: Sequence[Adapter]) -> None:
    """Raises KinspanError where adapters were trained beside different encoders."""
    first = adapters[0]
    for other in adapters[1:]:
        if other.base.fingerprint != first.base.fingerprint:
            raise KinspanError(
                f"{other.folder} was trained beside {other.base.name} ({other.base.fingerprint[:12]}), {first.folder} "
                f"beside {first.base.name} ({first.base.fingerprint[:12]}): only adapters of one base go together"
            )


def stack(adapters: Sequence[Adapter], folder: Path) -> Adapter:
    """The adapters one after another in every layer, the last one's pair head on top.

    Raises KinspanError where they are of different bases, or one is of LoRA.
    """
    check_one_base(adapters)
    for adapter in adapters:
        if adapter.parts[0].kind == "lora":
            raise KinspanError(f"{adapter.folder} is of LoRA, which cannot be stacked: average such, or merge it")
    parts = tuple(part for adapter in adapters for part in adapter.parts)
    return Adapter(folder, parts, adapters[0].base, gather_beneath(adapters, fused=False), adapters[-1].head)


def average(adapters: Sequence[Adapter], weights: Sequence[float] | None, folder: Path) -> Adapter:
    """The weighted mean of adapters of one shape: of bottlenecks the mean of the parameters, of LoRA the mean of what
    is added to the weights (see lora.average). Pair heads are averaged too.

    weights: one for each adapter, which are divided by their sum; None: all alike

    Raises KinspanError where they are of different bases or shapes.
    """
    check_one_base(adapters)
    given = list(weights or [1.0] * len(adapters))
    if len(given) != len(adapters) or not (min(given) >= 0 and 0 < sum(given) < math.inf):  # nan is neither
        raise KinspanError(f"--weights: give one for each of the {len(adapters)} adapters, none below 0, not all 0")
    shares = [weight / sum(given) for weight in given]
    name, first = "+".join(adapter.name for adapter in adapters), adapters[0]
    for other in adapters[1:]:
        if _outline(other) != _outline(first):
            raise KinspanError(f"{other.folder} and {first.folder} are not of one shape: only such can be averaged")
    each = [adapter.tensors for adapter in adapters]
    parts: tuple[AdapterPart, ...]
    if first.parts[0].kind == "lora":
        parts = (AdapterPart("lora", name, sum(adapter.parts[0].size for adapter in adapters)),)
        tensors = lora.average(each, shares)
    else:
        parts = (*first.parts[:-1], AdapterPart(first.parts[-1].kind, name, first.parts[-1].size, first.parts[-1].of))
        tensors = _mean(each, shares)
    return Adapter(folder, parts, first.base, tensors, _mean([adapter.head for adapter in adapters], shares))


def _outline(adapter: Adapter) -> tuple[list[str], dict[str, torch.Size]]:
    """The kinds of an adapter's parts, and its tensors' names and shapes, of LoRA's without the rank."""
    shapes = {name: tensor.shape for name, tensor in (adapter.tensors | adapter.head).items()}
    for name, shape in shapes.items():
        if ".lora_" in name:
            shapes[name] = shape[1:] if ".lora_A." in name else shape[:1]
    return [part.kind for part in adapter.parts], shapes


def _mean(each: Sequence[dict[str, torch.Tensor]], shares: Sequence[float]) -> dict[str, torch.Tensor]:
    return {name: sum(share * one[name] for one, share in zip(each, shares, strict=True)) for name in each[0]}  # type: ignore[misc]


def write_tensors(adapter: Adapter, folder: Path, base: Base) -> None:
    """Writes what an adapter is made of into a folder that exists; ``base`` as that folder finds it."""
    (folder / SPEC).write_text(format_spec(adapter.parts, base), encoding="utf-8")
    for name, tensors in ((TENSORS, adapter.tensors), (HEAD, adapter.head)):
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, str(folder / name), {"format": "pt"})
