"""Attention over packed rows, in which tokens attend only within their pair.

``attend_packed`` is registered with the attention interface of ``transformers``, so that models need no change. On a
GPU in half precision it runs variable-length flash attention; on a CPU it computes each pair by itself; otherwise it
pads the pairs. relative.py handles the families that do not call attention through the interface.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from .cpu.attention import attend_each
from .packing import Bias, Packing, find_far_apart

NAME = "kinspan_packed"
MAX_FLASH_WIDTH = 256  # the widest heads that flash attention takes; widths must be multiples of 8
MIN_FLASH_CAPABILITY = (8, 0)  # compute capability of Ampere; older GPUs have no flash attention
_has_flash = True  # see find_flash; never read on a CPU


def find_flash() -> None:
    """Looks up whether an older GPU rules out flash attention. Compiled graphs cannot query it themselves."""
    global _has_flash
    _has_flash = not torch.cuda.is_available() or torch.cuda.get_device_capability() >= MIN_FLASH_CAPABILITY


def has_flash(width: int, dtype: torch.dtype) -> bool:
    """Returns whether this GPU has flash attention for heads of this width; without it, sequences are padded."""
    half = dtype in (torch.bfloat16, torch.float16)
    return half and _has_flash and width % 8 == 0 and width <= MAX_FLASH_WIDTH


_calls: list[str] | None = None  # filled while list_calls runs


def list_calls(run: Callable[[], object]) -> list[str]:
    """Returns the class names of the attention modules that call attend_packed during ``run()``, one per call."""
    global _calls
    calls: list[str] = []
    _calls = calls
    try:
        run()
    finally:
        _calls = None
    return calls


def attend_packed(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    packing: Packing,
    sliding_window: int | None = None,
    bias: Bias | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Attends within each pair; ``[1, heads, T + padding, width]`` each -> ``[1, T + padding, heads, width]``.

    sliding_window: a token attends to tokens fewer than this many positions away, on either side
    bias:           called for each sequence on a CPU, else once for all sequences, padded to one length
    """
    if _calls is not None:
        _calls.append(type(module).__name__)
    # squeeze, because the gradient of x[0] would be a copy padded with zeros
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # [T + padding, heads, width]
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    window = sliding_window if sliding_window is not None and packing.max_length > sliding_window else None
    if packing.bounds is not None:  # on a CPU
        return attend_each(q, k, v, packing, scale, dropout, window, bias)[None], None
    if bias is None and has_flash(q.shape[-1], query.dtype):
        return _flash(q, k, v, packing, scale, dropout, window)[None], None
    return _padded(q, k, v, packing, scale, dropout, window, bias)[None], None


def _flash(
    q: Tensor, k: Tensor, v: Tensor, packing: Packing, scale: float, dropout: float, window: int | None
) -> Tensor:
    """Runs variable-length flash attention on ``[T + padding, heads, width]``; the padding is a sequence by itself.

    It calls torch's operator, which ``scaled_dot_product_attention`` reaches only through slow nested tensors;
    ``varlen_attn`` has no dropout.
    """
    side = None if window is None else window - 1
    out, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, packing.cuts, packing.cuts, packing.longest, packing.longest, dropout, False, False,
        scale=scale, window_size_left=side, window_size_right=side,
    )  # fmt: skip
    return out


def _padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    packing: Packing,
    scale: float,
    dropout: float,
    window: int | None,
    bias: Bias | None,
) -> Tensor:
    n, longest, slots = len(packing.starts) - 1, packing.max_length, packing.slots
    mask = packing.mask[:, None, None]
    if window is not None:
        far = find_far_apart(longest, window, q.device)
        # An empty slot attends to itself: a row without any key would be NaN, and so would its gradient.
        mask = mask & ~far | torch.eye(longest, dtype=torch.bool, device=q.device)

    def pad(x: Tensor) -> Tensor:
        padded = x.new_zeros(n * longest, *x.shape[1:]).index_copy(0, slots, x[: len(slots)])
        return padded.view(n, longest, *x.shape[1:]).transpose(1, 2)

    query, key, value = (pad(x) for x in (q, k, v))
    if bias is not None:
        mask = torch.where(mask, bias(query, key).to(query.dtype), -torch.inf)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale)
    rows = out.transpose(1, 2).reshape(n * longest, *q.shape[1:]).index_select(0, slots)
    return F.pad(rows, (0, 0, 0, 0, 0, len(q) - len(rows)))


AttentionInterface.register(NAME, attend_packed)
# The model builds no mask of its own: Packing decides which tokens attend to each other
AttentionMaskInterface.register(NAME, lambda *_, **__: None)
