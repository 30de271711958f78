"""Compiling encoders with ``torch.compile``, whole or layer by layer, and the masked-LM loss."""

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
    """Raises KinspanError where ``--compile`` cannot work here, or does not pay.

    A processor is refused: there attention goes through the pairs one by one in Python, which breaks the graph in every
    layer.
    """
    if not torch.cuda.is_available():
        raise KinspanError("--compile is for GPUs, and there is none here")
    check_is_compilable(family, zero_stage)
    if not any(shutil.which(name) for name in (os.environ.get("CC") or "gcc", "clang", "cc")):
        raise KinspanError("--compile needs a C compiler, and there is none here")
    if importlib.util.find_spec("triton") is None:
        raise KinspanError("--compile needs the package triton")


def check_is_compilable(family: Family, zero_stage: int) -> None:
    """Raises KinspanError where ``--compile`` works on no machine: ZeRO 3 gathers parameters in hooks between the
    layers."""
    if family.encode is not None:
        raise KinspanError("--compile is not for families with a bias by relative position, like this one")
    if zero_stage == 3:
        raise KinspanError("--compile does not go with ZeRO 3: use ds_configs/zero2.json")


# Families whose many layers take minutes as one graph. Layers that are alike share a graph; each kind has several, for
# the first layer, for windows, for training and validation.
BY_LAYER = {"modernbert"}
GRAPHS_OF_LAYERS = 64


def compile_encoders(encoders: Iterable[PreTrainedModel], backend: str = "inductor") -> None:
    """Compiles encoders in place, for any number of tokens and pairs, and the masked-LM loss."""
    from torch._inductor import config as inductor

    # Two sizes that are equal in the first batch, such as padding and a constant, are not taken for one
    torch.fx.experimental._config.use_duck_shape = False
    # One kernel for both sums of a LayerNorm's backward: of torch 2.11 it took a quarter of a step on an H200
    inductor.triton.mix_order_reduction = False
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, GRAPHS_OF_LAYERS)
    for encoder in encoders:
        for part in encoder.layers if encoder.config.model_type in BY_LAYER else (encoder,):
            part.compile(fullgraph=True, dynamic=True, backend=backend)
    compile_vocabulary_loss(backend)
