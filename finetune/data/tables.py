"""Tables of labelled answers: .jsonl, .csv, .tsv, .parquet, and whatever ``datasets`` loads."""

import csv
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.errors import KinspanError, one_line
from data_pipeline.hub import expect_hub
from data_pipeline.prepare.encode import normalise
from data_pipeline.prepare.readers.compression import COMPRESSED_SUFFIXES, open_decompressed

from .collect import Row

REQUIRED, OPTIONAL = ("question", "answer", "label"), ("question_id", "answer_id")
FORMATS = (".jsonl", ".csv", ".tsv", ".parquet")
LABELS: dict[Any, int] = {0: 0, 1: 1, "0": 0, "1": 1}  # True and 1.0 are 1 as well


@dataclass(frozen=True)
class Table:
    """A file before its rows are read.

    place:   what stands before a row's number in messages
    fields:  its columns
    records: of the columns asked for, each row's number and its values by column
    """

    place: str
    fields: list[str]
    records: Callable[[list[str]], Iterable[tuple[int, dict[str, Any]]]]


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file, compressed or not, without line ends, numbered from 1.

    Lines end at a line feed alone, so that a text may hold other separators. Raises KinspanError.
    """
    number = 0
    try:
        with open_decompressed(path) as file:
            for number, line in enumerate(file, 1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise KinspanError(f"{path} line {number}: not UTF-8 (byte {error.start + 1} of the line)") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise KinspanError(f"{path} line {number + 1}: cannot read on: {one_line(error)}") from error


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a .jsonl file; blank lines are skipped."""
    for number, line in text_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise KinspanError(f"{path} line {number}: not JSON: {error}") from error
        if not isinstance(record, dict):
            raise KinspanError(f"{path} line {number}: not a JSON object")
        yield number, record


def read_table(path: Path) -> Table:
    """The table in a file, of the format that its name tells."""
    suffix = Path(path.stem).suffix if path.suffix in COMPRESSED_SUFFIXES else path.suffix
    if suffix == ".parquet":
        return _parquet(path)
    if suffix == ".jsonl":
        fields = next((list(record) for _, record in json_lines(path)), [])
        return Table(f"{path} line", fields, lambda columns: json_lines(path))
    return _separated(path, _csv_fields if suffix == ".csv" else _tab_fields)


def _parquet(path: Path) -> Table:
    import pyarrow.parquet as pq

    def records(columns: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        number = 0
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=1024, columns=columns):
                    for row in batch.to_pylist():
                        number += 1
                        yield number, row
        except (OSError, ValueError) as error:  # pyarrow's own errors are of these two
            raise KinspanError(f"{path} row {number + 1}: cannot read on: {one_line(error)}") from error

    try:
        return Table(f"{path} row", pq.read_schema(path).names, records)
    except (OSError, ValueError) as error:
        raise KinspanError(f"{path}: not a parquet file: {one_line(error)}") from error


def _tab_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Tab-separated, where a quotation mark is a character like others."""
    for number, line in text_lines(path):
        if line:
            yield number, line.split("\t")


def _csv_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for _, line in text_lines(path)), strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise KinspanError(f"{path} line {reader.line_num}: not CSV: {error}") from error


def _separated(path: Path, rows: Callable[[Path], Iterator[tuple[int, list[str]]]]) -> Table:
    fields = next((fields for _, fields in rows(path)), [])
    if len(set(fields)) < len(fields):
        raise KinspanError(f"{path} line 1: two columns have the same name")

    def records(columns: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        for k, (number, values) in enumerate(rows(path)):
            if len(values) != len(fields):
                raise KinspanError(f"{path} line {number}: {len(values)} fields, but the first line has {len(fields)}")
            if k:
                yield number, dict(zip(fields, values, strict=True))

    return Table(f"{path} line", fields, records)


def hub_splits(name: str) -> list[str]:
    """The splits of a data set of the hub, or of a folder that ``datasets`` loads."""
    import datasets

    return _from_hub(name, lambda: datasets.get_dataset_split_names(name))


def hub_table(name: str, split: str) -> Table:
    import datasets

    data = _from_hub(name, lambda: datasets.load_dataset(name, split=split))

    def records(columns: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        return enumerate(data.select_columns(columns), 1)

    return Table(f"hub={name} {split} row", data.column_names, records)


def _from_hub(name: str, load: Callable[[], Any]) -> Any:
    import datasets

    expect_hub(name)
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        return load()
    except Exception as error:  # the hub, the file system and every format have their own
        raise KinspanError(f"hub={name} cannot be loaded: {one_line(error)}") from error
    finally:
        if not bars:
            datasets.enable_progress_bars()


def labelled(table: Table, columns: dict[str, str]) -> Iterator[Row]:
    """The rows of a table; ``columns`` says what question, answer, label, question_id and answer_id are called there.

    Raises KinspanError for a column that is missing, a value that is no text, and a label other than 0 and 1.
    """
    for column in columns:
        if column not in REQUIRED + OPTIONAL:
            raise KinspanError(f"columns: there is no {column!r}; known are {', '.join(REQUIRED + OPTIONAL)}")
    file = table.place.rsplit(" ", 1)[0]
    if not table.fields:
        raise KinspanError(f"{file}: no rows in this file")
    names = {c: columns.get(c, c) for c in REQUIRED + OPTIONAL}
    for column in (*REQUIRED, *columns):
        if names[column] not in table.fields:
            raise KinspanError(f"{file}: no column {names[column]!r}; there are {', '.join(table.fields)}")
    there = [c for c in names if names[c] in table.fields]

    for line, record in table.records([names[c] for c in there]):
        try:
            values = {c: record[names[c]] for c in there}
        except KeyError as error:
            raise KinspanError(f"{table.place} {line}: no column {error}; there are {', '.join(record)}") from error
        try:
            label = LABELS[values["label"]]
        except (KeyError, TypeError) as error:
            raise KinspanError(f"{table.place} {line}: label {values['label']!r} is neither 0 nor 1") from error
        for column in ("question", "answer"):
            if not isinstance(values[column], str):
                raise KinspanError(f"{table.place} {line}: {names[column]!r} is no text: {values[column]!r}")
        ids = [_id(values[c], names[c], table.place, line) if c in there else None for c in OPTIONAL]
        yield line, ids[0], values["question"], ids[1], normalise(values["answer"]), label


def _id(value: Any, name: str, place: str, line: int) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise KinspanError(f"{place} {line}: {name!r} is neither a string nor a whole number: {value!r}")
    return str(value)
