"""Tables of labelled candidates in .jsonl, .csv, .tsv and .parquet files, and the rows that are read from them.

Not read by ``datasets.load_dataset``: it turns texts that look like dates into timestamps, and counts lines from the
beginning of a block, so that a message could not name the line.
"""

import csv
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import JsonObject, parse_json
from data_pipeline.prepare.document import QUESTION_IDS, ROW_IDS, note_unread_ids
from data_pipeline.prepare.encode import normalise
from data_pipeline.prepare.readers.compression import COMPRESSED_SUFFIXES, open_decompressed

from .collect import SourceRow

log = logging.getLogger(__name__)
REQUIRED, OPTIONAL = ("question", "answer", "label"), ("question_id", "answer_id")
IDS = {"question_id": QUESTION_IDS, "answer_id": ("answer_id", "aid", "passage_id", "pid")}  # and ROW_IDS, of either
FORMATS = (".jsonl", ".csv", ".tsv", ".parquet")
MAX_FIELD = 2**31 - 1  # characters: texts may be as long as in the other formats; the csv module's default is 131,072
_SURROGATES = re.compile("[\ud800-\udfff]")  # which JSON can escape
# As other programs write them; 1.0 and True are 1
LABELS: dict[str | float, int] = dict.fromkeys((0, "0", "0.0", "False", "FALSE", "false"), 0)
LABELS |= dict.fromkeys((1, "1", "1.0", "True", "TRUE", "true"), 1)

Record = JsonObject
Value = TypeVar("Value")


@dataclass(frozen=True)
class Table:
    """A table whose rows have not been read yet.

    place:   text before a row's number in messages
    records: given the columns to read, yields each row's number and its values by column
    """

    place: str
    fields: list[str]
    records: Callable[[list[str]], Iterable[tuple[int, Record]]]


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of a file, compressed or not, with their numbers from 1 and without line ends.

    Only a line feed ends a line, so that a text may hold other separators. Raises KinspanError, naming the line.
    """
    number = 0
    try:
        with open_decompressed(path) as file:
            for number, line in enumerate(file, 1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise KinspanError(f"{path} line {number}: not UTF-8 (byte {error.start + 1} of the line)") from error
    except (OSError, EOFError, ValueError) as error:
        raise KinspanError(f"{path} line {number + 1}: cannot read on: {quote_error(error)}") from error


def read_fields(path: Path, *names: str, optional: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Yields the tab-separated fields of each line; blank lines are skipped, and nothing is quoted."""
    for number, line in read_lines(path):
        fields = line.split("\t")
        if not line.strip():
            continue
        if not len(names) - optional <= len(fields) <= len(names):
            raise KinspanError(f"{path} line {number}: {len(fields)} fields, not {len(names)}: {', '.join(names)}")
        yield number, fields


def read_json_lines(path: Path) -> Iterator[tuple[int, Record]]:
    """Yields the objects of a .jsonl file with their line numbers; blank lines are skipped."""
    for number, line in read_lines(path):
        if line.strip():
            yield number, _parse_json(line, f"{path} line {number}", dict)


def read_json(path: Path, kind: type[Value]) -> Value:
    """Returns the list or the object, as ``kind`` says, that a .json file holds."""
    return _parse_json("\n".join(line for _, line in read_lines(path)), str(path), kind)


def _parse_json(text: str, place: str, kind: type[Value]) -> Value:
    try:
        value = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise KinspanError(f"{place}: not JSON: {error}") from error
    if not isinstance(value, kind):
        raise KinspanError(f"{place}: not a JSON {'object' if kind is dict else 'list'}")
    return value


def check_fields(record: object, place: str, kind: type, *names: str) -> None:
    """Raises KinspanError unless a record is a JSON object with these fields, each of type ``kind``."""
    if not isinstance(record, dict) or not all(isinstance(record.get(name), kind) for name in names):
        raise KinspanError(f"{place}: {', '.join(names)} must be {'strings' if kind is str else 'lists'}")


def read_table(path: Path) -> Table:
    """Opens the table in a file, whose name tells the format. Raises KinspanError if it is not of that format."""
    suffix = find_suffix(path)
    if suffix == ".parquet":
        return _read_parquet(path)
    if suffix == ".jsonl":
        fields = next((list(record) for _, record in read_json_lines(path)), [])
        return Table(f"{path} line", fields, lambda columns: read_json_lines(path))
    if suffix not in FORMATS:
        raise KinspanError(f"{path}: not a known format; known are {', '.join(FORMATS)}")
    return _read_separated(path, _read_csv if suffix == ".csv" else _read_tsv)


def find_suffix(path: Path) -> str:
    """Returns the end of a file's name that tells its format, compressed or not."""
    return Path(path.stem).suffix if path.suffix in COMPRESSED_SUFFIXES else path.suffix


def read_quoted_tsv(path: Path) -> Table:
    """Opens a file of tab-separated fields, which may be quoted, as pandas writes them."""
    return _read_separated(path, partial(_read_csv, delimiter="\t", strict=False))


