"""Attention over packed rows: each pair attends to itself alone.

Registered with the attention interface of ``transformers``, so that models need no change. On a GPU in half precision
the packed row goes to variable-length flash attention as it is. On a processor each pair is worked on by itself, which
computes no padding and keeps its matrix of probabilities in the cache. Elsewhere (a GPU in fp32, or with biases) it is
padded inside attention only. Linear layers see no padding but what rounds the row up, see encoder.ROUND_TO. Families
whose attention is not called through the interface call it themselves, see relative.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from .dropout import Masks, current_masks, draw_mask, round_probability

NAME = "kinspan_packed"
# (queries, keys), both [..., heads, length, width] -> what their scaled products get, [..., heads, length, length]
Bias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
WIDEST_FLASH = 256  # flash attention takes heads of so many numbers at most, and of a multiple of 8


@dataclass(frozen=True)
class Packing:
    """Where each of n sequences lies in a packed row of T tokens, which ``padding`` tokens of no sequence follow.

    starts      [n + 1] int32
    sequence    [T] int64     the sequence that each token is of
    position    [T] int64     its place there
    max_length  of the longest sequence
    bounds      ``starts`` as numbers; None where they are on a GPU, which nobody waits for
    """

    starts: torch.Tensor
    sequence: torch.Tensor
    position: torch.Tensor
    max_length: int
    padding: int
    bounds: list[int] | None

    @staticmethod
    def of(starts: torch.Tensor, position_ids: torch.Tensor, max_length: int, padding: int = 0) -> "Packing":
        sequence = torch.repeat_interleave(
            torch.arange(len(starts) - 1, device=starts.device), starts.diff(), output_size=len(position_ids)
        )
        bounds = starts.tolist() if starts.device.type == "cpu" else None
        return Packing(starts, sequence, position_ids.long(), max_length, padding, bounds)

    @property
    def slots(self) -> torch.Tensor:
        """Each token's place in the padded ``[n, max_length]`` layout, flattened, ``[T]`` int64."""
        return self.sequence * self.max_length + self.position

    @property
    def mask(self) -> torch.Tensor:
        """True at tokens in that layout, ``[n, max_length]``."""
        return torch.arange(self.max_length, device=self.starts.device) < self.starts.diff()[:, None]


_calls: list[str] | None = None  # where list_calls notes them


def list_calls(of: Any) -> list[str]:
    """Runs ``of()``, and returns a line for each attention call that came through here."""
    global _calls
    calls: list[str] = []
    _calls = calls
    try:
        of()
    finally:
        _calls = None
    return calls


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
    bias: Bias | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """``query``, ``key``, ``value``: ``[1, heads, T + padding, width]``; returns ``[1, T + padding, heads, width]``.

    sliding_window: a token sees those less than this many tokens away, on both sides. (It is half of ModernBERT's
    ``local_attention``, plus one: ``transformers`` counts the token itself.)
    bias: of one sequence, or of several of one length
    """
    if _calls is not None:
        _calls.append(type(module).__name__)
    # Not x[0], whose gradient is a new tensor of zeros with this one in it.
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # [T + padding, heads, width]
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    window = sliding_window if sliding_window is not None and packing.max_length > sliding_window else None
    if packing.bounds is not None:
        drop = _start_dropout(q.shape[1], packing, dropout)
        biases = [] if bias is None else list(map(bias, _split(q, packing), _split(k, packing)))
        return _AttendEach.apply(q, k, v, packing.bounds, scale, window, drop, *biases)[None], None
    half = query.dtype in (torch.bfloat16, torch.float16)
    if half and bias is None and q.shape[-1] % 8 == 0 and q.shape[-1] <= WIDEST_FLASH:
        return _flash(q, k, v, packing, scale, dropout, window)[None], None
    return _padded(q, k, v, packing, scale, dropout, window, bias)[None], None


def _split(x: torch.Tensor, packing: Packing) -> list[torch.Tensor]:
    """Of each sequence ``[heads, length, width]``."""
    lengths = [end - start for start, end in pairwise(packing.bounds or [])]
    return [own.transpose(0, 1) for own in x.split([*lengths, packing.padding])[:-1]]


@dataclass(frozen=True)
class _Dropout:
    """Of one call: hashes of its rows ``[heads, T]`` and columns, see dropout.draw_mask; and its probability."""

    rows: torch.Tensor
    columns: torch.Tensor
    p: float

    def draw(self, start: int, end: int, dtype: torch.dtype) -> torch.Tensor:
        """The mask of the sequence that lies there, ``[heads, length, length]``."""
        return draw_mask(self.rows[:, start:end], self.columns, end - start, self.p, dtype)


def _start_dropout(heads: int, packing: Packing, p: float) -> _Dropout | None:
    masks: Masks | None = current_masks()
    if p == 0.0 or masks is None:
        return None
    return _Dropout(masks.rows_of_heads(heads), masks.start_call(packing.max_length), p)


def _far_apart(length: int, window: int, device: torch.device) -> torch.Tensor:
    """``[length, length]``: which tokens do not see each other."""
    place = torch.arange(length, device=device)
    return (place[:, None] - place).abs() >= window


