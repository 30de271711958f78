"""Releases a bi-encoder as a folder that sentence-transformers loads."""

import inspect
import json
from pathlib import Path
from typing import Any

import transformers
from safetensors.torch import save_file
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

ModelConfig = dict[str, Any]  # the contents of a config.json
Weights = dict[str, Tensor]
MODULES = (  # by names that all versions of sentence-transformers know
    ("", "sentence_transformers.models.Transformer"),
    ("1_Pooling", "sentence_transformers.models.Pooling"),
    ("2_Normalize", "sentence_transformers.models.Normalize"),
)
POOLING_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")  # other readers need every one
LABEL_ENTRIES = ("id2label", "label2id", "problem_type")  # of a run's config; a bi-encoder has no labels


def fill_siamese_folder(folder: Path, config: ModelConfig, weights: Weights, max_length: int) -> None:
    """Writes encoder, config and the files of sentence-transformers to a folder that already holds the tokenizer.

    weights: by the names of SiameseModel's parameters; the masked-LM head is left out
    """
    architecture = MODEL_MAPPING_NAMES[config["model_type"]]
    public = {k: v for k, v in make_config(config, architecture).items() if k not in LABEL_ENTRIES}
    write_json(folder / "config.json", public)
    save_file(strip_prefix(weights, "encoder."), str(folder / "model.safetensors"), {"format": "pt"})
    options: dict[str, Any] = {"max_seq_length": max_length, "do_lower_case": False}
    if "add_pooling_layer" in inspect.signature(getattr(transformers, architecture)).parameters:
        options["model_args"] = {"add_pooling_layer": False}  # the pooler was not trained
    write_json(folder / "sentence_bert_config.json", options)
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": kind} for index, (path, kind) in enumerate(MODULES)
    ]
    write_json(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir()  # none for Normalize, which has no settings: the hub drops empty folders
    size = config.get("dim") or config["hidden_size"]  # DistilBERT's name for it
    modes = {f"pooling_mode_{mode}": mode == "mean_tokens" for mode in POOLING_MODES}
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": size, **modes})
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})


def make_config(config: ModelConfig, architecture: str) -> ModelConfig:
    """Returns a config.json without private entries, for weights in fp32."""
    public = {k: v for k, v in config.items() if not k.startswith("_")}
    return {**public, "architectures": [architecture], "dtype": "float32"}


def strip_prefix(weights: Weights, prefix: str) -> Weights:
    """Returns the tensors whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
