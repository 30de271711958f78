"""Attention on a CPU, one sequence at a time: it computes no padding, and the probabilities stay in the CPU's cache."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pretrain.modeling.packing import Bias, Packing, find_far_apart

from .dropout import Masks, current_masks, draw_mask, round_probability

# (start and end of a sequence, dtype) -> the mask of its probabilities, [heads, length, length]
Draw = Callable[[int, int, torch.dtype], Tensor]


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
    """Attends within each sequence, with dropout by the current masks; all are ``[T + padding, heads, width]``."""
    draw = _start_dropout(q.shape[1], packing, dropout)
    rescale = 1.0 if draw is None else 1 / (1 - round_probability(dropout))
    biases = [] if bias is None else list(map(bias, _split(q, packing), _split(k, packing)))
    return _AttendEach.apply(q, k, v, packing.bounds, scale, window, draw, rescale, *biases)


def _split(x: Tensor, packing: Packing) -> list[Tensor]:
    lengths = [end - start for start, end in pairwise(packing.bounds or [])]
    return [part.transpose(0, 1) for part in x.split([*lengths, packing.padding])[:-1]]


def _start_dropout(heads: int, packing: Packing, p: float) -> Draw | None:
    masks: Masks | None = current_masks()
    if p == 0.0 or masks is None:
        return None
    rows, columns = masks.rows_of_heads(heads), masks.start_call(packing.max_length)
    return lambda start, end, dtype: draw_mask(rows[:, start:end], columns, end - start, p, dtype)


class _AttendEach(torch.autograd.Function):
    """Computes softmax(scale * Q K' + bias) V within each sequence, with dropout of the probabilities.

    torch's fused attention on a CPU has no dropout, and its backward pass took twice the time. ``q``, ``k``, ``v``:
    ``[T + padding, heads, width]``; the output is 0 for padding. ``biases``: none, or one for each sequence.
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
        draw: Draw | None,
        rescale: float,
        *biases: Tensor,
    ) -> Tensor:
        out = q.new_zeros(q.shape)
        probabilities = []
        for index, (start, end) in enumerate(pairwise(bounds)):
            query, key, value = (x[start:end].transpose(0, 1) for x in (q, k, v))  # [heads, length, width]
            scores = _multiply(query, key.mT, scale)
            if biases:
                scores += biases[index]
            if window is not None and end - start > window:
                scores.masked_fill_(find_far_apart(end - start, window, q.device), -torch.inf)
            probability = torch.softmax(scores, -1)
            kept = probability if draw is None else probability * draw(start, end, q.dtype)
            out[start:end] = _multiply(kept, value, rescale).transpose(0, 1)
            probabilities.append(probability)
        ctx.save_for_backward(q, k, v, *probabilities)
        ctx.bounds, ctx.scale, ctx.draw, ctx.rescale, ctx.has_bias = bounds, scale, draw, rescale, bool(biases)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *probabilities = ctx.saved_tensors
        draw, scale, rescale = ctx.draw, ctx.scale, ctx.rescale
        dq, dk, dv = (x.new_zeros(x.shape) for x in (q, k, v))
        d_biases = []
        for (start, end), probability in zip(pairwise(ctx.bounds), probabilities, strict=True):
            query, key, value, d_out = (x[start:end].transpose(0, 1) for x in (q, k, v, grads[0]))
            mask = None if draw is None else draw(start, end, q.dtype)
            kept = probability if mask is None else probability * mask
            dv[start:end] = _multiply(kept.mT, d_out, rescale).transpose(0, 1)
            d_kept = _multiply(d_out, value.mT, rescale)
            d_probability = d_kept if mask is None else d_kept.mul_(mask)
            d_scores = torch._softmax_backward_data(d_probability, probability, -1, q.dtype)
            dq[start:end] = _multiply(d_scores, key, scale).transpose(0, 1)
            dk[start:end] = _multiply(d_scores.mT, query, scale).transpose(0, 1)
            if ctx.has_bias:
                d_biases.append(d_scores)
        return dq, dk, dv, None, None, None, None, None, *d_biases


def _multiply(a: Tensor, b: Tensor, factor: float) -> Tensor:
    """Returns ``factor * a @ b`` for two batches of matrices, in one pass."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=factor)
