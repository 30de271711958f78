"""Adapters in the format of AdapterHub, which the library ``adapters`` (once ``adapter-transformers``) writes.

adapter_config.json                               the architecture, and by name the model that it was trained beside
pytorch_adapter.bin or adapter.safetensors        the tensors
head_config.json, pytorch_model_head.bin (model_head.safetensors)    the head that was trained with it, if any

Its architecture "pfeiffer", today "seq_bn", is the bottleneck of bottleneck.py: the residual of the bottleneck is taken
before the layer's normalisation (``residual_before_ln``), and the block's input is added after it, which together is
``LN(f + x + B(LN(f + x)))``. Whatever differs from it is refused by the name of the option or of the tensor.
"""

import json
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from data_pipeline.errors import KinspanError, quote_first_line
from data_pipeline.files import read_object

from .folder import Adapter

CONFIG, TENSORS, SAFE_TENSORS = "adapter_config.json", "pytorch_adapter.bin", "adapter.safetensors"
HEAD_CONFIG, HEAD, SAFE_HEAD = "head_config.json", "pytorch_model_head.bin", "model_head.safetensors"
ADVICE = "get the folder again"
# What an option must be, and what it is where the file does not say
OPTIONS: dict[str, tuple[Any, Any]] = {
    "output_adapter": (True, None),
    "mh_adapter": (False, None),
    "cross_adapter": (False, False),
    "non_linearity": ("relu", None),
    "original_ln_before": (True, False),
    "original_ln_after": (True, True),
    "residual_before_ln": (True, True),
    "ln_before": (False, False),
    "ln_after": (False, False),
    "is_parallel": (False, False),
    "use_gating": (False, False),
    "phm_layer": (False, False),
    "scaling": (1.0, 1.0),
}
# Of a family's encoder the name there, and the class of the model with heads
NAMES = {
    "bert": ("bert", "BertAdapterModel"),
    "roberta": ("roberta", "RobertaAdapterModel"),
    "electra": ("electra", "ElectraAdapterModel"),
    "deberta-v2": ("deberta", "DebertaV2AdapterModel"),
}
# The layers of our pair head that are a head of two layers with tanh over the first token
HEADS = {"bert": ("bert.pooler.dense", "classifier"), "roberta": ("classifier.dense", "classifier.out_proj")}
HEAD_OPTIONS = {"layers": 2, "activation_function": "tanh", "use_pooler": False, "bias": True}
UNREADABLE = (OSError, EOFError, SafetensorError, pickle.UnpicklingError, RuntimeError, AttributeError, ValueError)
HEAD_PLACES = (1, 4)  # of its linear layers, between which are dropout and tanh
# Since 2023 the first word; before, one for adapters of tasks and one for those of languages
PLACE = re.compile(r"\.layer\.(\d+)\.output\.(?:adapters|layer_text_(?:task|lang)_adapters)\.([^.]+)\.(.+)$")
HEAD_PLACE = re.compile(r"^heads\..+\.(\d+)\.(weight|bias)$")
TENSOR_NAMES = {
    "adapter_down.0.weight": "down.weight",
    "adapter_down.0.bias": "down.bias",
    "adapter_up.weight": "up.weight",
    "adapter_up.bias": "up.bias",
}


@dataclass(frozen=True)
class Published:
    """An adapter as AdapterHub has it.

    model:       the name of its base
    hidden_size: of its base
    tensors:     by the names in an adapter's file, of one bottleneck
    head:        by the names in a sequence classifier; None where there is none, or none that our pair head could be
    """

    name: str
    model: str
    model_type: str
    hidden_size: int
    size: int
    tensors: dict[str, torch.Tensor]
    head: dict[str, torch.Tensor] | None


def is_published(folder: Path) -> bool:
    """Whether it is a folder in the format of AdapterHub. ``peft`` gives its config the same name."""
    return (folder / CONFIG).is_file()


def read_published(folder: Path) -> Published:
    """The adapter in a folder of AdapterHub.

    Raises KinspanError where files are missing or damaged, or where it is of another architecture.
    """
    path = folder / CONFIG
    config = read_object(path, ADVICE)
    options = config.get("config")
    if "peft_type" in config or not isinstance(options, dict):
        raise KinspanError(f"{path} is no adapter of AdapterHub: it has no architecture under config")
    _refuse_other(path, options)
    place, found = _read_tensors(folder, SAFE_TENSORS, TENSORS)
    tensors = _rename(place, found)
    try:
        name, model = str(config["name"]), str(config.get("model_name") or "")
        model_type, hidden = str(config["model_type"]), int(config["hidden_size"])
    except (TypeError, LookupError, ValueError) as error:
        raise KinspanError(f"{path} does not say its name, model_type and hidden_size: {ADVICE}") from error
    sizes = {int(tensor.shape[0]) for key, tensor in tensors.items() if key.endswith("down.weight")}
    if len(sizes) != 1:
        raise KinspanError(f"{place}: its bottlenecks are {sorted(sizes)} wide, and only those of one width are read")
    head = _read_head(folder, model_type) if (folder / HEAD_CONFIG).is_file() else None
    return Published(name, model, model_type, hidden, sizes.pop(), tensors, head)


