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
from data_pipeline.pairs import KINDS, PAIRS_PER_ANCHOR
from data_pipeline.tokenizers import display_name

from . import attention
from .families import FAMILIES

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
        packing = attention.Packing.of(inputs["starts"], inputs["position_ids"], inputs["max_length"])
        before = attention.calls
        out = self.classifier.base_model(  # type: ignore[operator]
            input_ids=inputs["input_ids"][None],
            token_type_ids=inputs["token_type_ids"][None],
            position_ids=inputs["position_ids"][None] + self.family.first_position,
            packing=packing,
        )
        if attention.calls - before != self.config.num_hidden_layers:
            raise KinspanError(
                f"the {self.config.model_type} model did not use packed attention: "
                f"{attention.calls - before} calls for {self.config.num_hidden_layers} layers"
            )
        return out.last_hidden_state[0]

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
    options: dict[str, Any] = {"attn_implementation": attention.NAME, "dtype": torch.float32}
    parts, notes = [], []
    torch.manual_seed(seed)  # of fresh weights
    for auto in (AutoModelForSequenceClassification, AutoModelForMaskedLM):
        if scratch:
            parts.append(auto.from_config(config, **options))
            continue
        try:
            model, info = auto.from_pretrained(name_or_dir, config=config, output_loading_info=True, **options)
        except Exception as error:  # a damaged file, a missing one, the hub: one line to the user
            raise KinspanError(f"--model {name_or_dir} cannot be loaded: {_first_line(error)}") from error
        parts.append(model)
        missing = sorted(info["missing_keys"])
        if missing:
            head = "pair" if auto is AutoModelForSequenceClassification else "masked-LM"
            notes.append(
                f"the {head} head starts fresh ({len(missing)} tensors are not in {display_name(name_or_dir)})"
            )
        if any(key.startswith(f"{model.base_model_prefix}.encoder") for key in missing):
            raise KinspanError(f"--model {name_or_dir} lacks weights of the encoder itself, such as {missing[0]}")
    if scratch or any(note.startswith("the pair head") for note in notes):
        _start_at_base_rate(parts[0])
    if scratch:
        notes = [f"{display_name(name_or_dir)} holds no weights: the model starts from scratch"]
    return assemble(*parts), notes


def _start_at_base_rate(classifier: nn.Module) -> None:
    """A fresh pair head first predicts the share of positives, so that no steps go into learning it."""
    *_, last = (m for m in classifier.classifier.modules() if isinstance(m, nn.Linear))  # type: ignore[union-attr]
    nn.init.constant_(last.bias, -math.log(PAIRS_PER_ANCHOR - 1))


def assemble(classifier: nn.Module, masked_lm: nn.Module) -> PairModel:
    """One PairModel of the two models: the classifier's encoder, the other's head tied to its embedding."""
    family_name = str(classifier.config.model_type)  # type: ignore[union-attr]
    head = FAMILIES[family_name].mlm_head(masked_lm)
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
