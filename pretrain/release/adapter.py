"""The release of an adapter: its few megabytes, the pair head, and a card. The base is named and not copied."""

from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from pretrain.modeling.adapters.folder import Base, find_base, place_of_base, read_spec, write_adapter, write_spec
from pretrain.modeling.adapters.layers import shorten
from pretrain.modeling.adapters.model import AdapterModel

from .card import CardOverrides, Facts, format_card
from .folder import CARD

ADAPTER_FOLDER = "adapter"  # in a run: what its release needs beside the trained weights
BENEATH = "beneath.safetensors"  # the adapters that stay frozen, where there are any


def keep_adapter(model: AdapterModel, run: Path, base_name: str, place: str | None) -> None:
    """Writes to a run's folder what a release needs beside the trained weights. ``place``: the run's --model"""
    folder = run / ADAPTER_FOLDER
    folder.mkdir(exist_ok=True)
    write_spec(folder, model.part, Base(base_name, place_of_base(place), model.config.model_type, model.base))
    if beneath := {name: parameter.detach().contiguous() for name, parameter in model.name_frozen().items()}:
        save_file(beneath, str(folder / BENEATH), {"format": "pt"})


def fill_adapter_release(
    run: Path, weights: dict[str, Tensor], facts: Facts, partial: Path, output: Path, stated: CardOverrides
) -> None:
    """Writes the files of an adapter's release to the folder ``partial``, which will be renamed to ``output``.

    weights: by the names in AdapterModel
    """
    kept = run / ADAPTER_FOLDER
    part, base = read_spec(kept)
    tensors = load_file(str(kept / BENEATH)) if (kept / BENEATH).is_file() else {}
    head = {}
    for name, tensor in weights.items():
        in_classifier = name.removeprefix("classifier.")
        if short := shorten(in_classifier.partition(".")[2]):
            tensors[short] = tensor
        else:
            head[in_classifier] = tensor
    place = place_of_base(find_base(kept, base), output)
    write_adapter(partial, part, replace(base, place=place), tensors, head)
    card = format_card(
        facts,
        base.model_type,
        stated,
        "adapter",
        title=f"{part.name}: an adapter of {base.name}",
        tag=part.kind,
        base=base,
        part=part,
        size=sum(tensor.numel() for tensor in tensors.values()) / 1e6,
    )
    (partial / CARD).write_text(card, encoding="utf-8")
