"""Runs an encoder of any family on a packed row, and aligns the projection to the vocabulary for GPUs."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from data_pipeline.core.errors import KinspanError
from pretrain.modeling import attention

from .cpu.dropout import current_masks, replace_dropout
from .cpu.products import replace_linear
from .families import FAMILIES
from .packing import Packing

Inputs = dict[str, Any]  # the tensors of a packed row by name, and max_length

# A packed row is padded to a multiple of this many tokens, so that shapes repeat: for each new one, libraries prepare
# kernels and allocators keep blocks.
ROUND_TO = 64
# For an odd number of columns, such as RoBERTa's vocabulary of 50,265, cuBLAS uses slow kernels that read one number at
# a time: NVIDIA, "Matrix Multiplication Background User's Guide", section 4.
ALIGNED = 64  # columns


def prepare_encoder(model: nn.Module, backbone: PreTrainedModel) -> None:
    """Prepares a model with this encoder for ``encode_packed``, by replacing modules for the CPU or the GPU.

    Raises KinspanError if the encoder does not call ``attend_packed``, so that pairs would attend to each other.
    """
    config = backbone.config
    device = next(backbone.parameters()).device
    if device.type == "meta":  # a plan needs only shapes
        return
    attention.find_flash()
    if torch.cuda.is_available():
        align_vocabulary(model, config.vocab_size)
    else:
        replace_dropout(model)
        replace_linear(model)
    starts = torch.tensor([0, 2, 4], dtype=torch.int32, device=device)
    row = torch.tensor([0, 1, 0, 1], dtype=torch.int32, device=device)
    tokens = {"input_ids": row, "token_type_ids": row * 0, "position_ids": row, "starts": starts, "max_length": 2}
    training = backbone.training
    backbone.eval()
    with torch.no_grad():
        calls = attention.list_calls(lambda: encode_packed(backbone, tokens))
    backbone.train(training)
    expected = config.num_hidden_layers * getattr(config, "inner_group_num", 1)  # ALBERT's layers per group
    if len(calls) != expected:
        raise KinspanError(
            f"the {config.model_type} model did not use packed attention: {len(calls)} calls for {expected} layers"
        )


def pads_sequences(encoder: PreTrainedModel, dtype: torch.dtype) -> bool:
    """Returns whether attention pads each sequence to the longest, so that its memory depends on that one's length."""
    config = encoder.config
    width = config.hidden_size // config.num_attention_heads
    return torch.cuda.is_available() and not (
        FAMILIES[config.model_type].encode is None and attention.has_flash(width, dtype)
    )


def encode_packed(backbone: PreTrainedModel, inputs: Inputs, round_to: int = ROUND_TO) -> Tensor:
    """Returns the hidden states ``[T, hidden]`` of the T tokens of a packed row; pairs do not attend to each other.

    inputs: arrays of data_pipeline.sampling.batch.Batch as tensors; and max_length, the length of the longest pair
    """
    config = backbone.config
    family = FAMILIES[config.model_type]
    padding = -len(inputs["input_ids"]) % round_to
    packing = Packing.of(inputs["starts"], inputs["position_ids"], inputs["max_length"], padding)
    tokens = {"input_ids": inputs["input_ids"], "position_ids": inputs["position_ids"] + family.first_position(config)}
    if family.token_types:
        tokens["token_type_ids"] = inputs["token_type_ids"]
    if backbone.training and packing.bounds is not None and (masks := current_masks()):
        masks.place_tokens(packing.sequence, packing.position, padding)
    row = {name: F.pad(x, (0, padding))[None] for name, x in tokens.items()}
    hidden = family.encode(backbone, row, packing) if family.encode else backbone(**row, packing=packing)[0]
    return hidden.squeeze(0)[: len(packing.sequence)]


class AlignedLinear(nn.Linear):
    """Pads the outputs of a linear layer to a multiple of ALIGNED by -inf, to which a softmax gives no probability."""

    def forward(self, x: Tensor) -> Tensor:
        added = -self.out_features % ALIGNED
        weight = F.pad(self.weight, (0, 0, 0, added))
        bias = x.new_zeros(self.out_features) if self.bias is None else self.bias
        return F.linear(x, weight, F.pad(bias, (0, added), value=-torch.inf))


def align_vocabulary(model: nn.Module, vocab_size: int) -> None:
    """Turns a model's projections to the vocabulary into AlignedLinear; their parameters are unchanged."""
    if vocab_size % ALIGNED:
        for module in model.modules():
            if type(module) is nn.Linear and module.out_features == vocab_size:
                module.__class__ = AlignedLinear
