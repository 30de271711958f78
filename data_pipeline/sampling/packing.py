"""Packing: the texts of n examples are cut to fit, laid out one example after another in one row, and copied there.

An example is a tuple of texts, most often the two of a pair. Each function here takes such tuples: one array ``[n]``
for each text.
"""

from dataclasses import dataclass

import numpy as np

from data_pipeline.tokenizers import PairTemplate

from .block import Block
from .random_bits import scramble

MIN_TEXT_TOKENS = 12  # the texts of an example, together, keep at least so many tokens


@dataclass(frozen=True)
class PackedRow:
    """Holds n examples in a row of T tokens, special tokens in place, texts still to be copied in.

    ids, types, positions  [T] int32
    starts                 [n + 1] int32  where each example begins
    special                [T] bool       whether a token is a special one
    text_starts            for each text, ``[n]``: where it begins in the row
    """

    ids: np.ndarray
    types: np.ndarray
    positions: np.ndarray
    starts: np.ndarray
    special: np.ndarray
    text_starts: tuple[np.ndarray, ...]


def lay_out(template: PairTemplate, lengths: tuple[np.ndarray, ...]) -> PackedRow:
    """Lays out examples whose texts have so many tokens, ``[n]`` for each text, after the cut."""
    head, *tails = template.special  # a tail is what follows a text
    # A segment is a text with its tail, and the head before it where it is the first: it has one token type.
    segments = [length + len(tail) for length, tail in zip(lengths, tails, strict=True)]
    segments[0] = segments[0] + len(head)
    starts = np.zeros(len(segments[0]) + 1, dtype=np.int32)
    np.cumsum(sum(segments), out=starts[1:])
    ids = np.empty(starts[-1], dtype=np.int32)
    special = np.zeros(starts[-1], dtype=bool)

    def put(piece: np.ndarray, at: np.ndarray) -> None:
        for offset, token in enumerate(piece):
            ids[at + offset], special[at + offset] = token, True

    put(head, starts[:-1])
    text_starts, end = [], starts[:-1]
    for segment, length, tail in zip(segments, lengths, tails, strict=True):
        end = end + segment
        put(tail, end - len(tail))
        text_starts.append(end - len(tail) - length)
    positions = np.arange(starts[-1], dtype=np.int32) - np.repeat(starts[:-1], np.diff(starts))
    segment_types = np.tile(np.array(template.types, dtype=np.int32), len(starts) - 1)
    types = np.repeat(segment_types, np.column_stack(segments).ravel())
    return PackedRow(ids, types, positions, starts, special, tuple(text_starts))


def lay_out_apart(
    template: PairTemplate, full: tuple[np.ndarray, ...], room: int
) -> tuple[tuple[np.ndarray, ...], PackedRow, tuple[np.ndarray, ...]]:
    """Lays out examples whose texts are encoded each alone: the texts of an example are sequences that follow another.

    template: of one text
    full:     tokens of each text, ``[n]`` for each of the m texts
    room:     the most that a text keeps

    Returns the lengths after the cut, the row of ``n * m`` sequences, and where each text begins in it, like ``full``.
    """
    lengths = tuple(np.minimum(length, room) for length in full)
    row = lay_out(template, (np.stack(lengths, axis=1).ravel(),))
    return lengths, row, tuple(row.text_starts[0].reshape(-1, len(full)).T)


def cut_longest_first(lengths: tuple[np.ndarray, ...], room: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts the lengths of two texts, ``[n]`` each, to ``room`` tokens together, as ``truncation="longest_first"`` does.

    The longer one is cut to the shorter, then both alike; the odd token goes to the longer side, on a tie to the
    second.
    """
    a, b = lengths
    half = room // 2
    shorter = np.minimum(a, b)
    # Where the shorter fits in half the room, the longer gets the rest; else they share, the odd token above.
    small = np.where(shorter <= half, shorter, half)
    large = np.minimum(np.maximum(a, b), room - small)
    return np.where(a > b, large, small), np.where(a > b, small, large)


def hash_texts(ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns a 64-bit hash of each sequence of a row, ``[n]``."""
    place = np.arange(len(ids)) - np.repeat(starts[:-1], np.diff(starts))
    mixed = scramble(ids.astype(np.uint64) << np.uint64(32) | place.astype(np.uint64))
    return np.add.reduceat(mixed, starts[:-1]).view(np.int64)


def copy_text(
    out: np.ndarray,
    at: np.ndarray,
    length: np.ndarray,
    block: Block,
    paragraphs: np.ndarray,
    runs: list[tuple[np.ndarray, np.ndarray]],
) -> None:
    """Copies the first ``length`` tokens of a text of each example, of one or two runs in its shard, to ``out[at]``."""
    for start, end in runs:
        now = np.minimum(end - start, length)
        for shard, places in block.split_by_shard(paragraphs):
            copy_runs(out, at[places], shard.tokens, start[places], now[places])
        at, length = at + now, length - now


def copy_runs(out: np.ndarray, at: np.ndarray, source: np.ndarray, start: np.ndarray, length: np.ndarray) -> None:
    """Sets ``out[at[k] : at[k] + length[k]] = source[start[k] : start[k] + length[k]]`` for every k at once."""
    before = np.cumsum(length) - length
    counter = np.arange(int(length.sum()))
    tokens = source[counter + np.repeat(start - before, length)]
    out[counter + np.repeat(at - before, length)] = tokens.astype(out.dtype)  # a cast as it scatters is slower
