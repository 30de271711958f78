"""``.csv``, ``.tsv``, ``.parquet``, ``.arrow``, ``.json`` and ``hf:NAME``: a row is a document, with the fields of a
``.jsonl`` document as its columns.

Text tables are read with ``csv``, since ``datasets`` turns the id "007" into 7 and the text "NA" into nothing, and
accepts a row with too few columns. Columns of a ``.csv`` may be separated by semicolons, as its first row shows.
``hf:NAME:CONFIG:SPLIT`` is a data set of the Hugging Face hub, streamed; NAME may be a local folder.
"""

import csv
import hashlib
import io
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.prepare.document import DOCUMENT_IDS, LOOKS_LIKE_ID, Document, Rejected, Unreadable

from . import reader
from .compression import is_compressed, open_file, open_source
from .jsonl import load_json, parse_fields
from .lines import UTF_16
from .reader import FilePart, Reader, Record, SourceFile, estimate_text, group_parts, measure_content
from .text import read_whole

if TYPE_CHECKING:
    from datasets import IterableDataset

COLUMNS = (*DOCUMENT_IDS, "title", "url", "paragraphs", "text")
HUB = "hf"
ROWS = 8  # rows in memory at a time, or a single one if they are longer than a record may be
MAX_PARTS = 1000  # of a data set of the hub
PART_ROWS = 10**10  # a part's rows are numbered from a multiple of this
_OTHER_VALUES = "\n"  # key, which no column has, of the other columns' values, kept so that their bytes are counted
_WHOLE = FilePart(0, sys.maxsize)
Rows = Iterator[tuple[int, dict | Rejected]]


def _select(names: Iterable[str]) -> list[str]:
    """Returns the columns to read."""
    return [name for name in names if name in COLUMNS or LOOKS_LIKE_ID.fullmatch(name)]


def _parse_row(record: Record) -> list[Document]:
    return parse_fields(record.content, record)


# Text -----------------------------------------------------------------------------------------------------


def _read_text_rows(source: SourceFile, part: FilePart | None) -> Rows:
    csv.field_size_limit(reader.MAX_RECORD_BYTES)
    name = source.name.rpartition(".")[0] if is_compressed(source.name) else source.name
    with open_source(source) as file:
        lines = _read_lines(io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline=""))
        first = next(lines, "")
        if first.startswith(("\udcff\udcfe", "\udcfe\udcff")):
            raise ValueError(UTF_16)
        is_semicolon = "text" in next(csv.reader([first], delimiter=";"), []) != ["text"]
        delimiter = "\t" if name.lower().endswith(".tsv") else ";" if is_semicolon else ","
        rows = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
        header = next(rows, None) or []
        counts = [header.count(name) for name in ("text", "title", *DOCUMENT_IDS)]
        if first and (not counts[0] or max(counts) > 1):
            reason = f'no column "text", or two of one name, in its first row: {", ".join(header)[:100]}'
            yield 1, Unreadable(reason, estimate_text(source.name, source.size))
            return
        try:
            for row in filter(None, rows):  # a blank line is not a row
                yield rows.line_num, _find_merged(row, delimiter) or _name_fields(header, row)
        except csv.Error as error:
            raise ValueError(f"line {rows.line_num}: its quotation marks do not pair up ({error!s:.60})") from error


def _read_lines(text: IO[str]) -> Iterator[str]:
    """Yields the lines. Raises ValueError for one that is too long, since ``csv`` would keep all of it in memory."""
    while line := text.readline(reader.MAX_RECORD_BYTES + 1):
        if len(line) > reader.MAX_RECORD_BYTES:
            raise ValueError(f"a line is longer than {reader.MAX_RECORD_BYTES >> 20} MB")
        yield line


def _find_merged(row: list[str], delimiter: str) -> Rejected | None:
    """Rejects a row of a .tsv if a field has swallowed other rows, because a text begins with a quotation mark."""
    for field in row if delimiter == "\t" else ():
        lines = field.count("\n")
        if lines and field.count("\t") == lines * (len(row) - 1) > 0:
            return Rejected(f"{lines + 1} rows were read as one: quotation marks do not pair up", measure_content(row))
    return None


def _name_fields(header: list[str], row: list[str]) -> dict[str, Any] | Rejected:
    if len(row) != len(header):
        return Rejected(f"the row has {len(row)} columns, and the first row {len(header)}", measure_content(row))
    if any("\udc80" <= character <= "\udcff" for value in row for character in value):
        return Rejected("not UTF-8", measure_content(row))
    values = dict(zip(header, row, strict=True))
    fields: dict[str, Any] = {name: values.pop(name) for name in _select(values) if name != "paragraphs"}
    return fields | {_OTHER_VALUES: list(values.values())}


def _read_json(source: SourceFile, part: FilePart | None) -> Rows:
    """Reads a list of objects, or a single object."""
    for number, content in read_whole(source, part):
        if isinstance(content, Rejected):
            objects: Any = Rejected(f"{content}, or, if its lines are JSON, read it as jsonl:FILE", content.size)
        else:
            try:
                objects = load_json(content)
            except Rejected as reason:
                are_lines = re.search(rb"\}\s*\n\s*\{", content)
                objects = Rejected("lines of JSON: name it .jsonl" if are_lines else str(reason), len(content))
        yield from enumerate(objects if isinstance(objects, list) else [objects], number)


# Arrow ----------------------------------------------------------------------------------------------------