def _refuse_other(path: Path, options: dict[str, Any]) -> None:
    """Raises KinspanError where the options are not those of the bottleneck."""
    if architecture := options.get("architecture"):
        raise KinspanError(f"{path} is of the architecture {architecture}: only the bottleneck of Pfeiffer is read")
    known = {key.lower(): value for key, value in options.items()}  # the first files had LN_before, MH_Adapter
    for key, (needed, default) in OPTIONS.items():
        if known.get(key, default) != needed:
            raise KinspanError(
                f"{path} has {key} {known.get(key, default)}, and the bottleneck of Pfeiffer, which alone is read, has "
                f"{needed}"
            )
    if known.get("leave_out"):
        raise KinspanError(f"{path} leaves out the layers {known['leave_out']}: only adapters in every layer are read")


def _read_tensors(folder: Path, safe: str, pickled: str) -> tuple[Path, dict[str, torch.Tensor]]:
    """The tensors of one of two files. A pickle may make tensors and nothing else."""
    path = folder / (safe if (folder / safe).is_file() else pickled)
    try:
        found = load_file(str(path)) if path.name == safe else torch.load(path, map_location="cpu", weights_only=True)
        whole = all(isinstance(value, torch.Tensor) and bool(torch.isfinite(value).all()) for value in found.values())
    except (
        OSError,
        SafetensorError,
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        AttributeError,
        ValueError,
    ) as error:
        raise KinspanError(f"{path} cannot be read: {quote_first_line(error)}") from error
    if not whole:
        raise KinspanError(f"{path} does not hold finite tensors alone: {ADVICE}")
    return path, {name: value.float() for name, value in found.items()}


def _rename(place: Path, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, tensor in found.items():
        match = PLACE.search(name)
        if match is None or match[3] not in TENSOR_NAMES or "attention" in name.split("."):
            raise KinspanError(f"{place} holds {name}, which the bottleneck of Pfeiffer has not: it cannot be read")
        tensors[f"{match[1]}.0.{TENSOR_NAMES[match[3]]}"] = tensor
    return tensors


def _read_head(folder: Path, model_type: str) -> dict[str, torch.Tensor] | None:
    """The head, where it is one that our pair head can be: of two labels, label 1 less label 0."""
    described = read_object(folder / HEAD_CONFIG, ADVICE).get("config")
    options = described if isinstance(described, dict) else {}
    labels = (options.get("head_type"), options.get("num_labels"))
    fits = all(options.get(key, HEAD_OPTIONS[key]) == value for key, value in HEAD_OPTIONS.items())
    kinds = (("classification", 1), ("classification", 2), ("multilabel_classification", 1))
    if model_type not in HEADS or labels not in kinds or not fits:
        return None
    path, found = _read_tensors(folder, SAFE_HEAD, HEAD)
    places = dict(zip(HEAD_PLACES, HEADS[model_type], strict=True))
    head = {}
    for name, tensor in found.items():
        match = HEAD_PLACE.match(name)
        if match is None or int(match[1]) not in places:
            raise KinspanError(f"{path} holds {name}, which its {HEAD_CONFIG} does not speak of: {ADVICE}")
        folded = tensor[1:] - tensor[:1] if labels[1] == 2 and int(match[1]) == HEAD_PLACES[-1] else tensor
        head[f"{places[int(match[1])]}.{match[2]}"] = folded
    return head


def write_published(adapter: Adapter, folder: Path) -> bool:
    """Writes an adapter into a folder that exists, as the library reads it, and returns whether its head is with it.

    Raises KinspanError where it is not of one bottleneck, or where the library has no such model.
    """
    kind, model_type = [part.kind for part in adapter.parts], adapter.base.model_type
    if kind != ["bottleneck"]:
        raise KinspanError(f"{adapter.folder} is no single bottleneck, and only such are written for AdapterHub")
    if model_type not in NAMES:
        raise KinspanError(f"{adapter.folder}: the library of AdapterHub has no bottlenecks for {model_type}")
    name = re.sub(r"\W+", "_", adapter.name)  # a module's name there
    prefix, model_class = NAMES[model_type]
    ours = {own: theirs for theirs, own in TENSOR_NAMES.items()}
    tensors = {}
    for key, tensor in adapter.tensors.items():
        layer, _, rest = key.split(".", 2)
        place = f"{prefix}.encoder.layer.{layer}.output.adapters.{name}.{ours[rest]}"
        tensors[place] = tensor.contiguous()
    hidden, size = adapter.tensors["0.0.up.weight"].shape
    known = {"model_type": model_type, "hidden_size": hidden, "model_name": adapter.base.name, "name": name}
    known["model_class"] = model_class
    options = {key: needed for key, (needed, _) in OPTIONS.items()}
    factor = hidden // size if hidden % size == 0 else hidden / (size + 0.5)  # hidden // factor is the size
    _write_json(folder / CONFIG, {**known, "config": {**options, "reduction_factor": factor}})
    torch.save(tensors, folder / TENSORS)
    if model_type not in HEADS or not adapter.head:
        return False
    head = {
        f"heads.{name}.{place}.{kind}": adapter.head[f"{layer}.{kind}"].contiguous()
        for layer, place in zip(HEADS[model_type], HEAD_PLACES, strict=True)
        for kind in ("weight", "bias")
    }
    config = {"head_type": "classification", "num_labels": 1, "label2id": None, "dropout_prob": None}
    _write_json(folder / HEAD_CONFIG, {**known, "config": {**config, **HEAD_OPTIONS}})
    torch.save(head, folder / HEAD)
    return True


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
