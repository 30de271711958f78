"""Releases an adapter: its tensors, the pair head and a card. The base model is named, not copied."""

from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from pretrain.modeling.adapters.folder import Base, find_base, make_base_place, read_spec, write_adapter, write_spec
from pretrain.modeling.adapters.layers import name_in_adapter
from pretrain.modeling.adapters.model import AdapterModel

from .card import CardOverrides, Facts, format_card
from .folder import CARD

ADAPTER_FOLDER = "adapter"  # in a run's folder: what a release needs besides the trained weights
FUSED_TENSORS = "beneath.safetensors"  # tensors of the frozen adapters that a fusion weighs


def keep_adapter(model: AdapterModel, run: Path, base_name: str, name_or_dir: str | None) -> None:
    """Writes to a run's folder what a release needs besides the trained weights. ``name_or_dir``: the run's --model"""
    folder = run / ADAPTER_FOLDER
    folder.mkdir(exist_ok=True)
    place, family = make_base_place(name_or_dir), model.config.model_type
    write_spec(folder, model.part, Base(base_name, place, family, model.base_fingerprint))
    if frozen := {name: parameter.detach().contiguous() for name, parameter in model.name_frozen().items()}:
        save_file(frozen, str(folder / FUSED_TENSORS), {"format": "pt"})


def fill_adapter_release(
    run: Path, weights: dict[str, Tensor], facts: Facts, partial: Path, output: Path, overrides: CardOverrides
) -> None:
    """Writes a release to ``partial``, which will be renamed to ``output``. ``weights``: by AdapterModel's names"""
    adapter_folder = run / ADAPTER_FOLDER
    part, base = read_spec(adapter_folder)
    fused = adapter_folder / FUSED_TENSORS
    tensors = load_file(str(fused)) if fused.is_file() else {}
    head = {}
    for name, tensor in weights.items():
        name_in_classifier = name.removeprefix("classifier.")
        _, _, name_in_encoder = name_in_classifier.partition(".")  # without the encoder's attribute, such as roberta
        if key := name_in_adapter(name_in_encoder):
            tensors[key] = tensor
        else:
            head[name_in_classifier] = tensor
    place = make_base_place(find_base(adapter_folder, base), output)
    write_adapter(partial, part, replace(base, place=place), tensors, head)
    card = format_card(
        facts,
        base.model_type,
        overrides,
        "adapter",
        title=f"{part.name}: an adapter of {base.name}",
        tag=part.kind,
        base=base,
        part=part,
        size=sum(tensor.numel() for tensor in tensors.values()) / 1e6,
    )
    (partial / CARD).write_text(card, encoding="utf-8")
