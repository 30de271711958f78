"""Decodes documents of a corpus, and the pairs of a stream."""

import random
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.progress import show_progress

from .corpus import SPLITS, Corpus, Shard
from .matching import fold_words
from .prepare.cleaning import normalise
from .sampling.block import Block, Spans
from .sampling.pairs import KINDS, POSITIVE
from .sampling.stream import CHUNK, PairStream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_decoder(folder: Path) -> Tokenizer:
    """Loads the tokenizer in a folder, without ``transformers``. Raises KinspanError if it cannot be read."""
    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises a bare Exception
        raise KinspanError(f"the tokenizer in {folder} cannot be read: {quote_error(error)}") from error


def read_document(shard: Shard, row: int, decoder: Tokenizer) -> tuple[dict[str, Any], list[str], list[str]]:
    """Returns a document's fields, paragraphs and answers, the texts decoded from their token ids."""
    first, last = shard.document_starts[row], shard.document_starts[row + 1]
    starts = shard.sentence_starts[shard.paragraph_starts[first : last + 1]]
    fields = shard.rows.slice(row, 1).drop_columns(["tokens"]).to_pylist()[0] | {"tokens": starts[-1] - starts[0]}
    paragraphs = _decode(decoder, [shard.tokens[a:b].tolist() for a, b in pairwise(starts)])
    return fields, paragraphs, _decode(decoder, [list(chain(*answer)) for answer in fields.get("answers", [])])


def format_document(shard: Shard, row: int, decoder: Tokenizer) -> str:
    """Returns a document as text: an uncased tokenizer has lost its capitals."""
    fields, texts, answers = read_document(shard, row, decoder)
    for number, answer in enumerate(answers):
        texts.append(f"[{'accepted answer' if number == fields['accepted'] else 'answer'}] {answer}")
    place = f"{fields['id']}, from {fields['source']}, {fields['tokens']:,} tokens, {SPLITS[fields['held_out']]}"
    return "\n\n".join([f"{'-' * 80}\n{fields['title'] or '(no title)'}\n{place}", *texts]) + "\n"


def check_left_out(texts: Sequence[str], corpus: Corpus, flag: str) -> None:
    """Raises KinspanError if a paragraph, an answer or an id in the corpus equals a text that was to be left out.

    The texts are encoded and decoded first, so that both sides lose the same. One with an unknown token would equal
    others, and is not looked for.
    """
    decoder = load_decoder(Path(corpus.tokenizer_folder))
    encoded = decoder.encode_batch([normalise(text) for text in texts], add_special_tokens=False)
    wanted = {fold_words(text) for text in _decode(decoder, [e.ids for e in encoded])}
    wanted = {words for words in wanted if words and "unk" not in words.split()}
    for number in show_progress("looking for answers", "shards", range(len(corpus.manifest.shards) if wanted else 0)):
        shard = corpus.shard(number)
        for fields, *read in (read_document(shard, row, decoder) for row in range(len(shard.held_out))):
            if not wanted.isdisjoint(map(fold_words, chain([fields["id"]], *read))):
                raise KinspanError(f"{flag}: {corpus.folder} still has an answer, in {fields['id']}: delete the folder")


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
            texts = {"a": a.pop("text"), "b": b.pop("text"), "negatives": [span["text"] for span in negatives]}
            yield {
                "index": index,
                **({"corpus": part.name.partition("/")[0]} if part.name else {}),
                "objective": part.objective.name,
                "kind": KINDS[rows.kinds[row]],
                "label": int(rows.kinds[row] == POSITIVE),
                **a,
                **{f"b_{key}": value for key, value in b.items()},
                **texts,
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
    title = shard.rows.column("title")[document].as_py()
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
