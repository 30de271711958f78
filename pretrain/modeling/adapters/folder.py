"""An adapter as a folder, and loading it: what it adds to which encoder, its tensors and its pair head.

adapter.json              its parts, and the base: what it is called, where it was, and its fingerprint
adapter.safetensors       the tensors of its parts
pair_head.safetensors     everything above the encoder
README.md, kinspan.json   what it was trained on, for people and for programs
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForSequenceClassification

from data_pipeline.core.default_model import DEFAULT_HUB_NAME, DEFAULT_MODEL_NAME, default_model, find_hub_name
from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import read_object
from pretrain.modeling.pair_head import POOLER, list_head_modules
from pretrain.modeling.pair_model import holds_no_weights, load_config, load_part

from . import bottleneck, lora
from .parts import AdapterPart, as_json, read_part

SPEC, TENSORS, HEAD = "adapter.json", "adapter.safetensors", "pair_head.safetensors"
FORMAT = 1
MATTER = ("model_type", "hidden_act", "layer_norm_eps", "num_attention_heads")  # of a config, beside the weights


@dataclass(frozen=True)
class Base:
    """The frozen encoder that an adapter belongs to.

    place:       where it is: a hub name, or a folder, as a path from the adapter's own folder
    fingerprint: of the encoder's weights, see ``fingerprint_encoder``
    """

    name: str
    place: str
    model_type: str
    fingerprint: str


@dataclass(frozen=True)
class Adapter:
    """An adapter in memory: the tensors of its parts and of the pair head, by the names in their files."""

    folder: Path
    parts: tuple[AdapterPart, ...]
    base: Base
    tensors: dict[str, torch.Tensor]
    head: dict[str, torch.Tensor]

    @property
    def name(self) -> str:
        return self.parts[-1].name


def is_adapter(name_or_dir: str | Path) -> bool:
    """Returns whether it is an adapter's folder. Nothing on the hub is taken for one."""
    return (Path(name_or_dir) / SPEC).is_file()


def read_adapter(folder: str | Path) -> Adapter:
    """Returns the adapter in a folder; ``wear`` compares its tensors with the base."""
    folder = Path(folder)
    parts, base = read_spec(folder)
    return Adapter(folder, parts, base, _read_tensors(folder / TENSORS), _read_tensors(folder / HEAD))


def read_spec(folder: Path) -> tuple[tuple[AdapterPart, ...], Base]:
    """Returns the parts and the base that adapter.json names."""
    path = folder / SPEC
    if not path.is_file():
        raise KinspanError(f"{folder} is no adapter: it has no {SPEC}")
    content = read_object(path, "get the folder again")
    try:
        parts, base = tuple(map(read_part, content["parts"])), Base(**content["base"])
        if content["format"] != FORMAT or len(parts) != 1 or not all(isinstance(v, str) for v in asdict(base).values()):
            raise ValueError("it does not describe one adapter and its base")
    except (TypeError, LookupError, ValueError, AttributeError, RecursionError) as error:
        raise KinspanError(f"{path} is damaged: {quote_error(error)}") from error
    return parts, base


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        tensors = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise KinspanError(f"{path} cannot be read: {quote_error(error)}") from error
    if not all(torch.isfinite(tensor).all() for tensor in tensors.values()):
        raise KinspanError(f"{path} holds numbers that are not finite")
    return {name: tensor.float() for name, tensor in tensors.items()}


def write_tensors(adapter: Adapter, folder: Path, base: Base) -> None:
    """Writes an adapter's files into a folder that exists; ``base`` as that folder finds it."""
    (folder / SPEC).write_text(format_spec(adapter.parts, base), encoding="utf-8")
    for name, tensors in ((TENSORS, adapter.tensors), (HEAD, adapter.head)):
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, str(folder / name), {"format": "pt"})


def format_spec(parts: tuple[AdapterPart, ...], base: Base) -> str:
    """Returns the text of adapter.json."""
    return json.dumps({"format": FORMAT, "parts": as_json(parts), "base": asdict(base)}, indent=1) + "\n"


def find_base(folder: Path, base: Base) -> str:
    """Returns the folder or hub name of an adapter's base. Raises KinspanError if a folder is gone."""
    if base.place == DEFAULT_MODEL_NAME:
        return default_model()
    beside = folder.resolve() / base.place
    if beside.is_dir():
        return str(beside.resolve())
    if base.place.startswith((".", "/")):
        raise KinspanError(f"{folder / SPEC}: its base {base.name} is not at {base.place}")
    return base.place


def place_of_base(name_or_dir: str | None, folder: Path) -> str:
    """Returns the base's place as adapter.json in ``folder`` names it. ``name_or_dir``: the --model of its training"""
    if name_or_dir is None or find_hub_name(name_or_dir) == DEFAULT_HUB_NAME:
        return DEFAULT_MODEL_NAME
    if not Path(name_or_dir).is_dir():
        return name_or_dir
    return Path(os.path.relpath(Path(name_or_dir).resolve(), folder.resolve())).as_posix()


