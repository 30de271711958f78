"""Dropout on a processor, whose masks are a function of (seed, step, layer, pair, position).

So they do not depend on how a global batch is cut, and the backward pass makes them anew. Each number is a hash of two
others, one of its row and one of its column, which is several times faster than torch's own dropout on a processor.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Odd numbers and shifts of Chris Wellons' "lowbias32" hash of 32 bits (https://nullprogram.com/blog/2018/07/31/).
FIRST, SECOND = 0x7FEB352D, 0x846CA68B - 2**32
LANES = 2  # each hash of 32 bits decides about two elements, by 16 bits each
STEPS = 2**16  # a probability is rounded to a multiple of one in so many, an error of at most 8e-6


def mix(numbers: Tensor) -> Tensor:
    """Hashes int32 numbers, in place. Every bit of a result depends on every bit of its number."""
    high = numbers >> 16
    numbers.bitwise_xor_(high.bitwise_and_(0xFFFF)).mul_(FIRST)
    torch.bitwise_right_shift(numbers, 15, out=high)
    numbers.bitwise_xor_(high.bitwise_and_(0x1FFFF)).mul_(SECOND)
    torch.bitwise_right_shift(numbers, 16, out=high)
    return numbers.bitwise_xor_(high.bitwise_and_(0xFFFF))


class Masks:
    """The masks of one forward pass, whose calls of dropout are numbered as they come.

    pairs: int64 ``[n]``: a number for each pair of all micro-batches, such as its index in the global order
    """

    def __init__(self, seed: int, step: int, pairs: np.ndarray) -> None:
        self._key = hash_key(seed, step)
        self.pairs = mix_pairs(self._key, pairs)
        self.tokens = self._heads = self.pairs[:0]
        self._calls = 0

    def place_tokens(self, sequence: Tensor, position: Tensor, padding: int) -> None:
        """Takes each token's pair in the packed row, and its place there; both ``[T]``.

        padding: tokens of no pair that follow
        """
        tokens = mix(self.pairs[sequence] ^ mix(position.int() + 1))
        self.tokens = torch.nn.functional.pad(tokens, (0, padding))
        self._heads = self.tokens[:0]

    def rows_of_heads(self, heads: int) -> Tensor:
        """Returns hashes int32 ``[heads, T + padding]`` of the rows of attention, one for each head and token."""
        if len(self._heads) != heads:  # once per forward pass of an encoder: layers have as many heads
            self._heads = mix(mix(torch.arange(heads, dtype=torch.int32) + 1)[:, None] ^ self.tokens)
        return self._heads

    def rows_of_table(self, first: int, count: int) -> Tensor:
        """Returns hashes int32 ``[count]`` of rows, from the number ``first`` on, of a table that all pairs share."""
        return mix(torch.arange(first, first + count, dtype=torch.int32) ^ (self._key & 0x7FFFFFFF))

    def start_call(self, width: int) -> Tensor:
        """Returns hashes int32 of the columns of the next call of dropout, for rows of up to ``width`` elements."""
        self._calls += 1
        call = hash_key(self._key, self._calls) & 0x7FFFFFFF
        return mix(torch.arange(-(-width // LANES), dtype=torch.int32) ^ call)


def hash_key(*parts: int | str) -> int:
    """Returns a number of 64 bits made of these."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def mix_pairs(key: int, pairs: np.ndarray) -> Tensor:
    """Returns an int32 hash ``[n]`` of the key and each pair, by SplitMix64's finaliser (Steele et al., 2014)."""
    x = pairs.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return torch.from_numpy((x >> np.uint64(32)).astype(np.uint32).view(np.int32))


def round_probability(p: float) -> float:
    """Returns ``p`` as it is applied."""
    return round(p * STEPS) / STEPS


def draw_mask(rows: Tensor, columns: Tensor, width: int, p: float, dtype: torch.dtype) -> Tensor:
    """Returns 1 where an element is kept and 0 where it is dropped, ``[..., width]``.

    rows:    int32 hashes ``[...]``
    columns: of Masks.start_call for at least this width
    """
    bits = mix(rows[..., None] ^ columns[: -(-width // LANES)]).view(torch.int16)[..., :width]
    mask = torch.empty(bits.shape, dtype=dtype)
    return torch.ge(bits, round(p * STEPS) - STEPS // 2, out=mask)


class _Drop(torch.autograd.Function):
    """Drops elements of ``x [..., width]``, a row for each of ``rows``, and scales what stays."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, columns: Tensor, p: float) -> Tensor:
        ctx.save_for_backward(rows, columns)
        ctx.p = p
        return _drop(x, rows, columns, p)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        rows, columns = ctx.saved_tensors
        return _drop(grads[0], rows, columns, ctx.p), None, None, None


def _drop(x: Tensor, rows: Tensor, columns: Tensor, p: float) -> Tensor:
    return (x * draw_mask(rows, columns, x.shape[-1], p, x.dtype)).mul_(1 / (1 - round_probability(p)))


class PairDropout(nn.Dropout):
    """torch's dropout, but that masks of hidden states come from the current Masks where there are any.

    x:         ``[1, T, hidden]`` of a packed row, ``[n, hidden]`` of the pairs' first tokens, or rows of a shared table
    first_row: the number of a table's first one
    """

    def forward(self, x: Tensor, first_row: int | None = None) -> Tensor:
        if not self.training or self.p == 0.0 or _current is None:
            return super().forward(x)
        if first_row is not None:
            rows = _current.rows_of_table(first_row, len(x))
        else:
            rows = _current.tokens[None] if x.dim() == 3 else _current.pairs
        return _Drop.apply(x, rows, _current.start_call(x.shape[-1]), self.p)


def replace_dropout(model: nn.Module) -> None:
    """Puts PairDropout in the place of torch's dropout everywhere in a model that takes packed rows."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, PairDropout(child.p))


_current: Masks | None = None


@contextmanager
def use_masks(masks: Masks) -> Iterator[None]:
    """Drops by these masks in the forward pass within."""
    global _current
    _current = masks
    try:
        yield
    finally:
        _current = None


@contextmanager
def decide_dropout(seed: int, step: int, micro_batch: int, pairs: np.ndarray) -> Iterator[None]:
    """Decides the dropout of the forward pass within: on a GPU by ``micro_batch``, its number over all ranks, on a
    processor by ``pairs``, see Masks."""
    torch.manual_seed(hash_key(seed, "dropout", step, micro_batch) >> 1)
    if torch.cuda.is_available():
        yield
        return
    with use_masks(Masks(seed, step, pairs)):
        yield


def current_masks() -> Masks | None:
    """Returns the masks of the forward pass under way; None outside of ``use_masks``."""
    return _current