def read_texts(path: Path, known: Iterable[str]) -> Table:
    """Opens a table with ``known`` columns, or a .tsv file of ids and texts without their names, as MS MARCO's are."""
    table, names = read_table(path), ["id", "text"]
    has_names = ".tsv" not in path.suffixes or len(table.fields) != 2 or not set(known).isdisjoint(table.fields)
    if has_names or not any(map(str.isdigit, table.fields[0])):  # names of columns have no digits
        return table
    log.info("%s: its first line names no columns: read as ids and texts", path)

    def records(columns: list[str]) -> Iterator[tuple[int, Record]]:
        return ((number, dict(zip(names, values, strict=True))) for number, values in read_fields(path, *names))

    return Table(f"{path} line", names, records)


def _read_parquet(path: Path) -> Table:
    import pyarrow.parquet as pq

    def records(columns: list[str]) -> Iterator[tuple[int, Record]]:
        with _refuse_damaged(path), pq.ParquetFile(path) as file:
            batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=1024, columns=columns))
            yield from enumerate(chain.from_iterable(batches), 1)

    with _refuse_damaged(path):
        return Table(f"{path} row", pq.read_schema(path).names, records)


@contextmanager
def _refuse_damaged(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # pyarrow's errors are of these two
        raise KinspanError(f"{path}: cannot be read: {quote_error(error)}") from error


def _read_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields tab-separated fields; a quotation mark is a character like any other."""
    return ((number, line.split("\t")) for number, line in read_lines(path) if line)


def _read_csv(path: Path, delimiter: str = ",", strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_FIELD)
    reader = csv.reader((line + "\n" for _, line in read_lines(path)), strict=strict, delimiter=delimiter)
    try:
        yield from ((reader.line_num, fields) for fields in reader if fields)
    except csv.Error as error:
        raise KinspanError(f"{path} line {reader.line_num}: not CSV: {error}") from error


def _read_separated(path: Path, rows: Callable[[Path], Iterator[tuple[int, list[str]]]]) -> Table:
    fields = next((fields for _, fields in rows(path)), [])
    if len(fields) == 1 and re.search(r"[;,\t|]", fields[0]):
        raise KinspanError(f"{path} line 1: columns need {'commas' if '.csv' in path.suffixes else 'tabs'} between")
    if len(set(fields)) < len(fields):
        raise KinspanError(f"{path} line 1: two columns have the same name")

    def records(columns: list[str]) -> Iterator[tuple[int, Record]]:
        for number, values in islice(rows(path), 1, None):
            if len(values) != len(fields):
                raise KinspanError(f"{path} line {number}: {len(values)} fields, not {len(fields)} as before")
            yield number, dict(zip(fields, values, strict=True))

    return Table(f"{path} line", fields, records)


def read_candidates(table: Table, columns: dict[str, str], labelled: bool = True) -> Iterator[SourceRow]:
    """Yields the rows of a table.

    columns:  the table's names for columns of REQUIRED and OPTIONAL, if they differ; those of IDS are known
    labelled: whether the table must have labels; else they are not read, and all are 0
    """
    names = _name_columns(table, columns, labelled)
    present = [c for c in names if names[c] in table.fields]
    optional = {*(names[c] for c in OPTIONAL), names.get("label", "label")} - set(table.fields)
    for line, record in table.records([names[c] for c in present]):
        place = f"{table.place} {line}"
        if missing := [names[c] for c in present if names[c] not in record]:
            raise KinspanError(f"{place}: no column {missing[0]!r}")
        values = {c: record[names[c]] for c in present}
        label = values["label"] if labelled else 0
        if not isinstance(label, str | int | float) or label not in LABELS:
            raise KinspanError(f"{place}: label {label!r} is neither 0 nor 1")
        for column in ("question", "answer"):
            if not isinstance(values[column], str):
                raise KinspanError(f"{place}: {names[column]!r} is not text: {values[column]!r}")
        for name in optional:  # lines of JSON need not have the same fields
            if record.get(name) is not None:
                raise KinspanError(f"{place}: {name!r} is not in the first line: give it in all lines or none")
        ids = [_parse_id(values[c], names[c], place) if c in present else None for c in OPTIONAL]
        yield SourceRow(line, ids[0], values["question"], ids[1], normalise(values["answer"]), LABELS[label])


def _name_columns(table: Table, columns: dict[str, str], labelled: bool) -> dict[str, str]:
    file = table.place.rsplit(" ", 1)[0]
    required = [c for c in REQUIRED if labelled or c != "label"]
    known = (*required, *OPTIONAL)
    if unknown := set(columns) - set(known):
        raise KinspanError(f"--columns: there is no field {min(unknown)!r}; known are {', '.join(known)}")
    if not table.fields:
        raise KinspanError(f"{file}: no rows in this file")
    ids = {c: [name for name in IDS[c] if name in table.fields and name not in ROW_IDS] for c in OPTIONAL}
    names = {c: columns.get(c) or next(iter(ids.get(c, ())), c) for c in known}
    for column in (*required, *columns):
        if names[column] not in table.fields:
            fields = ", ".join(table.fields)
            raise KinspanError(f"{file}: no column {names[column]!r}; there are {fields} (--columns {column}=NAME)")
    if not columns and not all(ids.values()):
        note_unread_ids(f"{file}: ids are made up", tuple(table.fields), tuple(names.values()))
    return names


def _parse_id(value: object, name: str, place: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise KinspanError(f"{place}: {name!r} is neither a string nor a whole number: {value!r}")
    if _SURROGATES.search(str(value)):
        raise KinspanError(f"{place}: {name!r} holds a character that UTF-8 cannot encode: {value!r}")
    return str(value)
