"""Decodes pairs of a stream: the documents that their spans come from, and their texts."""

from collections.abc import Iterator
from typing import Any

from .block import Block
from .pairs import KINDS
from .spans import Spans
from .stream import CHUNK, PairRows, PairStream


def _describe_span(block: Block, spans: Spans, row: int, tokenizer: Any) -> dict[str, Any]:
    """Where a span lies, and its whole text (before a pair is cut to length)."""
    span = spans[row]
    shard, document, number = block.locate(span.paragraph)
    text = tokenizer.decode(block.read_tokens(span), clean_up_tokenization_spaces=False)
    place = {"doc_id": shard.document_id(document), "title": shard.document_title(document)}
    hole = None if span.hole_start is None or span.hole_end is None else [int(span.hole_start), int(span.hole_end)]
    sentences = [int(span.start), int(span.end)]
    texts = shard.viewed and [sentences[0] // 2, (sentences[1] + 1) // 2]
    return {**place, "paragraph": number, "sentences": sentences, "without": hole, "text": text.strip(), "texts": texts}


def describe_pairs(stream: PairStream, tokenizer: Any, start: int, count: int) -> Iterator[dict[str, Any]]:
    """Yields a dictionary per pair, with the keys that ``kinspan show pairs --json`` prints and ``titles``."""
    for first in range(start, start + count, CHUNK):
        every = stream.pairs(first, min(CHUNK, start + count - first))
        pairs = [(int(index), rows, row) for rows in every for row, index in enumerate(rows.index)]
        for _, rows, row in sorted(pairs, key=lambda place: place[0]):
            yield _describe_pair(stream, rows, row, tokenizer)


def _describe_pair(stream: PairStream, rows: PairRows, row: int, tokenizer: Any) -> dict[str, Any]:
    a, b, *negatives = (_describe_span(rows.block, spans, row, tokenizer) for spans in rows.texts)
    index, part = int(rows.index[row]), stream.mixture.parts[rows.part]
    return {
        "index": index,
        **({"corpus": part.name.partition("/")[0]} if part.name else {}),
        "objective": part.objective.name,
        "kind": KINDS[rows.kinds[row]],
        "label": int(rows.kinds[row] == 0),
        "doc_id": a["doc_id"],
        "a_paragraph": a["paragraph"],
        "a_sentences": a["sentences"],
        "b_doc_id": b["doc_id"],
        "b_paragraph": b["paragraph"],
        "b_sentences": b["sentences"],
        "b_without": b["without"],
        "a": a["text"],
        "b": b["text"],
        **({"negatives": [negative["text"] for negative in negatives]} if negatives else {}),
        "input_ids": stream.batch(index, 1).input_ids.tolist(),
        "titles": (a["title"], b["title"]),
        "texts": (a["texts"], b["texts"]),
    }


def format_pair(pair: dict[str, Any]) -> str:
    """Returns the description as lines of text."""

    def line(name: str, number: int, document: str, paragraph: int, sentences: list[int], hole: str) -> str:
        title, texts = pair["titles"][number], pair["texts"][number]
        where = f"{document} ({title})" if title and title != document else document
        place = f"paragraph {paragraph}, sentences [{sentences[0]}, {sentences[1]}){hole}"
        if texts:
            place = " and ".join(f"text {text}" for text in range(*texts))
        return f"  {name}: {where}, {place}\n     {pair[name.lower()]}"

    hole = "" if pair["b_without"] is None else " without [{}, {})".format(*pair["b_without"])
    made_of = ", ".join(pair[key] for key in ("corpus", "objective") if key in pair)
    return "\n".join(
        [
            f"pair {pair['index']}: {made_of}, {pair['kind']}, label {pair['label']}, {len(pair['input_ids'])} tokens",
            line("A", 0, pair["doc_id"], pair["a_paragraph"], pair["a_sentences"], ""),
            line("B", 1, pair["b_doc_id"], pair["b_paragraph"], pair["b_sentences"], hole),
            *(f"  negative:\n     {text}" for text in pair.get("negatives", [])),
        ]
    )
