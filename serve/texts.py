"""The answers of a part as an Arrow file, mapped into memory: a row is read when it is shown."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from .answers import Answer

TEXTS = "answers.arrow"
SCHEMA = pa.schema([(name, pa.large_string()) for name in Answer._fields])
BATCH = 50_000  # rows of a record batch


def write_texts(path: Path, answers: Iterable[Answer]) -> None:
    """Writes the answers in their order."""
    rows = iter(answers)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        while batch := list(islice(rows, BATCH)):
            columns = [pa.array(column, pa.large_string()) for column in zip(*batch, strict=True)]
            writer.write_batch(pa.record_batch(columns, schema=SCHEMA))


def map_parts(folders: Iterable[Path]) -> pa.Table:
    """The answers of several parts as one table, whose rows are counted through; its columns are views of the files."""
    return pa.concat_tables([_map_texts(folder / TEXTS) for folder in folders])


def _map_texts(path: Path) -> pa.Table:
    """The answers of a file. Earlier versions wrote no titles, but had them as questions: such a column is empty."""
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    for field in SCHEMA:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.repeat(pa.scalar("", field.type), len(table)))
    return table


def take_answer(table: pa.Table, row: int) -> Answer:
    return Answer(*(table.column(name)[row].as_py() for name in Answer._fields))


def iterate_answers(table: pa.Table, rows: Iterable[int]) -> Iterator[Answer]:
    """Yields these rows of a table; all of them are made at once, a batch at a time."""
    wanted = iter(rows)
    while some := list(islice(wanted, BATCH)):
        columns = table.take(pa.array(some, pa.int64())).to_pydict()
        yield from (Answer(*values) for values in zip(*(columns[name] for name in Answer._fields), strict=True))


def find_ids(table: pa.Table, ids: Iterable[str]) -> list[int]:
    """The rows whose id is one of these, in ascending order."""
    wanted = pa.array(list(ids), pa.large_string())
    return pc.indices_nonzero(pc.is_in(table.column("id"), value_set=wanted)).to_pylist()