class _AttendEach(torch.autograd.Function):
    """softmax(scale * Q K' + bias) V of each sequence by itself, with dropout of the probabilities.

    Written out, because torch's fused attention on a processor has no dropout, and its backward pass took twice the
    time of these products. The mask of dropout is made anew in the backward pass. ``q``, ``k``, ``v``:
    ``[T + padding, heads, width]``; padding attends to nothing and comes out as 0. ``biases``: none, or one for each
    sequence, ``[heads, length, length]``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bounds: list[int],
        scale: float,
        window: int | None,
        drop: _Dropout | None,
        *biases: torch.Tensor,
    ) -> torch.Tensor:
        out = q.new_zeros(q.shape)
        probabilities = []
        grow = 1.0 if drop is None else 1 / (1 - round_probability(drop.p))
        for number, (start, end) in enumerate(pairwise(bounds)):
            query, key, value = (x[start:end].transpose(0, 1) for x in (q, k, v))  # [heads, length, width]
            scores = _multiply(query, key.mT, scale)
            if biases:
                scores += biases[number]
            if window is not None and end - start > window:
                scores.masked_fill_(_far_apart(end - start, window, q.device), -torch.inf)
            probability = torch.softmax(scores, -1)
            kept = probability if drop is None else probability * drop.draw(start, end, q.dtype)
            out[start:end] = _multiply(kept, value, grow).transpose(0, 1)
            probabilities.append(probability)
        ctx.save_for_backward(q, k, v, *probabilities)
        ctx.bounds, ctx.scale, ctx.drop, ctx.grow, ctx.biased = bounds, scale, drop, grow, bool(biases)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, *probabilities = ctx.saved_tensors
        drop, scale, grow = ctx.drop, ctx.scale, ctx.grow
        dq, dk, dv = (x.new_zeros(x.shape) for x in (q, k, v))
        d_biases = []
        spans = zip(pairwise(ctx.bounds), probabilities, strict=True)
        for (start, end), probability in spans:
            query, key, value, out = (x[start:end].transpose(0, 1) for x in (q, k, v, grads[0]))
            mask = None if drop is None else drop.draw(start, end, q.dtype)
            kept = probability if mask is None else probability * mask
            dv[start:end] = _multiply(kept.mT, out, grow).transpose(0, 1)
            d_kept = _multiply(out, value.mT, grow)
            d_probability = d_kept if mask is None else d_kept.mul_(mask)
            d_scores = torch._softmax_backward_data(d_probability, probability, -1, q.dtype)
            dq[start:end] = _multiply(d_scores, key, scale).transpose(0, 1)
            dk[start:end] = _multiply(d_scores.mT, query, scale).transpose(0, 1)
            if ctx.biased:
                d_biases.append(d_scores)
        return dq, dk, dv, None, None, None, None, *d_biases


def _multiply(a: torch.Tensor, b: torch.Tensor, factor: float) -> torch.Tensor:
    """``factor * a @ b`` of two batches of matrices, in one pass."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=factor)


def _flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    packing: Packing,
    scale: float,
    dropout: float,
    window: int | None,
) -> torch.Tensor:
    """Variable-length flash attention on ``[T + padding, heads, width]``; the padding is a sequence of its own.

    torch's operator itself: ``scaled_dot_product_attention`` reaches it through nested tensors alone, which take the
    host longer than the kernel takes the device, and ``varlen_attn`` has no dropout.
    """
    padding = len(q) - len(packing.sequence)  # not packing.padding: torch.compile would compile anew for 0
    starts = torch.cat([packing.starts, packing.starts[-1:] + padding])
    longest = max(packing.max_length, padding)
    side = None if window is None else window - 1
    out, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, starts, starts, longest, longest, dropout, False, False,
        scale=scale, window_size_left=side, window_size_right=side,
    )  # fmt: skip
    return out


def _padded(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    packing: Packing,
    scale: float,
    dropout: float,
    window: int | None,
    bias: Bias | None,
) -> torch.Tensor:
    n, longest, slots = len(packing.starts) - 1, packing.max_length, packing.slots
    mask = packing.mask[:, None, None]
    if window is not None:
        far = _far_apart(longest, window, q.device)
        # Padding sees itself: a row that sees nothing would be NaN, and so would its gradient.
        mask = mask & ~far | torch.eye(longest, dtype=torch.bool, device=q.device)

    def pad(x: torch.Tensor) -> torch.Tensor:
        padded = x.new_zeros(n * longest, *x.shape[1:]).index_copy(0, slots, x[: len(slots)])
        return padded.view(n, longest, *x.shape[1:]).transpose(1, 2)

    query, key, value = (pad(x) for x in (q, k, v))
    if bias is not None:
        mask = torch.where(mask, bias(query, key).to(query.dtype), -torch.inf)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale)
    rows = out.transpose(1, 2).reshape(n * longest, *q.shape[1:]).index_select(0, slots)
    return F.pad(rows, (0, 0, 0, 0, 0, len(q) - len(rows)))


def _no_mask(*_: object, **__: object) -> None:
    """Makes no mask of the model's own: Packing says which token attends to which."""


AttentionInterface.register(NAME, attend_packed)
AttentionMaskInterface.register(NAME, _no_mask)  # type: ignore[arg-type]
