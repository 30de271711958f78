"""The release of an adapter: its own few megabytes, the pair head, and a card. The base is named and not copied."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import ModelCardData
from safetensors.torch import load_file, save_file

from data_pipeline.core.files import read_object
from pretrain.modeling.adapters import bottleneck, lora
from pretrain.modeling.adapters.combine import average, stack, write_tensors
from pretrain.modeling.adapters.folder import (
    SPEC,
    Adapter,
    Base,
    format_spec,
    move_base,
    place_of_base,
    read_adapter,
    read_spec,
)
from pretrain.modeling.adapters.model import AdapterModel
from pretrain.modeling.adapters.parts import AdapterPart, describe_parts

from .card import format_card
from .folder import CARD, FACTS, replace_release
from .metadata import CardOverrides, render_card

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


def write_combined(
    folders: Sequence[Path], how: Literal["stack", "average"], weights: Sequence[float], output: Path
) -> None:
    """Writes the stack or the average of adapters as an adapter of its own.

    weights: of an average; none: all alike

    Raises KinspanError where they do not go together.
    """
    adapters = [read_adapter(folder) for folder in folders]
    made = stack(adapters, output) if how == "stack" else average(adapters, weights, output)
    first = adapters[0]
    base = move_base(first.base, first.folder, output)
    names = [adapter.name for adapter in adapters]
    known = [folder / FACTS for folder in folders if (folder / FACTS).is_file()]
    lengths = [read_object(path, "get the folder again").get("max_length") for path in known]
    length = min(filter(None, lengths), default=None)  # what all of them were trained on
    with replace_release(output) as partial:
        partial.mkdir(parents=True)
        write_tensors(made, partial, base)
        facts = {"how": how, "of": names, "weights": list(weights), "base": base.fingerprint, "max_length": length}
        (partial / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
        card = render_card(
            "combined.md",
            ModelCardData(pipeline_tag="text-ranking", tags=["adapter", "kinspan"]),
            CardOverrides(),
            title=f"{made.name}: an adapter of {base.name}",
            parts=describe_parts(made.parts),
            how=how,
            names=names,
            base=base,
        )
        (partial / CARD).write_text(card, encoding="utf-8")
