"""Records become token ids, in worker processes: parse, clean, split into sentences, tokenise."""

import hashlib
import os
from collections import Counter
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from data_pipeline.corpus import OPTIONAL_COLUMNS, make_schema

from .cleaning import Rules, Tally, clean, normalise, split_sentences
from .document import Document, Omitted, Rejected
from .readers import parse_record
from .readers.reader import Record


@dataclass(frozen=True)
class Encoded:
    """What a worker returns for a chunk of records.

    rows:     a serialised Arrow record batch of the kept documents; None where there are none
    tally:    counts what was read, kept and dropped
    rejected: holds ``{file, line, reason}`` of each broken record
    sample:   the first sentences, with which to check that the tokenizer's ids may be joined
    """

    rows: pa.Buffer | None
    tally: Tally
    rejected: list[dict]
    sample: list[str]


def is_held_out(document_id: str, share: float) -> bool:
    """Decide by a hash of the id, so that the split stays as it is when a corpus is sharded anew or grows."""
    digest = hashlib.blake2b(document_id.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64


class Encoder:
    """Encodes chunks of records in a worker process, without ``transformers``, which is slow to import."""

    def __init__(self, tokenizer_json: str, rules: Rules, wide: bool) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread per worker
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.tokenizer.encode_special_tokens = True  # "</s>" in a text is not read as a special token
        self.rules, self.wide = rules, wide

    def __call__(self, records: list[Record]) -> Encoded:
        tally, rejected, kept = Tally(), [], []
        for record in records:
            try:
                documents = parse_record(record)
            except Omitted as reason:
                tally.counts[f"records omitted: {reason}"] += 1
                continue
            except Rejected as reason:
                rejected.append({"file": record.file, "line": record.line, "reason": str(reason)})
                continue
            for document in documents:
                paragraphs = clean(document, self.rules, tally)
                if paragraphs:
                    kept.append((document, [split_sentences(p) for p in paragraphs]))
        tally.counts["records rejected"] += len(rejected)
        sample = [s for _, paragraphs in kept[:20] for sentences in paragraphs for s in sentences][:200]
        return Encoded(self._rows(kept, tally) if kept else None, tally, rejected, sample)

    def _rows(self, kept: list[tuple[Document, list[list[str]]]], tally: Tally) -> pa.Buffer:
        """Tokenise all sentences of the chunk at once and nest their ids by document, paragraph and sentence."""
        paragraphs = self._tokenise([sentences for _, nested in kept for sentences in nested])
        tokens = pa.ListArray.from_arrays(_accumulate_offsets([len(n) for _, n in kept]), paragraphs)
        documents = [document for document, _ in kept]
        held_out = [int(is_held_out(d.id, self.rules.validation_share)) for d in documents]
        for document in documents:
            tally.sources.setdefault(document.source, Counter()).update(documents=1)
        tally.counts.update(
            {
                "documents kept": len(kept),
                "documents held out for validation": sum(held_out),
                "paragraphs kept": len(paragraphs),
                "sentences kept": len(paragraphs.values),
                "tokens kept": len(paragraphs.values.values),
            }
        )
        columns = [pa.array([normalise(getattr(d, name)) for d in documents]) for name in ("id", "title", "source")]
        columns += [pa.array(held_out, pa.uint8()), *self._make_optional(documents), tokens]
        schema = make_schema(self.wide, OPTIONAL_COLUMNS)
        return pa.RecordBatch.from_arrays(columns, schema=schema).serialize()

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
