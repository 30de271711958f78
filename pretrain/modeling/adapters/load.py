"""A base with an adapter, ready to score."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from data_pipeline.errors import KinspanError
from pretrain.modeling.pair_model import holds_no_weights, load_config, load_part

from . import bottleneck, lora
from .folder import (
    HEAD,
    TENSORS,
    Adapter,
    check_base,
    fill,
    find_base,
    fingerprint_encoder,
    is_adapter,
    name_head,
    name_parts,
    put_in,
    read_adapter,
    read_spec,
)


def find_model(name_or_dir: str) -> str:
    return find_base(Path(name_or_dir), read_spec(Path(name_or_dir))[1]) if is_adapter(name_or_dir) else name_or_dir


def load_adapted(folder: str, **options: Any) -> Any:
    """The sequence classifier of an adapter's base with the adapter in it and its pair head, in fp32; LoRA is merged.

    options: of ``from_pretrained``, such as attn_implementation
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
    """A plain sequence classifier of one logit in fp32, and the names of its head's tensors that start fresh."""
    config = load_config(name_or_dir, flag)
    if holds_no_weights(name_or_dir, flag):
        raise KinspanError(f"{flag} {name_or_dir} holds no weights: an adapter needs a base that others have, too")
    known = {"config": config, "dtype": torch.float32, **options}
    return load_part(AutoModelForSequenceClassification, name_or_dir, known, flag)


def wear(classifier: Any, adapter: Adapter) -> None:
    """Puts an adapter of this base into a classifier, pair head included, in place of the one that it wore before.

    Only bottlenecks can take turns so; of LoRA it may be one.
    """
    if adapter.parts[0].kind != "lora":
        bottleneck.check_family(classifier.config, adapter.base.name)
    put_in(classifier, adapter.parts)
    fill(name_parts(classifier.base_model, adapter.parts), adapter.tensors, adapter.folder / TENSORS)
    fill(name_head(classifier), adapter.head, adapter.folder / HEAD)
