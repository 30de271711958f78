"""``.csv`` and ``.tsv``: a row is a document. Its columns are named in the first row; ``text`` is one of them.

Columns of a ``.csv`` may be separated by semicolons, as some spreadsheets write them: the first row shows it.
"""

import csv
import io
from collections.abc import Iterator
from itertools import chain
from typing import IO, Any

from data_pipeline.prepare.document import Rejected, Unreadable

from . import reader
from .compression import is_compressed, open_source
from .reader import FilePart, Reader, SourceFile, estimate_text, find_utf_16, measure_content, pass_rest, reject_utf_16
from .tables import parse_row

COLUMNS = ("id", "title", "text")
_OTHERS = "\n"  # no column's name: the values of all other columns, which count as read where a row is measured


def _read_rows(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, dict | Rejected]]:
    csv.field_size_limit(reader.MAX_RECORD_BYTES)
    name = source.name.rpartition(".")[0] if is_compressed(source.name) else source.name
    with open_source(source) as file:
        if find_utf_16(file):
            yield 1, reject_utf_16(pass_rest(file))
            return
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        lines = _read_lines(text)
        first = next(lines, "")
        if not first:
            return
        delimiter = "\t" if name.lower().endswith(".tsv") else _find_delimiter(first)
        rows = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
        header = next(rows, None)
        if header is None:
            return
        repeated = [f'more than one column "{name}"' for name in COLUMNS if header.count(name) > 1]
        lacking = [f'no column "text"; it has {", ".join(header)[:100]}'] if "text" not in header else []
        for why in [*repeated, *lacking][:1]:
            yield 1, Unreadable(f"the first row names {why}", estimate_text(source.name, source.size))
            return
        try:
            for row in filter(None, rows):  # a blank line is no row
                merged = _find_merged(row) if delimiter == "\t" else None
                yield rows.line_num, merged or _name_fields(header, row)
        except csv.Error as error:
            raise ValueError(
                f"line {rows.line_num}: its quotation marks do not pair up ({error!s:.60}): double those within a "
                "field, or write the table as .jsonl"
            ) from error


def _find_delimiter(first: str) -> str:
    """Find what separates columns: a semicolon where it parts a column ``text`` off the first row, else a comma."""
    return ";" if "text" in next(csv.reader([first], delimiter=";")) else ","


def _read_lines(text: IO[str]) -> Iterator[str]:
    """Yield the lines. Raises ValueError for one that is too long: ``csv`` would have it in memory as a whole."""
    while line := text.readline(reader.MAX_RECORD_BYTES + 1):
        if len(line) > reader.MAX_RECORD_BYTES:
            raise ValueError(f"a line is longer than {reader.MAX_RECORD_BYTES >> 20} MB")
        yield line


def _find_merged(row: list[str]) -> Rejected | None:
    """Reject a row with a field that holds whole rows: in a table without quoting, a quotation mark began a field, and
    the next one ended another."""
    for field in row:
        lines = field.count("\n")
        if lines and field.count("\t") == lines * (len(row) - 1) > 0:
            return Rejected(
                f"{lines + 1} lines are one row here, since a quotation mark begins a field in the first and ends one "
                "in the last: if they are several rows, write the table as .jsonl, or quote its texts",
                measure_content(row),
            )
    return None


def _name_fields(header: list[str], row: list[str]) -> dict | Rejected:
    if len(row) != len(header):
        return Rejected(f"the row has {len(row)} columns, and the first row {len(header)}", measure_content(row))
    fields: dict[str, Any] = {name: value for name, value in zip(header, row, strict=True) if name in COLUMNS}
    if any("\udc80" <= character <= "\udcff" for value in fields.values() for character in value):
        return Rejected("not UTF-8", measure_content(row))
    return fields | {_OTHERS: [value for name, value in zip(header, row, strict=True) if name not in COLUMNS]}


READER = Reader(_read_rows, parse_row, may_be_compressed=True)
