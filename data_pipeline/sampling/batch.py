"""Defines a batch: pairs packed one after another in a row, as the model reads them.

For a cross-encoder the texts of a pair are joined into one sequence. For a bi-encoder each text is a sequence of its
own, and those of a pair follow one another.
"""

from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True)
class Batch:
    """Holds n pairs of T tokens in all, packed one after another in a row.

    A pair makes m sequences: one if its texts are joined, otherwise one per text.

    input_ids        [T] int32    masked where masking was asked for
    token_type_ids   [T] int32
    position_ids     [T] int32    0 at each sequence's first token
    starts           [n * m + 1] int32  where each sequence begins (``cu_seqlens``)
    masked_positions [M] int64    chosen for the token loss, ascending
    masked_labels    [M] int64    the original ids there
    noise            [M] float64  uniform in [0, 1), for drawing replacements; empty if the token loss draws none
    labels           [n] int8     what the pair loss learns: 1 if the texts belong together
    kinds            [n] int8     POSITIVE, HARD or EASY
    part             [n] int16    index of the mixture's part that the pair comes from
    index            [n] int64    the pair's index in the global order
    groups           [n * m, 2] int64  a number per sequence for its document, the same for duplicate questions, and a
                     hash of its text: no negative of another pair that shares one. [0, 2] for a cross-encoder
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
    groups: np.ndarray

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(Batch)}

    @property
    def num_pairs(self) -> int:
        return len(self.labels)

    @property
    def sequences_per_pair(self) -> int:
        """Returns m, the number of sequences of a pair."""
        return (len(self.starts) - 1) // len(self.labels)

    @property
    def sequence_indices(self) -> np.ndarray:
        """Returns the index of each sequence in the global order, ``[n * m]``."""
        m = self.sequences_per_pair
        return (self.index[:, None] * m + np.arange(m)).ravel()

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def num_masked(self) -> int:
        return len(self.masked_labels)

    @property
    def lengths(self) -> np.ndarray:
        """Returns the number of tokens of each pair, ``[n]``."""
        return np.diff(self.starts[:: self.sequences_per_pair])

    def cut(self, start: int, end: int) -> "Batch":
        """Returns the pairs ``[start, end)``, as if they had been sampled alone. Most arrays are views."""
        m = self.sequences_per_pair
        first, last = self.starts[start * m], self.starts[end * m]
        pairs, tokens = slice(start, end), slice(first, last)
        masked = slice(*np.searchsorted(self.masked_positions, (first, last)))
        arrays = {name: getattr(self, name)[tokens] for name in ("input_ids", "token_type_ids", "position_ids")}
        arrays |= {name: getattr(self, name)[masked] for name in ("masked_labels", "noise")}
        arrays |= {name: getattr(self, name)[pairs] for name in ("labels", "kinds", "part", "index")}
        return Batch(
            **arrays,
            starts=self.starts[start * m : end * m + 1] - first,
            masked_positions=self.masked_positions[masked] - first,
            groups=self.groups[start * m : end * m],
        )


def concatenate(parts: list[Batch]) -> Batch:
    """Joins batches one after another. Offsets into a row are shifted by the tokens of the rows before it."""
    joined = {name: np.concatenate([part.arrays[name] for part in parts]) for name in parts[0].arrays}
    tokens = np.cumsum([0] + [part.num_tokens for part in parts])
    starts = [part.starts[:-1] + before for part, before in zip(parts, tokens, strict=False)] + [tokens[-1:]]
    joined["starts"] = np.concatenate(starts).astype(np.int32)
    joined["masked_positions"] += np.repeat(tokens[:-1], [part.num_masked for part in parts])
    return Batch(**joined)
