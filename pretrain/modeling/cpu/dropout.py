"""Dropout on a CPU, whose masks are a function of (seed, step, layer, pair, position).

They do not depend on how a global batch is divided, and the backward pass computes them again. Each element's random
bits are a hash of its row's hash and its column's, which is several times faster than torch's dropout on a CPU.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Multipliers of Chris Wellons' 32-bit hash "lowbias32" (https://nullprogram.com/blog/2018/07/31/).
FIRST, SECOND = 0x7FEB352D, 0x846CA68B - 2**32
LANES = 2  # elements that a 32-bit hash decides, by 16 bits each
STEPS = 2**16  # a probability is rounded to a multiple of 1 / STEPS, with an error of at most 8e-6


def mix(numbers: Tensor) -> Tensor:
    """Hashes int32 numbers in place, and returns them. Every bit of a hash depends on every bit of the number."""
    high = numbers >> 16
    numbers.bitwise_xor_(high.bitwise_and_(0xFFFF)).mul_(FIRST)
    torch.bitwise_right_shift(numbers, 15, out=high)
    numbers.bitwise_xor_(high.bitwise_and_(0x1FFFF)).mul_(SECOND)
    torch.bitwise_right_shift(numbers, 16, out=high)
    return numbers.bitwise_xor_(high.bitwise_and_(0xFFFF))


class Masks:
    """The masks of one forward pass, in which calls of dropout are counted.

    pairs: int64 ``[n]``, an id of each pair that is unique in the global batch, such as its index in the global order
    """

    def __init__(self, seed: int, step: int, pairs: np.ndarray) -> None:
        self._key = hash_key(seed, step)
        self.pairs = mix_pairs(self._key, pairs)
        self.tokens = self._heads = self.pairs[:0]
        self._calls = 0

    def place_tokens(self, sequence: Tensor, position: Tensor, padding: int) -> None:
        """Sets each token's sequence in the packed row and its position there, both ``[T]``, and the number of
        padding tokens that follow."""
        tokens = mix(self.pairs[sequence] ^ mix(position.int() + 1))
        self.tokens = torch.nn.functional.pad(tokens, (0, padding))
        self._heads = self.tokens[:0]

    def rows_of_heads(self, heads: int) -> Tensor:
        """Returns int32 hashes ``[heads, T + padding]`` of the rows of attention, for each head and token."""
        if len(self._heads) != heads:  # once per forward pass of an encoder, whose layers all have as many heads
            self._heads = mix(mix(torch.arange(heads, dtype=torch.int32) + 1)[:, None] ^ self.tokens)
        return self._heads

    def rows_of_table(self, first: int, count: int) -> Tensor:
        """Returns int32 hashes ``[count]`` of a table's rows from index ``first`` on; all pairs share the table."""
        return mix(torch.arange(first, first + count, dtype=torch.int32) ^ (self._key & 0x7FFFFFFF))

    def start_call(self, width: int) -> Tensor:
        """Returns int32 hashes of the columns in the next call of dropout, for rows of up to ``width`` elements."""
        self._calls += 1
        call = hash_key(self._key, self._calls) & 0x7FFFFFFF
        return mix(torch.arange(-(-width // LANES), dtype=torch.int32) ^ call)


def hash_key(*parts: int | str) -> int:
    """Returns a 64-bit hash of ``parts``."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def mix_pairs(key: int, pairs: np.ndarray) -> Tensor:
    """Returns an int32 hash ``[n]`` of the key and each pair, by SplitMix64's finaliser (Steele et al., 2014)."""
    x = pairs.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return torch.from_numpy((x >> np.uint64(32)).astype(np.uint32).view(np.int32))


def round_probability(p: float) -> float:
    """Returns the probability that is applied for ``p``."""
    return round(p * STEPS) / STEPS


def draw_mask(rows: Tensor, columns: Tensor, width: int, p: float, dtype: torch.dtype) -> Tensor:
    """Returns 1 where an element is kept and 0 where it is dropped, ``[..., width]``.

    rows:    int32 hashes ``[...]``
    columns: from Masks.start_call for at least this width
    """
    bits = mix(rows[..., None] ^ columns[: -(-width // LANES)]).view(torch.int16)[..., :width]
    return torch.ge(bits, round(p * STEPS) - STEPS // 2, out=torch.empty(bits.shape, dtype=dtype))


class _Drop(torch.autograd.Function):
    """Drops elements of ``x [..., width]`` by the hashes ``rows [...]`` and ``columns``, and scales the others."""

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
    """torch's dropout, except that the current Masks, if there are any, give the masks.

    x:         ``[1, T, hidden]`` of a packed row, ``[n, hidden]`` of the pairs' first tokens, or rows of a shared table
    first_row: the index of the first row in the table, if these are rows of one
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
    """Replaces torch's dropout by PairDropout everywhere in a model."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, PairDropout(child.p))


_current: Masks | None = None


@contextmanager
def decide_dropout(seed: int, step: int, micro_batch: int, pairs: np.ndarray) -> Iterator[None]:
    """Seeds the dropout of the forward pass inside the block: on a GPU by ``micro_batch``, its index among those of all
    ranks; on a CPU by ``pairs``, see Masks."""
    global _current
    torch.manual_seed(hash_key(seed, "dropout", step, micro_batch) >> 1)
    _current = None if torch.cuda.is_available() else Masks(seed, step, pairs)
    try:
        yield
    finally:
        _current = None


def current_masks() -> Masks | None:
    """Returns the masks of the current forward pass; None outside ``decide_dropout``."""
    return _current
