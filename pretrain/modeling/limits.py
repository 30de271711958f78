"""Checks that texts fit into a model: its positions, its vocabulary and its token types."""

import inspect

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from data_pipeline.core.errors import KinspanError

from .families import FAMILIES


def check_fits(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    max_length: int,
    texts: tuple[str, ...] = ("a", "b"),
) -> None:
    """Raises KinspanError if a model has too few positions, too small a vocabulary or too few token types.

    tokenizer: None if it is unknown; then only the length is checked
    texts:     as many as the model reads together
    """
    config, positions = model.config, count_positions(model)
    if positions is not None and max_length > positions:
        raise KinspanError(f"--max_length {max_length} exceeds the {positions} positions of {name}")
    if tokenizer is None:
        return
    if len(tokenizer) > config.vocab_size:
        raise KinspanError(f"{name}: its tokenizer has {len(tokenizer)} entries, the model {config.vocab_size}")
    types = getattr(config, "type_vocab_size", None) or 0  # 0: the model ignores them
    highest = max(tokenizer(*texts, return_token_type_ids=True)["token_type_ids"])
    if "token_type_ids" in inspect.signature(model.forward).parameters and 0 < types <= highest:
        raise KinspanError(f"{name}: its tokenizer makes the token type {highest}, the model has {types}")


def count_positions(model: PreTrainedModel) -> int | None:
    """Returns the longest input that the model has positions for; None if it has no position embeddings."""
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
    return rows - next(padding, -1) - 1  # as in RoBERTa, positions start after that of padding
