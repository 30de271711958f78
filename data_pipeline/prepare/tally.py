"""Counts what was read, kept and dropped."""

import zlib
from collections import Counter
from dataclasses import dataclass, field

MAX_SAMPLES = 3  # of what one rule dropped
SAMPLE_CHARS = 200


@dataclass
class Tally:
    """Counts what was read, kept and dropped, and why. The tallies of chunks add up.

    sources: the documents of each
    samples: for each rule, named as its count is, a few of the texts that it dropped. Which ones depends on the texts
             alone: those of the smallest hash, however the input was cut into chunks.
    """

    counts: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, more: "Tally") -> None:
        self.counts.update(more.counts)
        self.sources.update(more.sources)
        for name, texts in more.samples.items():
            for text in texts:
                self.add_sample(name, text)

    def add_sample(self, name: str, text: str) -> None:
        """Remembers a text that a rule dropped, if it belongs to the sample."""
        text = text[:SAMPLE_CHARS]
        texts = self.samples.setdefault(name, [])
        if len(texts) == MAX_SAMPLES and _rank(text) >= _rank(texts[-1]):
            return
        if text not in texts:
            texts.append(text)
            texts.sort(key=_rank)
            del texts[MAX_SAMPLES:]


def _rank(text: str) -> tuple[int, str]:
    return zlib.crc32(text.encode("utf-8", "surrogatepass")), text
