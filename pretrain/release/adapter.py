"""The release of an adapter: its own few megabytes, the pair head, and a card. The base is named and not copied."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from pretrain.modeling.adapters import bottleneck, lora
from pretrain.modeling.adapters.folder import (
    SPEC,
    Adapter,
    Base,
    format_spec,
    move_base,
    place_of_base,
    read_spec,
    write_tensors,
)
from pretrain.modeling.adapters.model import AdapterModel
from pretrain.modeling.adapters.parts import AdapterPart, describe_parts

from .card import format_card
from .folder import CARD
from .metadata import CardOverrides

ADAPTER_FOLDER = "adapter"  # in a run: what its release needs beside the trained weights
BENEATH = "beneath.safetensors"  # the adapters that stay frozen, where there are any


def keep_adapter(model: AdapterModel, run: Path, base_name: str, place: str | None) -> None:
    """Writes to a run's folder what a release needs beside the trained weights. ``place``: the run's --model"""
    folder = run / ADAPTER_FOLDER
    folder.mkdir(exist_ok=True)
    base = Base(base_name, place_of_base(place, folder), model.config.model_type, model.base)
    (folder / SPEC).write_text(format_spec(model.parts, base), encoding="utf-8")
    if beneath := {name: parameter.detach().contiguous() for name, parameter in model.name_frozen().items()}:
        save_file(beneath, str(folder / BENEATH), {"format": "pt"})


def note_copy(run: Path, copy: Path) -> None:
    """Has a copy of a run's folder find the run's base from where it lies; nothing where the run trains no adapter."""
    kept, folder = run / ADAPTER_FOLDER, copy / ADAPTER_FOLDER
    if kept.is_dir():
        parts, base = read_spec(kept)
        (folder / SPEC).write_text(format_spec(parts, move_base(base, kept, folder)), encoding="utf-8")


def fill_adapter_release(
    run: Path,
    weights: dict[str, torch.Tensor],
    facts: dict[str, Any],
    partial: Path,
    output: Path,
    stated: CardOverrides,
) -> None:
    """Writes the files of an adapter's release to the folder ``partial``, which will be renamed to ``output``."""
    kept = run / ADAPTER_FOLDER
    parts, base = read_spec(kept)
    tensors, head = split_weights(parts, weights)
    if (kept / BENEATH).is_file():
        tensors |= load_file(str(kept / BENEATH))
    moved = move_base(base, kept, output)
    write_tensors(Adapter(output, parts, base, tensors, head), partial, moved)
    card = format_card(
        facts,
        base.model_type,
        stated,
        "adapter",
        title=f"{parts[-1].name}: an adapter of {base.name}",
        tag=parts[-1].kind,
        base=base,
        parts=describe_parts(parts),
        size=sum(tensor.numel() for tensor in tensors.values()) / 1e6,
    )
    (partial / CARD).write_text(card, encoding="utf-8")


def split_weights(
    parts: tuple[AdapterPart, ...], weights: dict[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The tensors of the parts and those of the pair head, by their names in an adapter's files. ``weights``:
    AdapterModel's"""
    shorten = lora.shorten if parts[0].kind == "lora" else bottleneck.shorten
    tensors, head = {}, {}
    for name, tensor in weights.items():
        own = name.removeprefix("classifier.")
        short = shorten(own.partition(".")[2])
        if short is None:
            head[own] = tensor
        else:
            tensors[short] = tensor
    return tensors, head
