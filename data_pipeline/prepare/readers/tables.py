"""``.parquet`` and ``.arrow``: a row is a document, with the columns of a ``.jsonl`` document's fields."""

import sys
from collections.abc import Iterator

import pyarrow as pa

from data_pipeline.prepare.document import Document, Rejected, Unreadable

from .compression import open_file
from .jsonl import parse_fields
from .reader import FilePart, Reader, Record, SourceFile, estimate_text, group_parts

COLUMNS = ("id", "title", "paragraphs", "text")
_WHOLE = FilePart(0, sys.maxsize)


def _split_row_groups(name: str, size: int) -> list[FilePart]:
    """Cut a Parquet file into runs of row groups of about PART_BYTES; one that cannot be opened is one part."""
    import pyarrow.parquet as pq

    try:
        with open_file(name) as opened, pq.ParquetFile(opened) as file:
            groups = range(file.metadata.num_row_groups)
            return group_parts([file.metadata.row_group(k).total_byte_size for k in groups]) or [_WHOLE]
    except (OSError, ValueError, pa.ArrowException):
        return [_WHOLE]  # reading it says why


def _read_row_groups(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, dict | Rejected]]:
    import pyarrow.parquet as pq

    part = part or _WHOLE
    with source.open() as opened, pq.ParquetFile(opened) as file:
        names = [name for name in COLUMNS if name in file.schema_arrow.names]
        if refused := _refuse_columns(file.schema_arrow, source):
            yield 1, refused
            return
        groups = range(file.metadata.num_row_groups)
        number = sum(file.metadata.row_group(k).num_rows for k in groups[: part.begin])
        for batch in file.iter_batches(batch_size=256, row_groups=list(groups[part.begin : part.end]), columns=names):
            for row in batch.to_pylist():
                number += 1
                yield number, row


def _read_batches(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, dict | Rejected]]:
    """Read Arrow's file format, or its stream format, in which Hugging Face data sets are saved."""
    number = 0
    with source.open() as opened:
        magic = opened.read(6)
        opened.seek(0)
        if magic == b"ARROW1":
            file = pa.ipc.open_file(opened)
            schema, batches = file.schema, map(file.get_batch, range(file.num_record_batches))
        else:
            stream = pa.ipc.open_stream(opened)
            schema, batches = stream.schema, iter(stream)
        if refused := _refuse_columns(schema, source):
            yield 1, refused
            return
        for batch in batches:
            names = [name for name in COLUMNS if name in batch.schema.names]
            for begin in range(0, batch.num_rows, 256):
                for row in batch.select(names).slice(begin, 256).to_pylist():
                    number += 1
                    yield number, row


def _refuse_columns(schema: pa.Schema, source: SourceFile) -> Unreadable | None:
    """Refuse a table that has no text, at once and as a whole: its rows are not broken one by one."""
    types = {field.name: field.type for field in schema}
    lists = types.get("paragraphs", pa.null())
    if _is_text(types.get("text", pa.null())) or (hasattr(lists, "value_type") and _is_text(lists.value_type)):
        return None
    found = ", ".join(f"{name} ({kind})" for name, kind in types.items())
    size = estimate_text(source.name, source.size)
    return Unreadable(f'no column "text" of strings or "paragraphs" of lists of strings, but {found[:200]}', size)


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def parse_row(record: Record) -> list[Document]:
    return parse_fields(record.content, record)


PARQUET = Reader(_read_row_groups, parse_row, split=_split_row_groups)
# Beside the Arrow files of a saved Hugging Face data set lie two files that describe it, and what was made of it: the
# results of ``map``, ``filter`` and ``shuffle`` would be read as documents once more.
_BESIDE = r"(?:dataset_info|state|dataset_dict)\.json|cache-[0-9a-f]{16}(?:_\d+_of_\d+)?\.arrow"
ARROW = Reader(_read_batches, parse_row, ignored=_BESIDE)
