"""What DeepSpeed's pickles may make: tensors and a few named classes, nothing else."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def _allowed_classes() -> list[Any]:
    """What DeepSpeed's optimizer shards hold beside tensors and plain values, in every ZeRO stage."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]


@contextmanager
def restricted_unpickling() -> Iterator[None]:
    """DeepSpeed's pickles may make tensors and a few named classes, nothing else.

    DeepSpeed asks torch for unrestricted loading; the variable overrules it.
    """
    variable = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        with torch.serialization.safe_globals(_allowed_classes()):
            yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
