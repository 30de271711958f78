"""``.csv`` and ``.tsv``: a row is a document. Its columns are named in the first row; ``text`` is one of them."""

import csv
import io
from collections.abc import Iterator

from data_pipeline.prepare.document import Document, Rejected

from .compression import is_compressed, open_source
from .reader import MAX_RECORD_BYTES, Part, Reader, Record, Source
from .tables import parse_row

COLUMNS = ("id", "title", "text")


def _read_rows(source: Source, part: Part | None) -> Iterator[tuple[int, dict | Rejected]]:
    csv.field_size_limit(MAX_RECORD_BYTES)
    name = source.name.rpartition(".")[0] if is_compressed(source.name) else source.name
    with (
        open_source(source) as file,
        io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text,
    ):
        rows = csv.reader(text, delimiter="\t" if name.endswith(".tsv") else ",", strict=True)
        header = next(rows, None)
        if header is not None and "text" not in header:
            raise ValueError(f'the first row names no column "text"; it has {", ".join(header)[:100]}')
        for row in rows:
            yield rows.line_num, _name_fields(header or [], row)


def _name_fields(header: list[str], row: list[str]) -> dict | Rejected:
    if len(row) != len(header):
        return Rejected(f"the row has {len(row)} columns, and the first row {len(header)}")
    fields = {name: value for name, value in zip(header, row, strict=True) if name in COLUMNS}
    if any("\udc80" <= character <= "\udcff" for value in fields.values() for character in value):
        return Rejected("not UTF-8")
    return fields


def _parse(record: Record) -> list[Document]:
    return parse_row(record)


READER = Reader(_read_rows, _parse, may_be_compressed=True)
