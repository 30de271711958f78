"""Folders of adapters for tests."""

from collections.abc import Iterable
from pathlib import Path

import torch

from pretrain.modeling.adapters.folder import Base, make_base_place, name_head, name_parts, write_adapter
from pretrain.modeling.adapters.model import Method, load_adapter_model


def write_random_adapter(
    folder: Path, base: Path, method: Method = "pfeiffer", seed: int = 1, size: int | None = 4, of: Iterable[Path] = ()
) -> Path:
    """Writes an adapter of ``base`` whose numbers are drawn to a new folder, and returns it."""
    model, _ = load_adapter_model(str(base), method, size, [str(path) for path in of], folder.name, seed)
    head = name_head(model.classifier)
    torch.manual_seed(seed)
    for parameter in (*model.name_trained().values(), *head.values()):
        torch.nn.init.normal_(parameter, std=0.2)
    named = (name_parts(model.classifier.base_model), head)
    tensors = ({name: parameter.detach().clone() for name, parameter in part.items()} for part in named)
    folder.mkdir()
    place = make_base_place(str(base), folder)
    spec = Base(base.name, place, model.config.model_type, model.base_fingerprint)
    write_adapter(folder, model.part, spec, *tensors)
    return folder
