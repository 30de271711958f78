"""Compiles encoders, whole or layer by layer, and the masked-LM loss with ``torch.compile``."""

import importlib.util
import os
import shutil
from collections.abc import Iterable

import torch
from transformers import PreTrainedModel

from data_pipeline.core.errors import KinspanError

from .families import Family
from .losses import compile_vocabulary_loss


def check_can_compile(family: Family, zero_stage: int) -> None:
    """Raises KinspanError if ``--compile`` cannot work on this machine, or would not speed up training.

    CPUs are refused: there attention loops over the pairs in Python, which breaks the graph in every layer.
    """
    if not torch.cuda.is_available():
        raise KinspanError("--compile needs a GPU, and there is none here")
    check_supports_compile(family, zero_stage)
    if not any(shutil.which(name) for name in (os.environ.get("CC") or "gcc", "clang", "cc")):
        raise KinspanError("--compile needs a C compiler, and there is none here")
    if importlib.util.find_spec("triton") is None:
        raise KinspanError("--compile needs the package triton")


def check_supports_compile(family: Family, zero_stage: int) -> None:
    """Raises KinspanError if ``--compile`` does not support the family or the ZeRO stage, whatever the machine."""
    if family.encode is not None:  # it replaces the forward that would be compiled
        raise KinspanError("--compile does not support families with relative position bias, like this one")
    if zero_stage == 3:  # gathers parameters in hooks between layers
        raise KinspanError("--compile does not go with ZeRO 3: use ds_configs/zero2.json")


BY_LAYER = {"modernbert"}  # families compiled layer by layer, as compiling the encoder as one graph takes minutes
MAX_GRAPHS = 64  # more than a layer needs: first or later, local or global attention, training or validation


def compile_encoders(encoders: Iterable[PreTrainedModel], backend: str = "inductor") -> None:
    """Compiles encoders in place, for any number of tokens and pairs, and the masked-LM loss."""
    from torch._inductor import config as inductor

    # Sizes that happen to be equal in the first batch are not assumed to be always equal
    torch.fx.experimental._config.use_duck_shape = False
    # Off: its kernel for the sums of LayerNorm's backward took a quarter of a step with torch 2.11 on an H200
    inductor.triton.mix_order_reduction = False
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MAX_GRAPHS)
    for encoder in encoders:
        for part in encoder.layers if encoder.config.model_type in BY_LAYER else (encoder,):
            part.compile(fullgraph=True, dynamic=True, backend=backend)
    compile_vocabulary_loss(backend)
