"""``.parquet``: a row is a document, with the columns of a ``.jsonl`` document's fields."""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.prepare.document import Document

from .jsonl import parse_fields
from .reader import Reader, Record

_COLUMNS = ("id", "title", "paragraphs", "text")


def _read_rows(path: Path) -> Iterator[tuple[int, dict]]:
    import pyarrow.parquet as pq

    number = 0
    with pq.ParquetFile(path) as file:
        names = [name for name in _COLUMNS if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=256, columns=names):
            for row in batch.to_pylist():
                number += 1
                yield number, row


def _parse(record: Record) -> list[Document]:
    return parse_fields(record.content, record)


READER = Reader(_read_rows, _parse)
