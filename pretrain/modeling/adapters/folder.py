"""An adapter's folder: writing it, reading it, and loading the adapter with its base.

adapter.json              the part (see AdapterPart), and the base: name, place and fingerprint
adapter.safetensors       the part's tensors
pair_head.safetensors     the tensors above the encoder
README.md, kinspan.json   how it was trained, for people and for programs
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from data_pipeline.core.default_model import DEFAULT_HUB_NAME, DEFAULT_MODEL_NAME, default_model, find_hub_name
from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import read_object
from pretrain.modeling.pair_model import POOLER, holds_no_weights, list_head_modules, load_config, load_part

from .layers import AdapterPart, add_layers, merge_lora, name_in_adapter

SPEC, TENSORS, HEAD = "adapter.json", "adapter.safetensors", "pair_head.safetensors"
FORMAT = 1
FINGERPRINTED = ("model_type", "hidden_act", "layer_norm_eps", "num_attention_heads")  # entries of a config
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Base:
    """The frozen encoder that an adapter belongs to.

    place:       a hub name, or a path relative to the adapter's folder
    fingerprint: see ``fingerprint_encoder``
    """

    name: str
    place: str
    model_type: str
    fingerprint: str


@dataclass(frozen=True)
class Adapter:
    """An adapter in memory, with the tensors of its part and of the pair head by their names in the files."""

    folder: Path
    part: AdapterPart
    base: Base
    tensors: Tensors
    head: Tensors


def is_adapter(name_or_dir: str | Path) -> bool:
    """Returns whether this is the folder of an adapter. A hub name never is."""
    return (Path(name_or_dir) / SPEC).is_file()


def read_adapter(folder: str | Path) -> Adapter:
    """Returns the adapter in a folder; ``wear`` checks its tensors against the base."""
    folder = Path(folder)
    part, base = read_spec(folder)
    return Adapter(folder, part, base, _read_tensors(folder / TENSORS), _read_tensors(folder / HEAD))


def read_spec(folder: Path) -> tuple[AdapterPart, Base]:
    """Returns the part and the base that adapter.json names."""
    path = folder / SPEC
    content = read_object(path, "get the folder again")
    try:
        (entry,) = content["parts"]
        fused = tuple(AdapterPart(**{**part, "of": ()}) for part in entry.get("of", ()))
        return AdapterPart(**{**entry, "of": fused}), Base(**content["base"])
    except (TypeError, LookupError, ValueError, AttributeError) as error:
        raise KinspanError(f"{path} is damaged: {quote_error(error)}") from error


def _read_tensors(path: Path) -> Tensors:
    try:
        return {name: tensor.float() for name, tensor in load_file(str(path)).items()}
    except (OSError, SafetensorError) as error:
        raise KinspanError(f"{path} cannot be read: {quote_error(error)}") from error


def write_spec(folder: Path, part: AdapterPart, base: Base) -> None:
    """Writes adapter.json. The base's place must be relative to ``folder``, or a hub name."""
    content = {"format": FORMAT, "parts": [asdict(part)], "base": asdict(base)}
    (folder / SPEC).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_adapter(folder: Path, part: AdapterPart, base: Base, tensors: Tensors, head: Tensors) -> None:
    """Writes an adapter's files, except card and facts, to an existing folder."""
    write_spec(folder, part, base)
    for name, content in ((TENSORS, tensors), (HEAD, head)):
        save_file({key: tensor.contiguous() for key, tensor in content.items()}, str(folder / name), {"format": "pt"})


def find_base(folder: Path, base: Base) -> str:
    """Returns the folder or hub name of an adapter's base. Raises KinspanError if the folder is missing."""
    if base.place == DEFAULT_MODEL_NAME:
        return default_model()
    beside = folder.resolve() / base.place
    if beside.is_dir():
        return str(beside.resolve())
    if base.place.startswith((".", "/")):
        raise KinspanError(f"{folder / SPEC}: its base {base.name} is not at {base.place}")
    return base.place


