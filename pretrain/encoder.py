"""The encoder over a packed row."""

from typing import Any

import torch
from torch import nn

from data_pipeline.errors import KinspanError

from . import attention
from .families import FAMILIES


def encode(backbone: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """Hidden states ``[T, hidden]`` of a packed row; see data_pipeline.stream.Batch for ``inputs``."""
    config: Any = backbone.config
    packing = attention.Packing.of(inputs["starts"], inputs["position_ids"], inputs["max_length"])
    before = attention.calls
    out = backbone(
        input_ids=inputs["input_ids"][None],
        token_type_ids=inputs["token_type_ids"][None],
        position_ids=inputs["position_ids"][None] + FAMILIES[config.model_type].first_position,
        packing=packing,
    )
    if attention.calls - before != config.num_hidden_layers:
        raise KinspanError(
            f"the {config.model_type} model did not use packed attention: "
            f"{attention.calls - before} calls for {config.num_hidden_layers} layers"
        )
    return out.last_hidden_state[0]
