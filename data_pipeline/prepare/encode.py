"""Records become token ids, in worker processes: parse, clean, split into sentences, tokenise."""

import hashlib
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer
from xxhash import xxh3_64_intdigest

from data_pipeline.tokenizers import check_joins

from .benchmark import Benchmark
from .cleaning import Rules, Tally, clean_or_drop, normalise, split_sentences
from .document import Document, Omitted, Rejected
from .read import parse_counted
from .readers.reader import Record, measure_content
from .rejection import ReadTally
from .spill import KEY_BYTES, hash_string, make_chunk_schema

WITH_BENCHMARK = "documents with a sentence of --decontaminate"


@dataclass(frozen=True)
class EncodedChunk:
    """What becomes of a chunk of records.

    rows:       the D kept documents, with the columns of ``spill.make_chunk_schema``; None where there are none
    documents:  ``[D]`` uint64, a hash of each document's text
    paragraphs: ``[P]`` uint64, a hash of each paragraph of ``texts``
    rejected:   ``{file, line, reason, bytes}`` of each broken record
    """

    rows: pa.RecordBatch | None
    documents: np.ndarray
    paragraphs: np.ndarray
    texts: list[list[str]]
    tally: Tally
    rejected: list[dict]


def is_held_out(document_id: str, share: float) -> bool:
    """Decide by a hash of the id, so that the split stays as it is when a corpus is sharded anew or grows."""
    digest = hashlib.blake2b(document_id.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64


def name_group(document: Document) -> str:
    """Name the documents that are kept together, in one split and side by side: questions that links connect."""
    return document.group or document.id


def name_text(document_id: str, text: int) -> str:
    """Name a document whose id many others have, given the hash of its text."""
    return f"{document_id}\n{text}"


def make_key(document: Document, text: int) -> bytes:
    """Make what decides a document's place in the corpus: a hash of its id, its source and the hash of its text.

    The text has its part in it, because a collection may give one id to all its documents. Of a post, the first half
    is a hash of its group alone, so that a question and its duplicates come to stand side by side.
    """
    name = f"{document.id}\n{document.source}\n{text}".encode("utf-8", "replace")
    if not document.is_post:
        return hashlib.blake2b(name, digest_size=KEY_BYTES).digest()
    group = f"{name_group(document)}\n{document.source}".encode("utf-8", "replace")
    halves = (hashlib.blake2b(part, digest_size=KEY_BYTES // 2).digest() for part in (group, name))
    return b"".join(halves)


def hash_text(document: Document, paragraphs: list[int]) -> int:
    """Hash all that is kept of a document's text, given the hashes of its paragraphs."""
    others = [*document.answers, document.title] if document.title_is_text else document.answers
    parts = [*paragraphs, *(hash_string(normalise(other)) for other in others)]
    return xxh3_64_intdigest(np.array(parts, dtype=np.uint64).tobytes())


def _parse_records(records: list[Record], tally: Tally, read: ReadTally) -> tuple[list[Document], list[dict]]:
    """Parse records to documents, and to an entry of ``rejected.jsonl`` for each that is none."""
    documents: list[Document] = []
    rejected = []
    for record in records:
        size = measure_content(record.content)
        found = parse_counted(record, size, read)
        if isinstance(found, Omitted):
            tally.counts[f"records omitted: {found}"] += 1
        elif isinstance(found, Rejected):
            rejected.append({"file": record.file, "line": record.line, "reason": str(found), "bytes": size})
        else:
            documents += found
        tally.counts["bytes read"] += size
    return documents, rejected


class Encoder:
    """Encodes chunks of records in a worker process, without ``transformers``, which is slow to import.

    wide:      whether token ids need more than 16 bits
    benchmark: sentences whose documents are dropped
    """

    def __init__(
        self, tokenizer_json: str, name: str, rules: Rules, wide: bool, benchmark: Benchmark | None = None
    ) -> None:
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.tokenizer.encode_special_tokens = True  # "</s>" in a text is not read as a special token
        self.name, self.rules, self.wide, self.benchmark = name, rules, wide, benchmark
        self._joins = False  # whether it was checked that ids of sentences may be joined

    def __call__(self, records: list[Record], read: ReadTally) -> EncodedChunk:
        tally = Tally()
        documents, rejected = _parse_records(records, tally, read)
        tally.counts["records rejected"] += len(rejected)
        tally.counts["bytes rejected"] += sum(entry["bytes"] for entry in rejected)
        tally.counts["documents cut off a longer text"] += sum(document.is_part for document in documents)
        if self.rules.title_texts:
            documents = [replace(document, title_is_text=True) for document in documents]
        cleaned = [(document, clean_or_drop(document, self.rules, tally)) for document in documents]
        kept = [(document, paragraphs) for document, paragraphs in cleaned if paragraphs is not None]
        if self.benchmark and kept:
            kept = self._drop_known(self.benchmark, kept, tally)
        nested = [(document, [split_sentences(p) for p in paragraphs]) for document, paragraphs in kept]
        hashes = [[hash_string(p) for p in paragraphs] for _, paragraphs in kept]
        texts = [hash_text(document, of_paragraphs) for (document, _), of_paragraphs in zip(kept, hashes, strict=True)]
        return EncodedChunk(
            self._make_rows(nested, [paragraphs for _, paragraphs in kept], texts) if kept else None,
            np.array(texts, dtype=np.uint64),
            np.fromiter(chain.from_iterable(hashes), dtype=np.uint64),
            [paragraphs for _, paragraphs in kept],
            tally,
            rejected,
        )

    @staticmethod
    def _drop_known(
        benchmark: Benchmark, kept: list[tuple[Document, list[str]]], tally: Tally
    ) -> list[tuple[Document, list[str]]]:
        found = benchmark.find([[*paragraphs, *map(normalise, [d.title, *d.answers])] for d, paragraphs in kept])
        for number, sentence in found.items():
            tally.counts[WITH_BENCHMARK] += 1
            tally.counts["paragraphs of dropped documents"] += len(kept[number][1])
            tally.add_sample(WITH_BENCHMARK, f"{kept[number][0].title or kept[number][0].id}: {sentence}")
        return [document for number, document in enumerate(kept) if number not in found]

    def _make_rows(
        self, kept: list[tuple[Document, list[list[str]]]], texts: list[list[str]], hashes: list[int]
    ) -> pa.RecordBatch:
        """Tokenise all sentences of the chunk at once and nest their ids by document, paragraph and sentence."""
        if not self._joins:
            self._check_joins([s for _, nested in kept[:20] for sentences in nested for s in sentences][:200])
        paragraphs = self._tokenise([sentences for _, nested in kept for sentences in nested])
        starts = _accumulate_offsets([len(n) for _, n in kept])
        documents = [document for document, _ in kept]
        share = self.rules.validation_share
        held_out = [  # see spill.find_held_out
            is_held_out(name_group(d), share) + 2 * is_held_out(name_text(d.id, text), share)
            for d, text in zip(documents, hashes, strict=True)
        ]
        columns = [pa.array([normalise(getattr(d, name)) for d in documents]) for name in ("id", "title", "source")]
        columns += [pa.array(held_out, pa.uint8()), *self._make_optional(documents)]
        columns.append(pa.ListArray.from_arrays(starts, paragraphs))
        keys = [make_key(document, text) for document, text in zip(documents, hashes, strict=True)]
        chars = pa.array(np.fromiter(map(len, chain.from_iterable(texts)), dtype=np.uint32))
        least = [1 if d.is_post else self.rules.min_document_chars for d in documents]
        columns += [pa.array(keys, pa.binary(KEY_BYTES)), pa.ListArray.from_arrays(starts, chars)]
        columns.append(pa.array(least, pa.uint32()))
        return pa.RecordBatch.from_arrays(columns, schema=make_chunk_schema(self.wide))

    def _check_joins(self, sentences: list[str]) -> None:
        def encode(text: str) -> list[int]:
            return self.tokenizer.encode(text, add_special_tokens=False).ids

        check_joins(encode, sentences, self.name)
        self._joins = True

    def _make_optional(self, documents: list[Document]) -> list[pa.Array]:
        """Make the columns that only some readers give, see corpus.OPTIONAL_COLUMNS; they may be empty."""
        titles = [normalise(d.title) if d.title_is_text else "" for d in documents]
        answers = [normalise(answer) for d in documents for answer in d.answers]
        return [
            self._tokenise([split_sentences(title) if title else [] for title in titles]),
            pa.ListArray.from_arrays(
                _accumulate_offsets([len(d.answers) for d in documents]),
                self._tokenise([split_sentences(answer) if answer else [] for answer in answers]),
            ),
            pa.array([-1 if d.accepted is None else d.accepted for d in documents], pa.int32()),
            pa.array([[normalise(link) for link in d.links] for d in documents], pa.list_(pa.string())),
        ]

    def _tokenise(self, texts: list[list[str]]) -> pa.ListArray:
        """Tokenise texts, which are lists of sentences, to ids nested by text and sentence.

        A sentence whose characters the tokenizer drops has no ids and is not stored.
        """
        sentences = list(chain.from_iterable(texts))
        ids = [e.ids for e in self.tokenizer.encode_batch_fast(sentences, add_special_tokens=False)]
        lengths = np.fromiter(map(len, ids), dtype=np.int32, count=len(ids))
        tokens = np.fromiter(chain.from_iterable(ids), dtype=np.int32 if self.wide else np.uint16)
        stored_before = np.concatenate([[0], np.cumsum(lengths > 0)])
        ends = np.cumsum([0, *map(len, texts)])
        nested = pa.ListArray.from_arrays(_accumulate_offsets(lengths[lengths > 0]), pa.array(tokens))
        return pa.ListArray.from_arrays(pa.array(stored_before[ends].astype(np.int32)), nested)


def _accumulate_offsets(lengths: np.ndarray | list[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
