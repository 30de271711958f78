"""Encodes input tasks, the first stage: parses, cleans, splits into sentences and tokenises their records."""

import hashlib
import os
import shutil
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer
from xxhash import xxh3_64_intdigest

from data_pipeline.matching import count_chars
from data_pipeline.tokenizers import check_joins

from .benchmark import Benchmark
from .cleaning import Tally, clean, normalise, split_sentences
from .document import Document, Omitted, Rejected
from .duplicates import write_signatures
from .plan import PreparePlan, load_plan
from .read import ReadTally, parse_counted
from .readers.reader import Record, measure_content
from .readers.registry import parse_record
from .spill import KEY_BYTES, SpillWriter, hash_string, make_spill_schema

WITH_BENCHMARK = "documents with a sentence of --decontaminate"
CHUNK_BYTES = 1 << 20  # raw records that are encoded together
Kept = tuple[Document, list[str]]  # a document and its cleaned paragraphs


def encode_inputs(plan_file: Path, number: int) -> None:
    """Encodes input task ``number`` of a plan, unless its output exists."""
    plan = load_plan(plan_file)
    task = plan.tasks[number]
    if (plan.encoded / f"{task.key}.json").exists():
        return
    encoder, writer = load_encoder(plan_file), SpillWriter(plan.encoded, task.key, plan.wide)
    tally, read_tally = Tally(), ReadTally()
    texts = (text for chunk in cut_chunks(task.read()) for text in encoder.encode(chunk, writer, tally, read_tally))
    if plan.near:
        folder = plan.signatures(task.key)
        temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        write_signatures(texts, temporary)
        shutil.rmtree(folder, ignore_errors=True)  # left by a run of this task that was killed before its end
        temporary.replace(folder)
    else:
        deque(texts, maxlen=0)
    writer.finish({"tally": vars(tally), "read": asdict(read_tally)})


@lru_cache(maxsize=1)
def load_encoder(plan_file: Path) -> "Encoder":
    """Loads the encoder that all tasks of a process share."""
    return Encoder(load_plan(plan_file))