def move_base(base: Base, from_folder: Path, to_folder: Path) -> Base:
    """Returns the base as adapter.json in another folder finds it. Raises KinspanError if it is gone."""
    if base.place == DEFAULT_MODEL_NAME:
        return base
    return replace(base, place=place_of_base(find_base(from_folder, base), to_folder))


def fingerprint_encoder(encoder: Any) -> str:
    """Returns a hash of a plain encoder's weights without the pooler, which belongs to the head."""
    config = encoder.config
    digest = hashlib.sha256(json.dumps([getattr(config, key, None) for key in MATTER]).encode())
    for name, tensor in sorted(encoder.named_parameters()):
        if POOLER not in name.split("."):
            digest.update(name.encode() + tensor.detach().float().numpy().tobytes())
    return digest.hexdigest()


def check_base(adapter: Adapter, fingerprint: str, name: str) -> None:
    """Raises KinspanError where an encoder of this fingerprint is not the adapter's base."""
    if adapter.base.fingerprint != fingerprint:
        raise KinspanError(f"{name} is not the base of {adapter.folder}, {adapter.base.name}: its weights differ")


def name_head(classifier: Any) -> dict[str, nn.Parameter]:
    """Returns the parameters of everything above the encoder, by their names in the classifier."""
    own = {id(parameter) for module in list_head_modules(classifier) for parameter in module.parameters()}
    return {name: parameter for name, parameter in classifier.named_parameters() if id(parameter) in own}


def name_parts(encoder: Any, parts: tuple[AdapterPart, ...]) -> dict[str, nn.Parameter]:
    """Returns the parameters of the parts in an encoder, by the names in an adapter's file."""
    shorten = lora.shorten if parts[0].kind == "lora" else bottleneck.shorten
    named = ((shorten(name), parameter) for name, parameter in encoder.named_parameters())
    return {name: parameter for name, parameter in named if name is not None}


def put_in(classifier: Any, parts: tuple[AdapterPart, ...]) -> None:
    """Puts fresh parts into a classifier's encoder, drawn from torch's generator."""
    encoder = classifier.base_model
    if parts[0].kind == "lora":
        lora.inject(encoder, parts[0].size)
    else:
        bottleneck.attach(encoder, bottleneck.build_layers(encoder.config, parts))


def fill(parameters: dict[str, nn.Parameter], tensors: dict[str, torch.Tensor], place: Path) -> None:
    """Copies tensors into parameters of the same names. Raises KinspanError where they do not fit one another."""
    wrong = sorted(parameters.keys() ^ tensors.keys()) or sorted(
        name for name, parameter in parameters.items() if parameter.shape != tensors[name].shape
    )
    if wrong:
        raise KinspanError(f"{place} does not fit its {SPEC} and its base: see {wrong[0]}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def find_model(name_or_dir: str) -> str:
    """Returns the model with the tokenizer and config: an adapter's base, otherwise the model itself."""
    return find_base(Path(name_or_dir), read_spec(Path(name_or_dir))[1]) if is_adapter(name_or_dir) else name_or_dir


def load_adapted(folder: str, **options: Any) -> Any:
    """Returns the sequence classifier of an adapter's base with the adapter and its pair head, in fp32.

    LoRA is merged, which leaves a plain model; bottlenecks stay in the normalisations of its layers.

    options: of ``from_pretrained``, such as attn_implementation

    Raises KinspanError where the base cannot be found, or is not the one that the adapter was trained beside.
    """
    adapter = read_adapter(folder)
    place = find_base(adapter.folder, adapter.base)
    # Whatever head the base has, the adapter brings its own
    classifier, _ = load_base(place, f"adapter {folder}: base", ignore_mismatched_sizes=True, **options)
    check_base(adapter, fingerprint_encoder(classifier.base_model), place)
    wear(classifier, adapter)
    if adapter.parts[0].kind == "lora":
        lora.merge(classifier)
    return classifier


def load_base(name_or_dir: str, flag: str = "--model", **options: Any) -> tuple[Any, list[str]]:
    """Returns a plain sequence classifier of one logit in fp32, and the names of its head's fresh tensors.

    Raises KinspanError where it holds no weights, or is no encoder that can be trained here.
    """
    config = load_config(name_or_dir, flag)
    if holds_no_weights(name_or_dir, flag):
        raise KinspanError(f"{flag} {name_or_dir} holds no weights: an adapter needs a base that others have, too")
    known = {"config": config, "dtype": torch.float32, **options}
    return load_part(AutoModelForSequenceClassification, name_or_dir, known, flag)


def wear(classifier: Any, adapter: Adapter) -> None:
    """Puts an adapter of this base into a classifier, pair head included, in place of the one that it wore before.

    Only bottlenecks can take turns so; of LoRA it may be one. Raises KinspanError where the tensors do not fit.
    """
    if adapter.parts[0].kind != "lora":
        bottleneck.check_family(classifier.config, adapter.base.name)
    put_in(classifier, adapter.parts)
    fill(name_parts(classifier.base_model, adapter.parts), adapter.tensors, adapter.folder / TENSORS)
    fill(name_head(classifier), adapter.head, adapter.folder / HEAD)
