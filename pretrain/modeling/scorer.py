"""Any sequence classifier as a scorer of pairs, by the plain forward of ``transformers``."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import (
    AlbertForPreTraining,
    AutoConfig,
    AutoModelForSequenceClassification,
    BertForNextSentencePrediction,
)
from transformers.utils import logging

from data_pipeline import tokenizers
from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.hub import expect_hub
from data_pipeline.core.progress import show_progress
from pretrain.engine.device import is_out_of_memory

from .adapters.folder import find_model, is_adapter, load_adapted
from .families import FAMILIES
from .pair_model import holds_no_weights

HEADS = {"bert": (BertForNextSentencePrediction, "logits"), "albert": (AlbertForPreTraining, "sop_logits")}


NOT_NEEDED = "predictions."  # ALBERT's masked-LM head; its pairs are scored by another one


@dataclass(frozen=True)
class Scorer:
    """A model that scores pairs.

    head:  what its score is, in words
    score: the model's output -> scores ``[n]``, above 0 where it calls a pair positive
    """

    name: str
    model: Any
    tokenizer: Any
    head: str
    score: Callable[[Any], torch.Tensor]


@dataclass(frozen=True)
class PackedPairs:
    """n pairs as a model's inputs, one after another: ``ids`` and ``types`` ``[T]``, ``starts`` ``[n + 1]``."""

    ids: np.ndarray
    types: np.ndarray
    starts: np.ndarray


