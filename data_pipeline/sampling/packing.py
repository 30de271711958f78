"""Packing: how the texts of many examples are cut, laid out in one row, and copied there."""

from dataclasses import dataclass

import numpy as np

from data_pipeline.tokenizers import PairTemplate

from .block import Block

MIN_TEXT_TOKENS = 12


@dataclass(frozen=True)
class PackedRow:
    """n pairs one after another in a row of T tokens, special tokens in place, texts still to be copied in.

    ids, types, positions ``[T]`` int32 and starts ``[n + 1]`` as of Batch;  special ``[T]`` bool, where special tokens
    are;  a_at, b_at ``[n]`` where A and B begin
    """

    ids: np.ndarray
    types: np.ndarray
    positions: np.ndarray
    starts: np.ndarray
    special: np.ndarray
    a_at: np.ndarray
    b_at: np.ndarray


def lay_out(template: PairTemplate, a_len: np.ndarray, b_len: np.ndarray) -> PackedRow:
    """The row of pairs whose texts have so many tokens, ``[n]`` each, cut."""
    first_len = len(template.head) + a_len + len(template.middle)  # token type 0
    second_len = b_len + len(template.tail)
    starts = np.zeros(len(a_len) + 1, dtype=np.int32)
    np.cumsum(first_len + second_len, out=starts[1:])
    a_at, b_at = starts[:-1] + len(template.head), starts[:-1] + first_len
    ids = np.empty(starts[-1], dtype=np.int32)
    special = np.zeros(starts[-1], dtype=bool)
    for piece, at in (
        (template.head, starts[:-1]),
        (template.middle, a_at + a_len),
        (template.tail, starts[1:] - len(template.tail)),
    ):
        for offset, token in enumerate(piece):
            ids[at + offset], special[at + offset] = token, True
    positions = np.arange(starts[-1], dtype=np.int32) - np.repeat(starts[:-1], np.diff(starts))
    segments = np.tile(np.array([0, template.type_of_second], dtype=np.int32), len(a_len))
    types = np.repeat(segments, np.column_stack([first_len, second_len]).ravel())
    return PackedRow(ids, types, positions, starts, special, a_at, b_at)


def cut_longest_first(a: np.ndarray, b: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of A and B cut to ``room`` tokens together, as ``truncation="longest_first"`` does it.

    The longer is cut to the shorter, then both alike; the odd token goes to the longer side, on a tie to B.
    """
    half = room // 2
    shorter = np.minimum(a, b)
    # Where the shorter fits in half the room, the longer gets the rest; else they share, the odd token above.
    small = np.where(shorter <= half, shorter, half)
    large = np.minimum(np.maximum(a, b), room - small)
    return np.where(a > b, large, small), np.where(a > b, small, large)


def copy_texts(
    out: np.ndarray,
    at: np.ndarray,
    length: np.ndarray,
    block: Block,
    paragraphs: np.ndarray,
    runs: list[tuple[np.ndarray, np.ndarray]],
) -> None:
    """The first ``length`` tokens of each text, of one or two runs in its shard, to ``out[at]``."""
    for start, end in runs:
        now = np.minimum(end - start, length)
        for shard, own in block.by_shard(paragraphs):
            copy_runs(out, at[own], shard.tokens, start[own], now[own])
        at, length = at + now, length - now


def copy_runs(out: np.ndarray, at: np.ndarray, source: np.ndarray, start: np.ndarray, length: np.ndarray) -> None:
    """``out[at[k] : at[k] + length[k]] = source[start[k] : start[k] + length[k]]`` for every k, vectorised."""
    before = np.cumsum(length) - length
    counter = np.arange(int(length.sum()))
    tokens = source[counter + np.repeat(start - before, length)]
    out[counter + np.repeat(at - before, length)] = tokens.astype(out.dtype)  # a cast as it scatters is slower
