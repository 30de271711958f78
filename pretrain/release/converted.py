"""Adapters of AdapterHub as ours, and ours in its format."""

import json
from pathlib import Path

from huggingface_hub import ModelCardData
from transformers.utils import logging

from data_pipeline.errors import KinspanError
from data_pipeline.tokenizers import shorten_name
from pretrain.modeling.adapters import bottleneck
from pretrain.modeling.adapters.adapterhub import is_published, read_published, write_published
from pretrain.modeling.adapters.combine import write_tensors
from pretrain.modeling.adapters.folder import (
    Adapter,
    Base,
    fill,
    fingerprint_encoder,
    is_adapter,
    name_head,
    name_parts,
    place_of_base,
    put_in,
    read_adapter,
)
from pretrain.modeling.adapters.load import load_base
from pretrain.modeling.adapters.parts import Part, describe_parts

from .folder import CARD, FACTS, replace_release

_CARD = """---
{metadata}
---

# {name}: an adapter of {base}

{parts}, beside the frozen encoder **{base}** (fingerprint `{fingerprint}`), converted from a folder of AdapterHub that
names **{theirs}** as its model. {head}
"""
WITH_HEAD = "Its pair head is the head of that folder."
WITHOUT_HEAD = (
    "That folder has no head of which a pair head could be made: this adapter ranks nothing by itself, and is for "
    "fusion, and for stacking another adapter on it."
)


def convert_adapter(folder: Path, model: str | None, output: Path) -> list[str]:
    """Writes an adapter of AdapterHub as ours, or ours for AdapterHub, and returns lines that say what came of it.

    model: the base of an adapter of AdapterHub, whose folder does not hold it

    Raises KinspanError where the folder is neither, the base is not its, or the format has no place for it.
    """
    if is_adapter(folder):
        return _export(folder, output)
    if not is_published(folder):
        raise KinspanError(f"--adapter {folder} is neither an adapter of this project nor one of AdapterHub")
    if model is None:
        raise KinspanError(f"--model is missing: the model that {folder} was trained beside")
    return _import(folder, model, output)


def _import(folder: Path, model: str, output: Path) -> list[str]:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    published = read_published(folder)
    classifier, _ = load_base(model, ignore_mismatched_sizes=True)
    config, shown = classifier.config, shorten_name(model)
    theirs = {"model_type": published.model_type, "hidden_size": published.hidden_size}
    for key, value in theirs.items():
        if getattr(config, key) != value:
            raise KinspanError(f"--model {shown} has {key} {getattr(config, key)}, the adapter {folder} {value}")
    bottleneck.check_family(config, shown)
    fingerprint = fingerprint_encoder(classifier.base_model)
    parts = (Part("bottleneck", published.name, published.size),)
    put_in(classifier, parts)
    fill(name_parts(classifier.base_model, parts), published.tensors, folder)
    if published.head:
        fill(name_head(classifier), published.head, folder)
    base = Base(shown, place_of_base(model, output), config.model_type, fingerprint)
    with replace_release(output) as partial:
        partial.mkdir(parents=True)
        write_tensors(Adapter(output, parts, base, published.tensors, published.head or {}), partial, base)
        facts = {"from": "AdapterHub", "model": published.model, "base": fingerprint}
        (partial / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
        card = _CARD.format(
            metadata=ModelCardData(pipeline_tag="text-ranking", tags=["adapter", "kinspan"]).to_yaml().strip(),
            name=published.name,
            parts=describe_parts(parts).capitalize(),
            base=base.name,
            fingerprint=fingerprint[:16],
            theirs=published.model or "no model",
            head=WITH_HEAD if published.head else WITHOUT_HEAD,
        )
        (partial / CARD).write_text(card, encoding="utf-8")
    notes = [f"wrote {output}: {describe_parts(parts)} beside {shown}"]
    if published.model and Path(published.model).name != Path(shown).name:
        notes.append(f"note: it was trained beside {published.model}; beside other weights than those it means nothing")
    if not published.head:
        notes.append("note: its folder has no head that could be a pair head: it is for --adapters, and ranks nothing")
    return notes


def _export(folder: Path, output: Path) -> list[str]:
    adapter = read_adapter(folder)
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()):
        raise KinspanError(f"--output_dir {output} is not empty: choose another folder")
    notes = [f"wrote {output}: load it with load_adapter of the library adapters, beside {adapter.base.name}"]
    if not write_published(adapter, output):
        notes.append(f"note: without its pair head, which for {adapter.base.model_type} that format has no place for")
    return notes
