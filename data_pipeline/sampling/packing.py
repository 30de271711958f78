"""Packs examples: cuts the texts of n examples to fit, lays them out one after another in one row, and copies them.

An example is a tuple of texts, most often the two of a pair. Each function here takes such tuples: one array ``[n]``
for each text.
"""

from dataclasses import dataclass, replace

import numpy as np

from data_pipeline.tokenizers import PairTemplate

from .block import Block
from .random_bits import scramble

MIN_TEXT_TOKENS = 12  # the texts of an example, together, keep at least this many tokens


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
    """Lays out n examples. ``lengths`` has, for each text, its number of tokens after the cut, ``[n]``."""
    head, *tails = template.special  # a tail follows a text
    # A segment is a text with its tail; the first has the head, too. It has one token type.
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


def lay_out_separately(template: PairTemplate, lengths: tuple[np.ndarray, ...]) -> PackedRow:
    """Lays out examples whose texts are encoded alone: the m texts of an example are m consecutive sequences."""
    row = lay_out(template, (np.stack(lengths, axis=1).ravel(),))
    return replace(row, text_starts=tuple(row.text_starts[0].reshape(-1, len(lengths)).T))


def cut_longest_first(lengths: tuple[np.ndarray, ...], room: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts the lengths of two texts, ``[n]`` each, to ``room`` tokens together, as ``truncation="longest_first"`` does.

    The shorter text keeps at most half the room; the longer one, on a tie the second, gets the rest.
    """
    a, b = lengths
    small = np.minimum(np.minimum(a, b), room // 2)
    large = np.minimum(np.maximum(a, b), room - small)
    return np.where(a > b, large, small), np.where(a > b, small, large)


def hash_texts(ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns a 64-bit hash of each sequence of a row, ``[n]``."""
    offset = np.arange(len(ids)) - np.repeat(starts[:-1], np.diff(starts))
    mixed = scramble(ids.astype(np.uint64) << np.uint64(32) | offset.astype(np.uint64))
    return np.add.reduceat(mixed, starts[:-1]).view(np.int64)


def copy_text(
    out: np.ndarray,
    at: np.ndarray,
    length: np.ndarray,
    block: Block,
    paragraphs: np.ndarray,
    runs: list[tuple[np.ndarray, np.ndarray]],
) -> None:
    """Copies, for each example k, the first ``length[k]`` tokens of a text, its one or two runs, to ``out[at[k]:]``."""
    for start, end in runs:
        count = np.minimum(end - start, length)
        for shard, rows in block.split_by_shard(paragraphs):
            copy_runs(out, at[rows], shard.tokens, start[rows], count[rows])
        at, length = at + count, length - count


def copy_runs(out: np.ndarray, at: np.ndarray, source: np.ndarray, start: np.ndarray, length: np.ndarray) -> None:
    """Sets ``out[at[k] : at[k] + length[k]] = source[start[k] : start[k] + length[k]]`` for every k at once."""
    before = np.cumsum(length) - length
    counter = np.arange(int(length.sum()))
    tokens = source[counter + np.repeat(start - before, length)]
    out[counter + np.repeat(at - before, length)] = tokens.astype(out.dtype)  # a cast as it scatters is slower
