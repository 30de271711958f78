"""How long sentences, paragraphs and documents are: counts for the report."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

MAX_LENGTH = 200  # longer ones are counted as this long
NAMES = ("tokens per sentence", "sentences per paragraph", "paragraphs per document")


@dataclass
class Lengths:
    """Of each name in NAMES, how many there are of each length, ``[MAX_LENGTH + 1]``. They add up."""

    counts: dict[str, list[int]] = field(default_factory=lambda: {name: [0] * (MAX_LENGTH + 1) for name in NAMES})

    def count(self, rows: pa.RecordBatch) -> None:
        """Count the sentences, paragraphs and documents of some rows of a corpus."""
        column = rows.column("tokens")
        for name in reversed(NAMES):
            lengths = np.minimum(column.value_lengths().to_numpy(), MAX_LENGTH)
            self.add({name: np.bincount(lengths, minlength=MAX_LENGTH + 1).tolist()})
            column = column.flatten()

    def add(self, counts: dict[str, list[int]]) -> None:
        for name, more in counts.items():
            self.counts[name] = [a + b for a, b in zip(self.counts[name], more, strict=True)]
