"""Attention on a processor, each sequence by itself: no padding is computed, and its matrix of probabilities stays in
the cache."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pretrain.modeling.packing import Bias, Packing, find_far_apart

from .dropout import Masks, current_masks, draw_mask, round_probability


def attend_each(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    packing: Packing,
    scale: float,
    dropout: float,
    window: int | None,
    bias: Bias | None,
) -> Tensor:
    """Attends with dropout by the current masks; inputs and output are ``[T + padding, heads, width]``."""
    drop = _start_dropout(q.shape[1], packing, dropout)
    biases = [] if bias is None else list(map(bias, _split(q, packing), _split(k, packing)))
    return _AttendEach.apply(q, k, v, packing.bounds, scale, window, drop, *biases)


def _split(x: Tensor, packing: Packing) -> list[Tensor]:
    lengths = [end - start for start, end in pairwise(packing.bounds or [])]
    return [part.transpose(0, 1) for part in x.split([*lengths, packing.padding])[:-1]]


@dataclass(frozen=True)
class _Dropout:
    """Holds hashes of a call's rows ``[heads, T]`` and columns, see dropout.draw_mask; and its probability."""

    rows: Tensor
    columns: Tensor
    p: float

    def draw(self, start: int, end: int, dtype: torch.dtype) -> Tensor:
        """Draws the mask of the sequence that lies there, ``[heads, length, length]``."""
        return draw_mask(self.rows[:, start:end], self.columns, end - start, self.p, dtype)


def _start_dropout(heads: int, packing: Packing, p: float) -> _Dropout | None:
    masks: Masks | None = current_masks()
    if p == 0.0 or masks is None:
        return None
    return _Dropout(masks.rows_of_heads(heads), masks.start_call(packing.max_length), p)


class _AttendEach(torch.autograd.Function):
    """Computes softmax(scale * Q K' + bias) V of each sequence by itself, with dropout of the probabilities.

    torch's fused attention on a processor has no dropout, and its backward pass took twice the time. ``q``, ``k``,
    ``v``: ``[T + padding, heads, width]``; padding comes out as 0. ``biases``: none, or one for each sequence.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bounds: list[int],
        scale: float,
        window: int | None,
        drop: _Dropout | None,
        *biases: Tensor,
    ) -> Tensor:
        out = q.new_zeros(q.shape)
        probabilities = []
        grow = 1.0 if drop is None else 1 / (1 - round_probability(drop.p))
        for number, (start, end) in enumerate(pairwise(bounds)):
            query, key, value = (x[start:end].transpose(0, 1) for x in (q, k, v))  # [heads, length, width]
            scores = _multiply(query, key.mT, scale)
            if biases:
                scores += biases[number]
            if window is not None and end - start > window:
                scores.masked_fill_(find_far_apart(end - start, window, q.device), -torch.inf)
            probability = torch.softmax(scores, -1)
            kept = probability if drop is None else probability * drop.draw(start, end, q.dtype)
            out[start:end] = _multiply(kept, value, grow).transpose(0, 1)
            probabilities.append(probability)
        ctx.save_for_backward(q, k, v, *probabilities)
        ctx.bounds, ctx.scale, ctx.drop, ctx.grow, ctx.biased = bounds, scale, drop, grow, bool(biases)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
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


def _multiply(a: Tensor, b: Tensor, factor: float) -> Tensor:
    """Returns ``factor * a @ b`` of two batches of matrices, in one pass."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=factor)
