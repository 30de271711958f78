"""Decodes random documents of a corpus, and the pairs of a stream."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from data_pipeline.core.errors import KinspanError, quote_error

from .corpus import Corpus, Shard
from .sampling.block import Block, Spans
from .sampling.pairs import KINDS, POSITIVE
from .sampling.stream import CHUNK, PairStream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
    """Loads the tokenizer in a folder, without ``transformers``. Raises KinspanError if it cannot be read."""
    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises a bare Exception
        raise KinspanError(f"the tokenizer in {folder} cannot be read: {quote_error(error)}") from error


def show_document(shard: Shard, row: int, decoder: Tokenizer) -> ShownDocument:
    """Decodes a document of a shard."""
    first, last = shard.document_starts[row], shard.document_starts[row + 1]
    starts = shard.sentence_starts[shard.paragraph_starts[first : last + 1]]
    paragraphs = [shard.tokens[a:b].tolist() for a, b in pairwise(starts)]
    columns = shard.rows.schema.names
    answers = shard.rows.column("answers")[row].as_py() if "answers" in columns else []
    return ShownDocument(
        shard.document_id(row),
        shard.document_title(row),
        shard.rows.column("source")[row].as_py(),
        bool(shard.held_out[row]),
        int(starts[-1] - starts[0]) if len(starts) else 0,
        _decode(decoder, paragraphs),
        _decode(decoder, [[token for sentence in answer for token in sentence] for answer in answers]),
        shard.rows.column("accepted")[row].as_py() if "accepted" in columns else -1,
    )


def _decode(decoder: Tokenizer, texts: list[list[int]]) -> list[str]:
    return [text.strip() for text in decoder.decode_batch(texts, skip_special_tokens=False)]


def sample_documents(corpus: Corpus, count: int, seed: int) -> Iterator[tuple[Shard, int]]:
    """Yields ``count`` different random documents of all splits, or all if there are fewer."""
    ends = np.cumsum([s.documents for s in corpus.manifest.shards])
    total = int(ends[-1])
    for index in random.Random(seed).sample(range(total), min(count, total)):
        shard = int(np.searchsorted(ends, index, side="right"))
        yield corpus.shard(shard), index - int(ends[shard - 1] if shard else 0)


def decode_pairs(
    stream: PairStream, tokenizer: "PreTrainedTokenizerBase", start: int, count: int
) -> Iterator[dict[str, Any]]:
    """Yields a dictionary per pair, as ``kinspan show pairs --json`` prints it. Texts are not cut to length."""
    for first in range(start, start + count, CHUNK):
        chunk = stream.pairs(first, min(CHUNK, start + count - first))
        pairs = [(int(index), rows, row) for rows in chunk for row, index in enumerate(rows.index)]
        for index, rows, row in sorted(pairs, key=lambda pair: pair[0]):
            part = stream.mixture.parts[rows.part]
            a, b, *negatives = (_decode_span(rows.block, spans[row], tokenizer) for spans in rows.texts)
            yield {
                "index": index,
                **({"corpus": part.name.partition("/")[0]} if part.name else {}),
                "objective": part.objective.name,
                "kind": KINDS[rows.kinds[row]],
                "label": int(rows.kinds[row] == POSITIVE),
                "doc_id": a["doc_id"],
                "title": a["title"],
                "place": a["place"],
                "b_doc_id": b["doc_id"],
                "b_title": b["title"],
                "b_place": b["place"],
                "a": a["text"],
                "b": b["text"],
                "negatives": [negative["text"] for negative in negatives],
                "input_ids": stream.batch(index, 1).input_ids.tolist(),
            }


def _decode_span(block: Block, span: Spans, tokenizer: "PreTrainedTokenizerBase") -> dict[str, str]:
    shard, document, paragraph = block.locate(span.paragraph)
    place = f"paragraph {paragraph}, sentences [{span.start}, {span.end})"
    if span.hole_start is not None:
        place += f" without [{span.hole_start}, {span.hole_end})"
    if shard.viewed:  # a view of texts, with gaps between them
        place = " and ".join(f"text {text}" for text in range(span.start // 2, (span.end + 1) // 2))
    text = tokenizer.decode(block.read_tokens(span), clean_up_tokenization_spaces=False)
    title = shard.document_title(document)
    return {"doc_id": shard.document_id(document), "title": title, "place": place, "text": text.strip()}


def format_pair(pair: dict[str, Any]) -> str:
    """Returns a pair of ``decode_pairs`` as lines of text."""
    origin = ", ".join(pair[key] for key in ("corpus", "objective") if key in pair)
    lines = [f"pair {pair['index']}: {origin}, {pair['kind']}, label {pair['label']}, {len(pair['input_ids'])} tokens"]
    for name, prefix in (("a", ""), ("b", "b_")):
        document, title = pair[f"{prefix}doc_id"], pair[f"{prefix}title"]
        where = f"{document} ({title})" if title and title != document else document
        lines += [f"  {name.upper()}: {where}, {pair[f'{prefix}place']}", f"     {pair[name]}"]
    return "\n".join([*lines, *(f"  negative:\n     {text}" for text in pair["negatives"])])