def cut_chunks(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Cuts records into chunks of about CHUNK_BYTES."""
    chunk: list[Record] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += measure_content(record.content)
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def is_held_out(name: str, share: float) -> bool:
    """Decides by a hash of the name, so that documents keep their split when a corpus grows."""
    digest = hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64


def name_split(document: Document, paragraph_hashes: list[int]) -> str:
    """Returns the name whose hash decides the split: a post's group of linked questions or id, else the text alone.

    So a text has one split under any id, with or without its title, and a question when it gains answers.
    """
    return (document.group or document.id) if document.is_post else str(_hash_all(paragraph_hashes))


def make_key(document: Document, text_hash: int) -> bytes:
    """Returns a document's sort key, a hash; a post's begins with its group's, so that linked posts are neighbours."""
    name = f"{document.id}\n{document.source}\n{text_hash}".encode("utf-8", "replace")
    if not document.is_post:
        return hashlib.blake2b(name, digest_size=KEY_BYTES).digest()
    group = f"{document.group or document.id}\n{document.source}".encode("utf-8", "replace")
    return b"".join(hashlib.blake2b(part, digest_size=KEY_BYTES // 2).digest() for part in (group, name))


def _hash_all(hashes: list[int]) -> int:
    return xxh3_64_intdigest(np.array(hashes, dtype=np.uint64).tobytes())


class Encoder:
    """Encodes chunks of records, without ``transformers``, which is slow to import."""

    def __init__(self, plan: PreparePlan) -> None:
        self.tokenizer = Tokenizer.from_str(plan.tokenizer_file.read_text(encoding="utf-8"))
        self.tokenizer.encode_special_tokens = True  # "</s>" in a text is not read as a special token
        self.name, self.rules, self.wide = plan.tokenizer_name, plan.rules, plan.wide
        self.keep_code = plan.settings.get("keep_code", False)
        sentences = [" ".join(sentence.split()) for sentence in plan.decontaminate]
        self.benchmark = Benchmark(sentences) if sentences else None
        self._joins_checked = False  # whether joined sentences are known to keep their token ids

    def encode(self, records: list[Record], writer: SpillWriter, tally: Tally, read_tally: ReadTally) -> list[str]:
        """Writes and counts the documents of a chunk of records; returns the texts of the kept ones."""
        documents: list[Document] = []
        for record in records:
            parsed = parse_counted(record, read_tally, partial(parse_record, keep_code=self.keep_code))
            if isinstance(parsed, Omitted):
                tally.counts[f"records omitted: {parsed}"] += 1
            elif isinstance(parsed, Rejected):
                writer.reject(record.file, record.line, str(parsed), measure_content(record.content))
            else:
                documents += parsed
        code = f"code blocks {'kept' if self.keep_code else 'left out'}"
        tally.counts[code] += sum(document.code_blocks for document in documents)
        tally.counts["documents cut off a longer text"] += sum(document.is_part for document in documents)
        if self.rules.title_texts:
            documents = [replace(document, title_is_text=True) for document in documents]
        cleaned = [(document, clean(document, self.rules, tally)) for document in documents]
        kept = [(document, paragraphs) for document, paragraphs in cleaned if paragraphs is not None]
        if self.benchmark and kept:
            kept = _drop_contaminated(self.benchmark, kept, tally)
        if kept:
            nested = [[hash_string(p) for p in paragraphs] for _, paragraphs in kept]
            text_hashes = [
                _hash_all([*hashes, *(hash_string(normalise(text)) for text in _list_fields(document))])
                for (document, _), hashes in zip(kept, nested, strict=True)
            ]
            flat = np.fromiter(chain.from_iterable(nested), dtype=np.uint64)
            writer.add(self._make_rows(kept, nested, text_hashes), np.array(text_hashes, dtype=np.uint64), flat)
        return ["\n".join([*paragraphs, *_list_fields(document)]) for document, paragraphs in kept]

    def _make_rows(self, kept: list[Kept], nested: list[list[int]], text_hashes: list[int]) -> pa.RecordBatch:
        """Returns the spill file's rows of the kept documents, but for the columns that ``SpillWriter`` adds."""
        documents = [document for document, _ in kept]
        paragraphs = [paragraph for _, of_document in kept for paragraph in of_document]
        sentences = [split_sentences(paragraph) for paragraph in paragraphs]
        if not self._joins_checked:
            encode = partial(self.tokenizer.encode, add_special_tokens=False)
            check_joins(lambda text: encode(text).ids, list(chain.from_iterable(sentences))[:200], self.name)
            self._joins_checked = True
        starts = _accumulate_offsets([len(of_document) for _, of_document in kept])
        share = self.rules.validation_share
        held_out = [is_held_out(name, share) for name in map(name_split, documents, nested)]
        columns = [pa.array([normalise(getattr(d, name)) for d in documents]) for name in ("id", "title", "source")]
        columns += [pa.array(held_out).cast(pa.uint8()), *self._make_optional(documents)]
        columns.append(pa.ListArray.from_arrays(starts, self._tokenise(sentences)))
        keys = list(map(make_key, documents, text_hashes))
        chars = pa.array(np.fromiter(map(count_chars, paragraphs), dtype=np.uint32))
        columns += [pa.array(keys, pa.binary(KEY_BYTES)), pa.ListArray.from_arrays(starts, chars)]
        least = max(1, self.rules.min_document_chars)  # an answered question needs no body
        min_chars = [0 if d.accepted is not None else 1 if d.is_post else least for d in documents]
        columns.append(pa.array(min_chars, pa.uint32()))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(make_spill_schema(self.wide))[:-2]))

    def _make_optional(self, documents: list[Document]) -> list[pa.Array]:
        """Returns the columns of corpus.OPTIONAL_COLUMNS, which only some readers fill."""
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
        """Tokenises texts, each a list of sentences, to ids nested by text and sentence, without empty sentences."""
        sentences = list(chain.from_iterable(texts))
        ids = [e.ids for e in self.tokenizer.encode_batch_fast(sentences, add_special_tokens=False)]
        lengths = np.fromiter(map(len, ids), dtype=np.int32, count=len(ids))
        tokens = np.fromiter(chain.from_iterable(ids), dtype=np.int32 if self.wide else np.uint16)
        num_stored = np.concatenate([[0], np.cumsum(lengths > 0)])  # [i]: non-empty ones among the first i sentences
        ends = np.cumsum([0, *map(len, texts)])  # of texts in ``sentences``, after a 0
        nested = pa.ListArray.from_arrays(_accumulate_offsets(lengths[lengths > 0]), pa.array(tokens))
        return pa.ListArray.from_arrays(pa.array(num_stored[ends].astype(np.int32)), nested)


def _drop_contaminated(benchmark: Benchmark, kept: list[Kept], tally: Tally) -> list[Kept]:
    contaminated = benchmark.find([_list_texts(document, paragraphs) for document, paragraphs in kept])
    for index, sentence in contaminated.items():
        document, paragraphs = kept[index]
        tally.counts[WITH_BENCHMARK] += 1
        tally.counts["paragraphs of dropped documents"] += len(paragraphs)
        tally.add_sample(WITH_BENCHMARK, f"{document.title or document.id}: {sentence}")
    return [entry for index, entry in enumerate(kept) if index not in contaminated]


def _list_fields(document: Document) -> list[str]:
    """Returns the texts of a document beside its paragraphs."""
    return [*document.answers, document.title] if document.title_is_text else document.answers


def _list_texts(document: Document, paragraphs: list[str]) -> list[str]:
    """Returns what is compared with a test set: the id, the texts, and a post's whole body."""
    body = [" ".join(paragraphs)] if document.is_post else []
    return [document.id, *paragraphs, *map(normalise, _list_fields(document)), *body]


def _accumulate_offsets(lengths: np.ndarray | list[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