def make_base_place(name_or_dir: str | None, folder: Path | None = None) -> str:
    """Returns ``Base.place`` for a --model. A folder's is relative to ``folder``, if given, else absolute."""
    if name_or_dir is None or find_hub_name(name_or_dir) == DEFAULT_HUB_NAME:
        return DEFAULT_MODEL_NAME
    if not Path(name_or_dir).is_dir():
        return name_or_dir
    path = Path(name_or_dir).resolve()
    return Path(os.path.relpath(path, folder.resolve())).as_posix() if folder else str(path)


def fingerprint_encoder(encoder: PreTrainedModel) -> str:
    """Returns a hash of a plain encoder's weights, without the pooler, which belongs to the head."""
    config = encoder.config
    digest = hashlib.sha256(json.dumps([getattr(config, key, None) for key in FINGERPRINTED]).encode())
    for name, tensor in sorted(encoder.named_parameters()):
        if POOLER not in name.split("."):
            digest.update(name.encode() + tensor.detach().float().numpy().tobytes())
    return digest.hexdigest()


def check_base(adapter: Adapter, fingerprint: str, name: str) -> None:
    """Raises KinspanError if this fingerprint is not that of the adapter's base. ``name``: names the encoder"""
    if adapter.base.fingerprint != fingerprint:
        raise KinspanError(f"{name} is not the base of {adapter.folder}, {adapter.base.name}: its weights differ")


def name_head(classifier: PreTrainedModel) -> dict[str, nn.Parameter]:
    """Returns the parameters above the encoder, by their names in the classifier."""
    head = {id(parameter) for module in list_head_modules(classifier) for parameter in module.parameters()}
    return {name: parameter for name, parameter in classifier.named_parameters() if id(parameter) in head}


def name_parts(encoder: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters of an adapter in an encoder, by the names in its file."""
    named = ((name_in_adapter(name), parameter) for name, parameter in encoder.named_parameters())
    return {name: parameter for name, parameter in named if name is not None}


def fill(parameters: dict[str, nn.Parameter], tensors: Tensors, path: Path) -> None:
    """Copies tensors into parameters of the same names. Raises KinspanError if names or shapes differ."""
    wrong = sorted(parameters.keys() ^ tensors.keys())
    wrong = wrong or sorted(name for name, tensor in tensors.items() if tensor.shape != parameters[name].shape)
    if wrong:
        raise KinspanError(f"{path} does not fit its {SPEC} and its base: see {wrong[0]}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def find_model(name_or_dir: str) -> str:
    """Returns where a model's tokenizer and config are: an adapter's base, otherwise the model itself."""
    return find_base(Path(name_or_dir), read_spec(Path(name_or_dir))[1]) if is_adapter(name_or_dir) else name_or_dir


def load_adapted(folder: str, **options: Any) -> PreTrainedModel:
    """Returns the sequence classifier of an adapter's base with the adapter and its pair head, in fp32.

    LoRA is merged into the weights; bottlenecks are inserted into the layers' normalisations.
    """
    adapter = read_adapter(folder)
    place = find_base(adapter.folder, adapter.base)
    # The adapter's head replaces the base's, whatever its shape
    classifier, _ = load_base(place, f"adapter {folder}: base", **options)
    check_base(adapter, fingerprint_encoder(classifier.base_model), place)
    wear(classifier, adapter)
    if adapter.part.kind == "lora":
        merge_lora(classifier)
    return classifier


def load_base(name_or_dir: str, flag: str = "--model", **options: Any) -> tuple[PreTrainedModel, list[str]]:
    """Returns a plain sequence classifier of one logit in fp32, and the names of its head's fresh tensors."""
    config = load_config(name_or_dir, flag)
    if holds_no_weights(name_or_dir):
        raise KinspanError(f"{flag} {name_or_dir} holds no weights: an adapter needs a base with weights")
    arguments = {"config": config, "dtype": torch.float32, **options}
    return load_part(AutoModelForSequenceClassification, name_or_dir, arguments, flag)


def wear(classifier: PreTrainedModel, adapter: Adapter) -> None:
    """Puts an adapter and its pair head into a classifier of its base, replacing any bottlenecks there."""
    add_layers(classifier.base_model, adapter.part)
    fill(name_parts(classifier.base_model), adapter.tensors, adapter.folder / TENSORS)
    fill(name_head(classifier), adapter.head, adapter.folder / HEAD)
