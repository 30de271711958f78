"""Hidden states of a packed row, whatever the encoder's family."""

from typing import Any

import torch
from torch import nn

from data_pipeline.errors import KinspanError
from pretrain.modeling import attention

from .families import FAMILIES


def encode_packed(backbone: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """Hidden states ``[T, hidden]`` of the T tokens of a packed row, each pair on its own.

    A family that cannot be packed runs on padded rows, of which the real tokens come back.

    Args:
        backbone: a base model (``classifier.base_model``) of one of FAMILIES
        inputs:   of data_pipeline.sampling.batch.Batch as tensors: input_ids, token_type_ids, position_ids ``[T]``,
                  starts ``[n + 1]``; and max_length, the tokens of the longest pair

    Raises KinspanError where a family that is to be packed did not use packed attention.
    """
    config: Any = backbone.config
    family = FAMILIES[config.model_type]
    packing = attention.Packing.of(inputs["starts"], inputs["position_ids"], inputs["max_length"])
    tokens = {
        "input_ids": inputs["input_ids"],
        "position_ids": inputs["position_ids"] + family.first_position(config),
    }
    if family.token_types:
        tokens["token_type_ids"] = inputs["token_type_ids"]
    return (_packed if family.packed else _padded)(backbone, tokens, packing)


def _packed(backbone: nn.Module, tokens: dict[str, torch.Tensor], packing: attention.Packing) -> torch.Tensor:
    config: Any = backbone.config
    before = attention.calls
    out = backbone(**{name: x[None] for name, x in tokens.items()}, packing=packing)
    expected = config.num_hidden_layers * getattr(config, "inner_group_num", 1)  # ALBERT's layers of a layer
    if attention.calls - before != expected:
        raise KinspanError(
            f"the {config.model_type} model did not use packed attention: "
            f"{attention.calls - before} calls for {expected} layers"
        )
    return out.last_hidden_state[0]


def _padded(backbone: nn.Module, tokens: dict[str, torch.Tensor], packing: attention.Packing) -> torch.Tensor:
    mask = packing.mask[:, 0, 0]  # [n, longest]
    rows = {name: x.new_zeros(mask.numel()).index_copy(0, packing.slots, x).view_as(mask) for name, x in tokens.items()}
    out = backbone(**rows, attention_mask=mask.long())
    return out.last_hidden_state.flatten(0, 1).index_select(0, packing.slots)
