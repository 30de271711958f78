"""A batch: examples packed one after another in a row, as the model reads them.

For a cross-encoder an example is one sequence, its texts joined. For a bi-encoder each of its texts is a sequence of
its own, and those of an example follow one another.
"""

from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True)
class Batch:
    """Holds n pairs of T tokens in all, packed one after another in a row.

    A pair is of m sequences: one where its texts are joined, otherwise as many as it has texts.

    input_ids        [T] int32    masked where masking was asked for
    token_type_ids   [T] int32
    position_ids     [T] int32    0 at each sequence's first token
    starts           [n * m + 1] int32  where each sequence begins (``cu_seqlens``)
    masked_positions [M] int64    chosen for the token loss, ascending
    masked_labels    [M] int64    the ids that stood there
    noise            [M] float64  uniform in [0, 1), for drawing replacements; [0] where the token loss draws none
    labels           [n] int8     1 where A and B belong together
    kinds            [n] int8     POSITIVE, HARD or EASY
    part             [n] int16    which part of the mixture the pair is of
    index            [n] int64    the example's number in the global order
    groups           [n * m, 2] int64  of each sequence the number of its document, which a question and its duplicates
                     share, and a number that equal texts share; [0, 2] where the texts of a pair are joined
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
    def per_pair(self) -> int:
        """Returns m, the sequences of a pair."""
        return (len(self.starts) - 1) // len(self.labels)

    @property
    def sequences(self) -> np.ndarray:
        """Returns the number of each sequence in the global order, ``[n * m]``."""
        m = self.per_pair
        return (self.index[:, None] * m + np.arange(m)).ravel()

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def num_masked(self) -> int:
        return len(self.masked_labels)

    @property
    def lengths(self) -> np.ndarray:
        """Returns the tokens of each pair, ``[n]``."""
        return np.diff(self.starts[:: self.per_pair])

    def cut(self, start: int, end: int) -> "Batch":
        """Returns pairs ``start .. end``, as if they had been sampled by themselves. Most arrays are views."""
        m = self.per_pair
        first, last = self.starts[start * m], self.starts[end * m]
        pairs, tokens = slice(start, end), slice(first, last)
        masked = slice(*np.searchsorted(self.masked_positions, (first, last)))
        cut = {name: getattr(self, name)[tokens] for name in ("input_ids", "token_type_ids", "position_ids")}
        cut |= {name: getattr(self, name)[masked] for name in ("masked_labels", "noise")}
        cut |= {name: getattr(self, name)[pairs] for name in ("labels", "kinds", "part", "index")}
        return Batch(
            **cut,
            starts=self.starts[start * m : end * m + 1] - first,
            masked_positions=self.masked_positions[masked] - first,
            groups=self.groups[start * m : end * m],
        )


def concatenate(parts: list[Batch]) -> Batch:
    """Joins batches one after another. Places within a row move on by the tokens of the rows before it."""
    joined = {name: np.concatenate([part.arrays[name] for part in parts]) for name in parts[0].arrays}
    tokens = np.cumsum([0] + [part.num_tokens for part in parts])
    starts = [part.starts[:-1] + before for part, before in zip(parts, tokens, strict=False)] + [tokens[-1:]]
    joined["starts"] = np.concatenate(starts).astype(np.int32)
    joined["masked_positions"] += np.repeat(tokens[:-1], [part.num_masked for part in parts])
    return Batch(**joined)
