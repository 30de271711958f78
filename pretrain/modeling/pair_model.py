"""The trained module: one encoder, its own pair head and its own masked-LM head, over packed batches."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification
from transformers.utils import logging

from data_pipeline.errors import KinspanError, quote_error, quote_first_line
from data_pipeline.hub import expect_hub, explain_absence
from data_pipeline.tokenizers import shorten_name
from pretrain.modeling import attention

from .encoder import encode_packed, prepare_encoder
from .families import FAMILIES
from .losses import MLM, MLM_SUMS, PAIR, compute_mlm_loss, compute_pair_loss, name_sums


class PairModel(nn.Module):
    """An encoder with two heads.

    The vocabulary projection runs on masked positions only, and its matrix is the embedding, tied.

    objectives: the names of the mixture's parts
    """

    losses = (MLM, PAIR)

    def __init__(self, classifier: nn.Module, mlm_head: nn.Module, objectives: tuple[str, ...] = ("ssp",)) -> None:
        super().__init__()
        self.objectives = objectives
        self.classifier = classifier  # the architecture's own sequence classifier, encoder included
        self.mlm_head = mlm_head
        self.family = FAMILIES[str(classifier.config.model_type)]  # type: ignore[union-attr]
        prepare_encoder(self, classifier.base_model)  # type: ignore[arg-type]

    @property
    def config(self) -> Any:
        return self.classifier.config

    @property
    def encoders(self) -> tuple[nn.Module, ...]:
        return (self.classifier.base_model,)  # type: ignore[return-value]

    @property
    def masked_heads(self) -> tuple[nn.Module, ...]:
        """What runs at masked positions alone."""
        return (self.mlm_head,)

    @property
    def token_heads(self) -> tuple[nn.Module, ...]:
        """What runs at every token."""
        return ()

    @property
    def sum_names(self) -> tuple[str, ...]:
        return name_sums(MLM_SUMS, self.objectives)

    def encode(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Hidden states of a packed row, ``[T, hidden]``."""
        return encode_packed(self.classifier.base_model, inputs)  # type: ignore[arg-type]

    def score_pairs(self, hidden: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """Pair logits ``[n]`` of the pairs that begin at ``starts`` ``[n + 1]``."""
        return self.family.pair_logits(self.classifier, hidden[starts[:-1].long()])

    def predict_masked(self, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Vocabulary logits at these positions, ``[M, vocab]``."""
        return self.mlm_head(hidden[positions])

    def logits(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Pair logits ``[n]`` and vocabulary logits at the masked positions ``[M, vocab]``."""
        hidden = self.encode(inputs)
        pair = self.score_pairs(hidden, inputs["starts"])
        return pair, self.predict_masked(hidden, inputs["masked_positions"])

    def forward(
        self, *, scales: Mapping[str, torch.Tensor | float], **inputs: Any
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The weighted loss of a packed micro-batch, its sums ``[len(sum_names)]`` and its pair logits ``[n]``.

        One call does all of it, because ZeRO's hooks go by the calls of the module that DeepSpeed wraps.

        scales: what each loss *sum* is multiplied by, by the names of ``losses``; see step.py
        inputs: the arrays of data_pipeline.sampling.batch.Batch as tensors
        """
        pair, mlm = self.logits(inputs)
        pair = pair.float()
        pair_loss, of_pairs = compute_pair_loss(
            pair, inputs["labels"], inputs["kinds"], inputs["part"], len(self.objectives)
        )
        mlm_loss, of_tokens = compute_mlm_loss(mlm, inputs["masked_labels"])
        loss = mlm_loss * scales["mlm"] + pair_loss * scales["pair"]
        return loss, torch.cat([of_tokens, of_pairs]), pair.detach()


def load_model(
    name_or_dir: str, seed: int, objectives: tuple[str, ...] = ("ssp",), positive_share: float = 0.2
) -> tuple[PairModel, list[str]]:
    """The model to train, in fp32, and lines that say what of it is new.

    name_or_dir:    a weights folder, a hub name, or a folder with a config alone, which starts from scratch
    positive_share: of the pairs: what a fresh pair head first predicts

    Raises KinspanError where there is none, or where its architecture cannot be trained here.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    config = load_config(name_or_dir)
    scratch = holds_no_weights(name_or_dir)
    family = FAMILIES[config.model_type]
    options: dict[str, Any] = {"config": config, "attn_implementation": attention.NAME, "dtype": torch.float32}
    parts, notes = [], []
    torch.manual_seed(seed)  # of fresh weights
    for head, auto in (("pair", AutoModelForSequenceClassification), ("masked-LM", AutoModelForMaskedLM)):
        if scratch:
            parts.append(build_fresh(partial(auto.from_config, **options, trust_remote_code=False), name_or_dir))
            continue
        subfolder = Path(name_or_dir) / family.masked_lm_folder  # of a release, where its two heads share names
        where = str(subfolder) if auto is AutoModelForMaskedLM and subfolder.is_dir() else name_or_dir
        model, missing = load_part(auto, where, options)
        parts.append(model)
        if missing:
            notes.append(
                f"the {head} head starts fresh ({len(missing)} tensors are not in {shorten_name(name_or_dir)})"
            )
    if scratch or any(note.startswith("the pair head") for note in notes):
        start_at_base_rate(parts[0], positive_share)
    if scratch:
        notes = [f"{shorten_name(name_or_dir)} holds no weights: the model starts from scratch"]
    classifier, masked_lm = parts
    return assemble(classifier, masked_lm, objectives), notes


def build_fresh(build: Callable[[], Any], name_or_dir: str, flag: str = "--model") -> Any:
    """What ``build`` makes of a config alone. Raises KinspanError where the config's values do not go together."""
    try:
        return build()
    except KinspanError:
        raise
    except Exception as error:  # heads that do not divide the width, an unknown activation, ...
        raise KinspanError(
            f"{flag} {name_or_dir}: no model can be built of its config.json: {quote_error(error)}"
        ) from error


def load_part(
    model_class: Any, name_or_dir: str, options: dict[str, Any], flag: str = "--model"
) -> tuple[Any, list[str]]:
    """The model that ``model_class`` makes of the weights, and the names of its tensors that they lack: a head's.

    Raises KinspanError, by ``flag``, where they cannot be loaded, lack some of the encoder, or are not all finite.
    """
    try:
        model, info = model_class.from_pretrained(
            name_or_dir,
            output_loading_info=True,
            trust_remote_code=False,
            **options | {"ignore_mismatched_sizes": True},
        )
    except Exception as error:  # a damaged file, a missing one, the hub: one line to the user
        raise KinspanError(f"{flag} {name_or_dir} cannot be loaded: {quote_first_line(error)}") from error
    mismatched = sorted(info["mismatched_keys"])
    if mismatched and not options.get("ignore_mismatched_sizes"):
        key, stored, expected = mismatched[0]
        raise KinspanError(
            f"{flag} {name_or_dir}: {key} has the shape {list(stored)}, and by its config.json {list(expected)}: give "
            "the config.json of these weights"
        )
    missing = sorted(info["missing_keys"])
    lost = [key for key in missing if key.startswith(f"{model.base_model_prefix}.") and ".pooler" not in key]
    if lost:
        raise KinspanError(f"{flag} {name_or_dir} lacks weights of the encoder itself, such as {lost[0]}")
    broken = next((name for name, tensor in model.named_parameters() if not torch.isfinite(tensor).all()), None)
    if broken:
        raise KinspanError(f"{flag} {name_or_dir} holds numbers that are not finite, in {broken}: use other weights")
    return model, missing


def start_at_base_rate(classifier: nn.Module, positive_share: float) -> None:
    """A fresh pair head first predicts the share of positives, so that no steps go into learning it."""
    *_, last = (m for m in classifier.classifier.modules() if isinstance(m, nn.Linear))  # type: ignore[union-attr]
    nn.init.constant_(last.bias, math.log(positive_share / (1 - positive_share)))


def assemble(classifier: nn.Module, masked_lm: nn.Module, objectives: tuple[str, ...] = ("ssp",)) -> PairModel:
    """One PairModel of the two models: the classifier's encoder, the other's head tied to its embedding."""
    family_name = str(classifier.config.model_type)  # type: ignore[union-attr]
    head = FAMILIES[family_name].mlm_head_of(masked_lm)
    decoder = masked_lm.get_output_embeddings()  # type: ignore[operator]
    decoder.weight = classifier.get_input_embeddings().weight  # type: ignore[operator]
    return PairModel(classifier, head, objectives).train()  # from_pretrained leaves dropout off


def holds_no_weights(name_or_dir: str, flag: str = "--model") -> bool:
    """Whether it is a folder with a config alone. Raises KinspanError where its weights are pickled."""
    folder = Path(name_or_dir)
    safe, pickled = list(folder.glob("*.safetensors")), list(folder.glob("pytorch_model*.bin"))
    if pickled and not safe:
        raise KinspanError(f"{flag} {name_or_dir} holds pickled weights only: convert them to safetensors first")
    return folder.is_dir() and not safe


def load_config(name_or_dir: str, flag: str = "--model") -> Any:
    """Its config, with one logit. Raises KinspanError where it is no encoder that can be trained here."""
    expect_hub(name_or_dir)
    try:
        config = AutoConfig.from_pretrained(name_or_dir, trust_remote_code=False)
    except Exception as error:
        raise KinspanError(f"no model at {name_or_dir}: {explain_absence(name_or_dir, error)}") from error
    if config.model_type not in FAMILIES or getattr(config, "is_decoder", False):
        raise KinspanError(
            f"{flag} {name_or_dir} is of the type {config.model_type}, not an encoder that can be trained here: "
            f"use one of the families {', '.join(FAMILIES)}"
        )
    if not getattr(config, "tie_word_embeddings", True):
        raise KinspanError(f"{flag} {name_or_dir} has untied embeddings (tie_word_embeddings: false): not supported")
    if config.model_type == "deberta-v2" and not config.legacy:
        raise KinspanError(f"{flag} {name_or_dir} has the newer masked-LM head (legacy: false): not supported")
    if config.model_type == "modernbert":
        config.classifier_pooling = "cls"  # the pair head reads first tokens, in training and in the release
    config.num_labels = 1
    config.problem_type = "multi_label_classification"  # with one label transformers would take a squared error
    return config


def fingerprint_weights(model: nn.Module, *configs: Any) -> str:
    """Names the starting point by its content: architecture and every weight."""
    digest = hashlib.sha256()
    for config in configs:
        shape = {k: v for k, v in config.to_dict().items() if k not in ("_name_or_path", "transformers_version")}
        digest.update(json.dumps(shape, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