def load_scorer(name_or_dir: str, device: str | None = None) -> Scorer:
    """A sequence classifier of one or two labels, BERT with its next-sentence head, or ALBERT with its order head.

    name_or_dir: a release, an adapter beside its base, any other weights folder, or a hub name. Its config's
        ``architectures`` decide; BERT and ALBERT models that name another class are scored by their heads of pre-
        training where these are in the file
    device: default: a GPU where there is one

    Raises KinspanError where there is no model, or where its head has no weights.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if is_adapter(name_or_dir):
        model, head, score = load_adapted(name_or_dir), "with an adapter, one logit", lambda out: out.logits[:, 0]
    else:
        model, head, score = _load_with_head(name_or_dir)
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
    tokenizer = tokenizers.load_tokenizer(find_model(name_or_dir))
    return Scorer(tokenizers.shorten_name(name_or_dir), model, tokenizer, f"{type(model).__name__}, {head}", score)


def _load_with_head(name_or_dir: str) -> tuple[Any, str, Callable[[Any], torch.Tensor]]:
    """A model, which of its heads scores pairs, and how the score follows from its output."""
    expect_hub(name_or_dir)
    try:
        config = AutoConfig.from_pretrained(name_or_dir, trust_remote_code=False)
    except Exception as error:  # a missing folder, a broken config, the hub: one line to the user
        raise KinspanError(f"no model at {name_or_dir}: {quote_error(error)}") from error
    if holds_no_weights(name_or_dir):
        raise KinspanError(f"{name_or_dir} holds no weights: fresh ones tell nothing")
    architecture = next(iter(config.architectures or []), config.model_type)
    if architecture.endswith("ForSequenceClassification"):
        if config.num_labels not in (1, 2):
            raise KinspanError(f"{name_or_dir} has {config.num_labels} labels: give one of 1 or 2")
        model = _load(AutoModelForSequenceClassification, name_or_dir, config)
        if config.num_labels == 1:
            return model, "one logit", lambda out: out.logits[:, 0]
        return model, "label 1 over label 0", lambda out: out.logits[:, 1] - out.logits[:, 0]
    if config.model_type in HEADS:  # "is next" and "in order" are label 0
        model_class, output = HEADS[config.model_type]
        model = _load(model_class, name_or_dir, config)
        return model, "label 0 over label 1", lambda out: out[output][:, 0] - out[output][:, 1]
    raise KinspanError(
        f"{name_or_dir} is a {architecture}, which has no head for pairs: give a release, a sequence "
        "classifier of 1 or 2 labels, or a BERT or ALBERT with its head of pre-training"
    )


def _load(model_class: Any, name_or_dir: str, config: Any) -> Any:
    """The model in fp32. Raises KinspanError where weights that its scores need are not in the file."""
    try:
        model, info = model_class.from_pretrained(
            name_or_dir, config=config, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
        )
    except Exception as error:
        raise KinspanError(f"{name_or_dir} cannot be loaded: {quote_error(error)}") from error
    missing = sorted(key for key in info["missing_keys"] if not key.startswith(NOT_NEEDED))
    if missing:
        raise KinspanError(
            f"{name_or_dir} has no weights for {missing[-1]} of {model_class.__name__}: "
            "give a model with a trained head for pairs"
        )
    return model


def check_fits(name: str, model: Any, tokenizer: Any, max_length: int) -> None:
    """Raises KinspanError where texts of this length, or the tokenizer's ids, are more than a model embeds.

    tokenizer: None where it is not known: then the length alone is checked
    """
    config, positions = model.config, count_positions(model)
    if positions is not None and max_length > positions:
        raise KinspanError(f"--max_length {max_length} is more than the {positions} positions of {name}")
    if tokenizer is None:
        return
    if len(tokenizer) > config.vocab_size:
        raise KinspanError(f"{name}: its tokenizer has {len(tokenizer)} entries, the model {config.vocab_size}")
    types = getattr(config, "type_vocab_size", None) or 0  # 0: the model ignores them
    highest = max(tokenizer("a", "b", return_token_type_ids=True)["token_type_ids"])
    if _takes_types(model) and 0 < types <= highest:
        raise KinspanError(
            f"{name}: its tokenizer makes the token type {highest}, the model has {types}: "
            "it needs the tokenizer that it was trained with"
        )


def count_positions(model: Any) -> int | None:
    """The longest input that the model has positions for; None where it has no table of them."""
    config = model.config
    rows = getattr(config, "max_position_embeddings", None)
    if rows is None or rows < 1:  # XLNet says -1
        return None
    family = FAMILIES.get(config.model_type)
    if family:
        return rows - family.first_position(config)
    words = model.get_input_embeddings()
    tables = (m for m in model.modules() if isinstance(m, torch.nn.Embedding) and m is not words)
    padding = (t.padding_idx for t in tables if t.num_embeddings == rows and t.padding_idx is not None)
    return rows - next(padding, -1) - 1  # as in RoBERTa, positions go on after that of padding


def _takes_types(model: Any) -> bool:
    return "token_type_ids" in inspect.signature(model.forward).parameters


@torch.inference_mode()
def score_padded(scorer: Scorer, pairs: PackedPairs, batch_size: int) -> np.ndarray:
    """The model's score of each pair, ``[n]``: above 0 it calls it positive. The longest pairs come first.

    Raises KinspanError where memory is short, an input has no embedding, or a score is no number.
    """
    lengths = np.diff(pairs.starts)
    order = np.argsort(-lengths, kind="stable")
    scores = np.empty(len(lengths))
    for start in show_progress(f"scoring with {scorer.name}", "batches", range(0, len(order), batch_size)):
        rows = order[start : start + batch_size]
        try:
            scores[rows] = scorer.score(scorer.model(**_padded(scorer, pairs, rows))).double().cpu().numpy()
        except IndexError as error:
            raise KinspanError(
                f"{scorer.name} has no embedding for what its tokenizer makes of pairs of {lengths[rows].max()} "
                f"tokens ({quote_error(error)}): lower --max_length, or give the model its own tokenizer"
            ) from error
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise KinspanError(
                f"out of memory with {len(rows)} pairs of up to {lengths[rows].max()} tokens: lower --micro_batch_size"
            ) from error
    if not np.isfinite(scores).all():
        raise KinspanError(f"{scorer.name}: its scores are not finite")
    return scores


def _padded(scorer: Scorer, pairs: PackedPairs, rows: np.ndarray) -> dict[str, torch.Tensor]:
    """The pairs ``rows`` as the model's inputs, ``[len(rows), longest]``."""
    lengths = np.diff(pairs.starts)[rows]
    mask = np.arange(lengths.max()) < lengths[:, None]
    at = (pairs.starts[rows][:, None] + np.arange(lengths.max()))[mask]
    ids = np.full(mask.shape, scorer.model.config.pad_token_id or 0, dtype=np.int64)
    types = np.zeros(mask.shape, dtype=np.int64)
    ids[mask], types[mask] = pairs.ids[at], pairs.types[at]
    inputs = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
    if _takes_types(scorer.model):
        inputs["token_type_ids"] = types
    return {name: torch.from_numpy(x).to(scorer.model.device) for name, x in inputs.items()}
