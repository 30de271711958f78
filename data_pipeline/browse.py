"""Decodes documents of a corpus: by id, at random, or by a text in them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from tokenizers import Tokenizer

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.progress import show_progress

from .corpus import Corpus, Shard
from .sampling.random_bits import draw_below, draw_random_bits


@dataclass(frozen=True)
class ShownDocument:
    """Holds a document decoded from its token ids: an uncased tokenizer, for example, has lost its capitals."""

    id: str
    title: str
    source: str
    held_out: bool
    tokens: int
    paragraphs: list[str]
    answers: list[str] = field(default_factory=list)
    accepted: int = -1


def load_decoder(folder: Path) -> Tokenizer:
    """Loads the tokenizer of a corpus, without ``transformers``. Raises KinspanError where it cannot be read."""
    try:
        return Tokenizer.from_file(str(folder / "tokenizer/tokenizer.json"))
    except Exception as error:  # the library raises a bare Exception
        raise KinspanError(f"the tokenizer of {folder} cannot be read: prepare the corpus again") from error


def show_document(shard: Shard, row: int, decoder: Tokenizer) -> ShownDocument:
    """Decodes a document of a shard."""
    first, last = shard.document_starts[row], shard.document_starts[row + 1]
    starts = shard.sentence_starts[shard.paragraph_starts[first : last + 1]]
    paragraphs = [shard.tokens[a:b].tolist() for a, b in pairwise(starts)]
    given = shard.rows.schema.names
    answers = shard.rows.column("answers")[row].as_py() if "answers" in given else []
    return ShownDocument(
        shard.document_id(row),
        shard.document_title(row),
        shard.rows.column("source")[row].as_py(),
        bool(shard.held_out[row]),
        int(starts[-1] - starts[0]) if len(starts) else 0,
        _decode(decoder, paragraphs),
        _decode(decoder, [[token for sentence in answer for token in sentence] for answer in answers]),
        shard.rows.column("accepted")[row].as_py() if "accepted" in given else -1,
    )


def _decode(decoder: Tokenizer, texts: list[list[int]]) -> list[str]:
    return [text.strip() for text in decoder.decode_batch(texts, skip_special_tokens=False)]


def find_document(corpus: Corpus, document_id: str) -> tuple[Shard, int]:
    """Finds a document by its id. Raises KinspanError where there is none."""
    for number in range(len(corpus.manifest.shards)):
        shard = corpus.shard(number)
        row = pc.index(shard.rows.column("id"), document_id).as_py()
        if row >= 0:
            return shard, row
    raise KinspanError(f"--id {document_id}: no document of {corpus.folder} has this id")


def sample_documents(corpus: Corpus, count: int, seed: int) -> Iterator[tuple[Shard, int]]:
    """Yields ``count`` random documents of all splits, but no more than there are. One may come twice."""
    ends = np.cumsum([s.documents for s in corpus.manifest.shards])
    bits = draw_random_bits(seed, "documents to look at", 0, min(count, int(ends[-1])), 4)[:, 0]
    for number in draw_below(bits, int(ends[-1])).tolist():
        shard = int(np.searchsorted(ends, number, side="right"))
        yield corpus.shard(shard), number - int(ends[shard - 1] if shard else 0)


def search_documents(corpus: Corpus, text: str, decoder: Tokenizer) -> Iterator[tuple[Shard, int]]:
    """Yields the documents that hold ``text`` in a paragraph, in small or capital letters, with a progress bar.

    The tokenizer may have changed the text: so both sides are compared as it gives them back, without spaces. Raises
    KinspanError for a text of which it leaves nothing: every document would hold that.
    """
    wanted = _fold(_decode(decoder, [decoder.encode(text, add_special_tokens=False).ids])[0])
    if not wanted:
        raise KinspanError(f"--search {text!r}: the tokenizer of {corpus.folder} leaves nothing of this text")
    total = corpus.manifest.totals["documents"]
    with show_progress("searching", "documents", total=total) as bar:
        for number in range(len(corpus.manifest.shards)):
            shard = corpus.shard(number)
            for row in range(len(shard.held_out)):
                if _holds(shard, row, wanted, decoder):
                    yield shard, row
                bar.update()


def _holds(shard: Shard, row: int, wanted: str, decoder: Tokenizer) -> bool:
    return any(wanted in _fold(paragraph) for paragraph in show_document(shard, row, decoder).paragraphs)


def _fold(text: str) -> str:
    return "".join(text.casefold().split())