def _split_row_groups(name: str, size: int) -> list[FilePart]:
    """Cuts a Parquet file into parts of row groups, of about PART_BYTES."""
    import pyarrow.parquet as pq

    try:
        with open_file(name) as opened, pq.ParquetFile(opened) as file:
            groups = range(file.metadata.num_row_groups)
            return group_parts([file.metadata.row_group(k).total_byte_size for k in groups]) or [_WHOLE]
    except (OSError, ValueError, pa.ArrowException):
        return [_WHOLE]  # reading it will report the error


def _read_row_groups(source: SourceFile, part: FilePart | None) -> Rows:
    import pyarrow.parquet as pq

    part = part or _WHOLE
    with source.open() as opened, pq.ParquetFile(opened, buffer_size=1 << 20, pre_buffer=False) as file:
        names = _select(file.schema_arrow.names)
        groups = range(file.metadata.num_row_groups)
        num_before = sum(file.metadata.row_group(k).num_rows for k in groups[: part.begin])
        batches = file.iter_batches(batch_size=ROWS, row_groups=list(groups[part.begin : part.end]), columns=names)
        yield from _list_rows(source, file.schema_arrow, batches, num_before)


def _read_batches(source: SourceFile, part: FilePart | None) -> Rows:
    """Reads Arrow's file format, or its stream format, in which Hugging Face data sets are saved."""
    with pa.memory_map(source.path) if source.path else source.open() as opened:
        source.meter.count_read(source.size if source.path and "::" not in source.name else 0)
        magic = opened.read(6)
        opened.seek(0)
        if magic == b"ARROW1":
            file = pa.ipc.open_file(opened)
            yield from _list_rows(source, file.schema, map(file.get_batch, range(file.num_record_batches)), 0)
        else:
            stream = pa.ipc.open_stream(opened)
            yield from _list_rows(source, stream.schema, iter(stream), 0)


def _list_rows(source: SourceFile, schema: pa.Schema, batches: Iterator[pa.RecordBatch], num_before: int) -> Rows:
    types = {field.name: field.type for field in schema}
    lists = types.get("paragraphs", pa.null())
    if not (_is_text(types.get("text", pa.null())) or (hasattr(lists, "value_type") and _is_text(lists.value_type))):
        columns = ", ".join(f"{name} ({kind})" for name, kind in types.items())[:200]
        size = estimate_text(source.name, source.size)
        yield 1, Unreadable(f'no column "text" of strings or "paragraphs" of lists of strings, but {columns}', size)
        return
    number = num_before
    for batch in batches:
        for rows in _cut_batch(batch.select(_select(batch.schema.names))):
            is_long = rows.nbytes > reader.MAX_RECORD_BYTES
            for row in [reader.reject_too_long("row", rows.nbytes)] if is_long else rows.to_pylist():
                number += 1
                source.meter.count_unpacked(measure_content(row))
                yield number, row


def _cut_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cuts a batch into slices of ROWS rows, and into single rows where those are long."""
    for begin in range(0, batch.num_rows, ROWS):
        rows = batch.slice(begin, ROWS)
        is_long = rows.nbytes > reader.MAX_RECORD_BYTES
        yield from (rows.slice(index, 1) for index in range(rows.num_rows)) if is_long else [rows]


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


# Hugging Face ---------------------------------------------------------------------------------------------


def _open_stream(name: str) -> "tuple[IterableDataset, int]":
    """Opens a data set; returns it and the number of parts that it is read in."""
    from datasets import load_dataset

    folder, config, split = [*name.split(":"), "", ""][:3]
    with _refuse_unknown(name):
        rows = load_dataset(folder, config or None, split=split or "train", streaming=True)
    return rows, min(rows.num_shards, MAX_PARTS)


@contextmanager
def _refuse_unknown(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # no such data set, no network, no access: each has its own type
        raise KinspanError(f"hf:{name} cannot be read: {quote_error(error)}") from error


def _read_stream(source: SourceFile, part: FilePart | None) -> Rows:
    rows, num_parts = _open_stream(source.name.partition(":")[2])
    begin = part.begin if part else 0
    for number, row in enumerate(rows.shard(num_parts, begin) if part else rows, 1 + begin * PART_ROWS):
        yield number, {key: row[key] for key in _select(row)}


def measure_data_set(name: str) -> tuple[int, str]:
    """Returns the size in bytes of a data set, 1 if it is unknown, and a text that changes with its content: a hash of
    the sizes and times of a local folder's files, or the hub's hash of the last commit."""
    from datasets import load_dataset_builder

    files = sorted(path for path in Path(name.partition(":")[0]).rglob("*") if path.is_file())
    if files:
        states = [(str(path), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files]
        stamp = hashlib.sha256(repr(states).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        return max(1, sum(size for _, size, _ in states)), stamp
    folder, config, _ = [*name.split(":"), "", ""][:3]
    with _refuse_unknown(name):
        builder = load_dataset_builder(folder, config or None)
    return builder.info.dataset_size or builder.info.download_size or 1, str(builder.hash)


# Other files of a saved Hugging Face data set: descriptions, and cached results of ``map`` and ``filter``
_IGNORED = r"(?:dataset_info|state|dataset_dict)\.json|cache-[0-9a-f]{16}(?:_\d+_of_\d+)?\.arrow"
TEXT = Reader(_read_text_rows, _parse_row, may_be_compressed=True)
JSON = Reader(_read_json, _parse_row, may_be_compressed=True)
PARQUET = Reader(_read_row_groups, _parse_row, split=_split_row_groups)
ARROW = Reader(_read_batches, _parse_row, ignored=_IGNORED)
HUGGING_FACE = Reader(
    _read_stream, _parse_row, split=lambda name, _: [FilePart(k, k + 1) for k in range(_open_stream(name)[1])]
)
