"""Any sequence classifier as a scorer of pairs, by the plain forward of ``transformers``."""

import inspect
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from data_pipeline import tokenizers
from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.progress import show_progress
from pretrain.engine.device import is_out_of_memory

from .adapters.folder import find_model, is_adapter, load_adapted
from .families import FAMILIES
from .pair_model import holds_no_weights, load_part, read_config


@dataclass(frozen=True)
class Scorer:
    """A sequence classifier of one or two labels, and its tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    def score(self, inputs: dict[str, Tensor]) -> Tensor:
        """Returns the scores ``[n]`` of padded pairs; of two labels, label 1 over label 0."""
        logits = self.model(**inputs).logits
        return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


@dataclass(frozen=True)
class PackedPairs:
    """n pairs as a model's inputs, one after another: ``ids`` and ``types`` ``[T]``, ``starts`` ``[n + 1]``."""

    ids: np.ndarray
    types: np.ndarray
    starts: np.ndarray


def load_scorer(name_or_dir: str, device: str | None = None) -> Scorer:
    """Loads a sequence classifier of one or two labels.

    name_or_dir: a release, an adapter beside its base, any other weights folder, or a hub name
    device:      default: a GPU where there is one

    Raises KinspanError where there is no model, or where its head has no weights.
    """
    model = load_adapted(name_or_dir) if is_adapter(name_or_dir) else _load_classifier(name_or_dir)
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
    tokenizer = tokenizers.load_tokenizer(find_model(name_or_dir))
    return Scorer(tokenizers.shorten_name(name_or_dir), model, tokenizer)


def _load_classifier(name_or_dir: str) -> PreTrainedModel:
    config = read_config(name_or_dir)
    if holds_no_weights(name_or_dir):
        raise KinspanError(f"--model {name_or_dir} holds no weights: fresh ones cannot score")
    if config.num_labels not in (1, 2):
        raise KinspanError(f"--model {name_or_dir} has {config.num_labels} labels: give one of 1 or 2")
    options = {"config": config, "dtype": torch.float32}
    model, missing = load_part(AutoModelForSequenceClassification, name_or_dir, options)
    if missing:
        raise KinspanError(f"--model {name_or_dir} has no trained head for pairs: it lacks {missing[-1]}")
    return model


def check_fits(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, max_length: int) -> None:
    """Raises KinspanError where texts of this length, or the tokenizer's ids, are more than a model embeds.

    tokenizer: if it is None, the length alone is checked
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
        raise KinspanError(f"{name}: its tokenizer makes the token type {highest}, the model has {types}")


def count_positions(model: PreTrainedModel) -> int | None:
    """Returns the longest input that the model has positions for; None where it has no table of them."""
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


def _takes_types(model: PreTrainedModel) -> bool:
    return "token_type_ids" in inspect.signature(model.forward).parameters


@torch.inference_mode()
def score_padded(scorer: Scorer, pairs: PackedPairs, batch_size: int) -> np.ndarray:
    """Returns the model's score of each pair, ``[n]``: above 0 it calls it positive. The longest pairs come first.

    Raises KinspanError where memory is short, an input has no embedding, or a score is not finite.
    """
    lengths = np.diff(pairs.starts)
    order = np.argsort(-lengths, kind="stable")
    scores = np.empty(len(lengths))
    for start in show_progress(f"scoring with {scorer.name}", "batches", range(0, len(order), batch_size)):
        rows = order[start : start + batch_size]
        try:
            scores[rows] = scorer.score(_pad(scorer, pairs, rows)).double().cpu().numpy()
        except IndexError as error:
            raise KinspanError(f"{scorer.name} does not fit its tokenizer: {quote_error(error)}") from error
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise KinspanError(f"--micro_batch_size: out of memory with {len(rows)} pairs: lower it") from error
    if not np.isfinite(scores).all():
        raise KinspanError(f"{scorer.name}: its scores are not finite")
    return scores


def _pad(scorer: Scorer, pairs: PackedPairs, rows: np.ndarray) -> dict[str, Tensor]:
    """Returns the pairs ``rows`` as the model's inputs, ``[len(rows), longest]``."""
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
