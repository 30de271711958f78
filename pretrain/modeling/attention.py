"""Attention over packed rows: each pair attends to itself alone.

Registered with the attention interface of ``transformers``, so that models need no change. On a GPU in half
precision the packed row goes to variable-length flash attention, by torch's jagged tensors; elsewhere,
and where a sliding window hides tokens, the row is padded inside attention only, so that no linear layer
ever sees padding.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

NAME = "kinspan_packed"


@dataclass(frozen=True)
class Packing:
    """Where each of n sequences lies in a packed row of T tokens.

    starts    [n + 1] int32
    slots     [T] int64      each token's place in the padded ``[n, max_length]`` layout, flattened
    mask      [n, 1, 1, max_length] bool, true at tokens
    """

    starts: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor
    max_length: int

    @staticmethod
    def of(starts: torch.Tensor, position_ids: torch.Tensor, max_length: int) -> "Packing":
        lengths = starts.diff()
        sequence = torch.repeat_interleave(
            torch.arange(len(lengths), device=starts.device), lengths, output_size=len(position_ids)
        )
        mask = torch.arange(max_length, device=starts.device) < lengths[:, None]
        return Packing(starts, sequence * max_length + position_ids, mask[:, None, None], max_length)


# How many attention calls came through here: encoder.py notices by it where a model did not switch.
calls = 0


def attend_packed(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    packing: Packing,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """``query``, ``key``, ``value``: ``[1, heads, T, width]``; returns ``[1, T, heads, width]``.

    sliding_window: a token sees those less than this many tokens away, on both sides. (It is half of ModernBERT's
    ``local_attention``, plus one: ``transformers`` counts the token itself.)
    """
    global calls
    calls += 1
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [T, heads, width]
    mask = packing.mask
    if sliding_window is not None and packing.max_length > sliding_window:
        mask = _windowed(mask, sliding_window)
    elif query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _jagged(q, k, v, packing, scaling, dropout)[None], None
    return _padded(q, k, v, packing, mask, scaling, dropout)[None], None


def _windowed(mask: torch.Tensor, window: int) -> torch.Tensor:
    """``mask [n, 1, 1, L]`` -> ``[n, 1, L, L]``: which tokens are near enough. Padding sees itself: a row that sees
    nothing would be NaN, and so would its gradient."""
    place = torch.arange(mask.shape[-1], device=mask.device)
    distance = (place[:, None] - place).abs()
    return mask & (distance < window) | (distance == 0)


def _padded(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: Packing,
    mask: torch.Tensor,
    scaling: float | None,
    dropout: float,
) -> torch.Tensor:
    n, longest = len(packing.mask), packing.max_length

    def pad(x: torch.Tensor) -> torch.Tensor:
        padded = x.new_zeros(n * longest, *x.shape[1:]).index_copy(0, packing.slots, x)
        return padded.view(n, longest, *x.shape[1:]).transpose(1, 2)

    out = F.scaled_dot_product_attention(
        pad(query), pad(key), pad(value), attn_mask=mask, dropout_p=dropout, scale=scaling
    )
    return out.transpose(1, 2).reshape(n * longest, *query.shape[1:]).index_select(0, packing.slots)


def _jagged(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: Packing,
    scaling: float | None,
    dropout: float,
) -> torch.Tensor:
    def nest(x: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(
            x.contiguous(), packing.starts, min_seqlen=1, max_seqlen=packing.max_length
        ).transpose(1, 2)

    out = F.scaled_dot_product_attention(nest(query), nest(key), nest(value), dropout_p=dropout, scale=scaling)
    return out.transpose(1, 2).values()


def _no_mask(*_: object, **__: object) -> None:
    """Makes no mask of the model's own: Packing says which token attends to which."""


AttentionInterface.register(NAME, attend_packed)
AttentionMaskInterface.register(NAME, _no_mask)  # type: ignore[arg-type]
