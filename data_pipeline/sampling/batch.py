"""A batch: pairs packed one after another in a row, as the model reads them."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Batch:
    """n pairs of T tokens in all, packed one after another in a row.

    input_ids        [T] int32    masked where masking was asked for
    token_type_ids   [T] int32
    position_ids     [T] int32    0 at each pair's first token
    starts           [n + 1] int32  where each pair begins (``cu_seqlens``)
    masked_positions [M] int64    chosen for the token loss, ascending
    masked_labels    [M] int64    the ids that stood there
    noise            [M] float64  uniform in [0, 1), for drawing replacements; [0] where the token loss draws none
    labels           [n] int8     1 where A and B belong together
    kinds            [n] int8     POSITIVE, HARD or EASY
    part             [n] int8     which objective of the mixture
    index            [n] int64    the example's number in the global order
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    position_ids: np.ndarray
    starts: np.ndarray
    masked_positions: np.ndarray
    masked_labels: np.ndarray
    noise: np.ndarray
    labels: np.ndarray
    kinds: np.ndarray
    part: np.ndarray
    index: np.ndarray

    @property
    def num_pairs(self) -> int:
        return len(self.labels)

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)


def concatenate(parts: list[Batch]) -> Batch:
    """Batches one after another, as one."""
    tokens = np.cumsum([0] + [p.num_tokens for p in parts])
    joined = {
        name: np.concatenate([getattr(p, name) for p in parts])
        for name in Batch.__dataclass_fields__
        if name not in ("starts", "masked_positions")
    }
    starts = [p.starts[:-1] + t for p, t in zip(parts, tokens, strict=False)] + [tokens[-1:]]
    masked = np.concatenate([p.masked_positions + t for p, t in zip(parts, tokens, strict=False)])
    return Batch(starts=np.concatenate(starts).astype(np.int32), masked_positions=masked, **joined)
