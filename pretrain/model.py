"""The trained module: one encoder, its own pair head and its own masked-LM head, over packed batches."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification
from transformers.utils import logging

from data_pipeline.errors import KinspanError
from data_pipeline.order import PAIRS_PER_ANCHOR
from data_pipeline.pairs import KINDS
from data_pipeline.tokenizers import display_name

from . import attention
from .encoder import encode
from .families import FAMILIES, Family

# The sums that a forward pass adds to; metrics.py turns them into figures.
STATS = (
    "mlm_loss",
    "mlm_correct",
    "mlm_tokens",
    "pair_loss",
    *(f"{kind}_pairs" for kind in KINDS),
    *(f"{kind}_called_positive" for kind in KINDS),
)


class PairModel(nn.Module):
    """An encoder with two heads.

    The vocabulary projection runs on masked positions only, and its matrix is the embedding, tied.
    """

    def __init__(self, classifier: nn.Module, mlm_head: nn.Module, family_name: str) -> None:
        super().__init__()
        self.classifier = classifier  # the architecture's own sequence classifier, encoder included
        self.mlm_head = mlm_head
        self.family_name = family_name
        self.family = FAMILIES[family_name]

    @property
    def config(self) -> Any:
        return self.classifier.config

    def encode(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Hidden states ``[T, hidden]`` of a packed row."""
        return encode(self.classifier.base_model, inputs)  # type: ignore[arg-type]

    def logits(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Pair logits ``[n]`` and vocabulary logits at the masked positions ``[M, vocab]``."""
        hidden = self.encode(inputs)
        pair = self.family.pair_logits(self.classifier, hidden[inputs["starts"][:-1].long()])
        return pair, self.mlm_head(hidden[inputs["masked_positions"]])

    def forward(self, **inputs: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The weighted loss of a packed micro-batch, its sums ``[len(STATS)]`` and its pair logits ``[n]``.

        Args: the arrays of data_pipeline.stream.Batch as tensors, and
            mlm_scale, pair_scale: what each loss *sum* is multiplied by; see step.py
        """
        pair, mlm = (x.float() for x in self.logits(inputs))
        labels, kinds = inputs["labels"].float(), inputs["kinds"]
        pair_loss = F.binary_cross_entropy_with_logits(pair, labels, reduction="sum")
        mlm_loss = F.cross_entropy(mlm, inputs["masked_labels"], reduction="sum")
        loss = mlm_loss * inputs["mlm_scale"] + pair_loss * inputs["pair_scale"]
        with torch.no_grad():
            correct = (mlm.argmax(-1) == inputs["masked_labels"]).sum()
            of_kind = [kinds == number for number in range(len(KINDS))]
            sums = [mlm_loss, correct, torch.full((), float(len(mlm)), device=pair.device), pair_loss]
            sums += [mask.sum() for mask in of_kind] + [((pair > 0) & mask).sum() for mask in of_kind]
            stats = torch.stack([s.to(pair.device, torch.float32) for s in sums])
        return loss, stats, pair.detach()


def load_model(name_or_dir: str, seed: int) -> tuple[PairModel, list[str]]:
    """The model to train, in fp32, and lines that say what of it is new.

    ``name_or_dir``: a weights folder, a hub name, or a folder with a config alone, which starts from scratch.
    Raises KinspanError where there is none, or where its architecture cannot be trained here.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    config = _load_config(name_or_dir)
    folder = Path(name_or_dir)
    scratch = folder.is_dir() and not [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]
    if folder.is_dir() and not scratch and not list(folder.glob("*.safetensors")):
        raise KinspanError(f"--model {name_or_dir} holds pickled weights only: convert them to safetensors first")
    family = FAMILIES[config.model_type]
    # A family that cannot be packed stays on its own attention, which goes by this name.
    attends_by = attention.NAME if family.packed else "eager"
    options: dict[str, Any] = {"config": config, "attn_implementation": attends_by, "dtype": torch.float32}
    parts, notes = [], []
    torch.manual_seed(seed)  # of fresh weights
    for head, auto in (("pair", AutoModelForSequenceClassification), ("masked-LM", AutoModelForMaskedLM)):
        if scratch:
            parts.append(auto.from_config(**options))
            continue
        model, missing = _load_part(auto, name_or_dir, family, options)
        parts.append(model)
        if missing:
            notes.append(
                f"the {head} head starts fresh ({len(missing)} tensors are not in {display_name(name_or_dir)})"
            )
    if scratch or any(note.startswith("the pair head") for note in notes):
        _start_at_base_rate(parts[0])
    if scratch:
        notes = [f"{display_name(name_or_dir)} holds no weights: the model starts from scratch"]
    if not family.packed:
        notes.append(f"{config.model_type} models cannot be packed: batches are padded")
    return assemble(*parts), notes


def _load_part(auto: Any, name_or_dir: str, family: Family, options: dict[str, Any]) -> tuple[Any, list[str]]:
    """The model that ``auto`` makes of the weights, and the names of its tensors that they lack: a head's."""
    subfolder = Path(name_or_dir) / family.masked_lm_folder  # of a release, where its two heads share names
    where = str(subfolder) if auto is AutoModelForMaskedLM and subfolder.is_dir() else name_or_dir
    try:
        model, info = auto.from_pretrained(where, output_loading_info=True, **options)
    except Exception as error:  # a damaged file, a missing one, the hub: one line to the user
        raise KinspanError(f"--model {name_or_dir} cannot be loaded: {_first_line(error)}") from error
    missing = sorted(info["missing_keys"])
    lost = [key for key in missing if key.startswith(f"{model.base_model_prefix}.") and ".pooler" not in key]
    if lost:
        raise KinspanError(f"--model {name_or_dir} lacks weights of the encoder itself, such as {lost[0]}")
    return model, missing


def _start_at_base_rate(classifier: nn.Module) -> None:
    """A fresh pair head first predicts the share of positives, so that no steps go into learning it."""
    *_, last = (m for m in classifier.classifier.modules() if isinstance(m, nn.Linear))  # type: ignore[union-attr]
    nn.init.constant_(last.bias, -math.log(PAIRS_PER_ANCHOR - 1))


def assemble(classifier: nn.Module, masked_lm: nn.Module) -> PairModel:
    """One PairModel of the two models: the classifier's encoder, the other's head tied to its embedding."""
    family_name = str(classifier.config.model_type)  # type: ignore[union-attr]
    head = FAMILIES[family_name].mlm_head_of(masked_lm)
    decoder = masked_lm.get_output_embeddings()  # type: ignore[operator]
    decoder.weight = classifier.get_input_embeddings().weight  # type: ignore[operator]
    return PairModel(classifier, head, family_name).train()  # from_pretrained leaves dropout off


def _load_config(name_or_dir: str) -> Any:
    try:
        config = AutoConfig.from_pretrained(name_or_dir)
    except Exception as error:
        raise KinspanError(f"no model at {name_or_dir}: {_first_line(error)}") from error
    if config.model_type not in FAMILIES or getattr(config, "is_decoder", False):
        raise KinspanError(
            f"--model {name_or_dir} is of the type {config.model_type}, not an encoder that can be trained here: "
            f"use one of the families {', '.join(FAMILIES)}"
        )
    if not getattr(config, "tie_word_embeddings", True):
        raise KinspanError(f"--model {name_or_dir} has untied embeddings (tie_word_embeddings: false): not supported")
    if config.model_type == "deberta-v2" and not config.legacy:
        raise KinspanError(f"--model {name_or_dir} has the newer masked-LM head (legacy: false): not supported")
    if config.model_type == "modernbert":
        config.classifier_pooling = "cls"  # the pair head reads first tokens, in training and in the release
    config.num_labels = 1
    config.problem_type = "multi_label_classification"  # with one label transformers would take a squared error
    return config


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def weights_fingerprint(model: nn.Module, config: Any) -> str:
    """Names the starting point by its content: architecture and every weight."""
    shape = {k: v for k, v in config.to_dict().items() if k not in ("_name_or_path", "transformers_version")}
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
