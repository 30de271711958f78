"""Documents that are put into buckets come out complete and in the order of the input."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.prepare import spill
from data_pipeline.prepare.spill import Buckets, Spills, SpillWriter


def make_rows(count, seed):
    """Documents of a few paragraphs, with random keys."""
    rng = np.random.default_rng(seed)
    tokens = [
        [[rng.integers(0, 9, rng.integers(1, 5)).tolist() for _ in range(rng.integers(1, 4))] for _ in range(k % 4 + 1)]
        for k in range(count)
    ]
    columns = {
        "id": [f"{seed}-{k}" for k in range(count)],
        "title": [""] * count,
        "source": ["s"] * count,
        "held_out": [k % 2 for k in range(count)],
        "title_tokens": [[]] * count,
        "answers": [[]] * count,
        "accepted": [-1] * count,
        "links": [[]] * count,
        "tokens": tokens,
        "key": [rng.bytes(16) for _ in range(count)],
        "chars": [[7] * len(t) for t in tokens],
        "min_chars": [200] * count,
    }
    schema = pa.schema(list(spill.make_spill_schema(False))[:-2])
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Three tasks of two chunks each, in several segments, with more slices than are joined at a time."""
    monkeypatch.setattr(spill, "SEGMENT_BYTES", 3000)
    monkeypatch.setattr(spill, "MAX_OPEN", 2)
    chunks = {}
    for task, key in enumerate("abc"):
        writer = SpillWriter(tmp_path, key, False)
        chunks[key] = [make_rows(30, 2 * task + k) for k in range(2)]
        for rows in chunks[key]:
            paragraphs = np.arange(len(rows.column("chars").flatten()), dtype=np.uint64)[::-1]
            writer.add(rows, np.arange(rows.num_rows, dtype=np.uint64), paragraphs)
        assert not (tmp_path / f"{key}.json").exists()
        writer.reject("f", 1, "r", 1)
        writer.finish({"more": 1})
    facts = json.loads((tmp_path / "a.json").read_text())
    assert (facts["documents"], facts["more"], facts["filled"]) == (60, 1, [])
    return Spills(tmp_path, list("abc"), [60, 60, 60]), chunks


@pytest.mark.parametrize("buckets", [Buckets(3, 2), Buckets(1, 1), Buckets(7, 5)])
def test_each_document_is_in_one_bucket_and_complete(written, buckets):
    spills, chunks = written
    expected = {
        (task, number): row
        for task, key in enumerate("abc")
        for number, row in enumerate(row for rows in chunks[key] for row in rows.to_pylist())
    }
    result = {}
    for bucket in range(buckets.count):
        rows, tasks = spills.read_bucket(*buckets.find_range(bucket))
        listed = [] if rows is None else rows.to_pylist()
        order = [(task, row.pop("number")) for task, row in zip(tasks.tolist(), listed, strict=True)]
        assert order == sorted(order)
        for (task, number), row in zip(order, listed, strict=True):
            place = row.pop("place")
            assert place == (row["held_out"] << 32) + int.from_bytes(row["key"][:4], "big")
            assert place == spills.load(task, "documents")["place"][number]
            assert buckets.find(np.array([place], dtype=np.uint64)).tolist() == [bucket]
            result[task, number] = row
    assert result == expected


def test_paragraphs_are_sorted_by_hash_and_say_where_they_stand(written):
    spills, chunks = written
    paragraphs = spills.load(0, "paragraphs")
    assert (np.diff(paragraphs["hash"].astype(np.int64)) >= 0).all()
    lengths = [len(row["chars"]) for rows in chunks["a"] for row in rows.to_pylist()]
    places = sorted(zip(paragraphs["number"].tolist(), paragraphs["paragraph"].tolist(), strict=True))
    assert places == [(number, k) for number, length in enumerate(lengths) for k in range(length)]


@given(st.integers(1, 5000), st.integers(0, (1 << 32) - 1), st.booleans())
def test_buckets_are_ranges_of_keys(count, upper, held_out):
    buckets = Buckets(1, count) if held_out else Buckets(count, 1)
    place = (held_out << 32) + upper
    first, end = buckets.find_range(int(buckets.find(np.array([place], dtype=np.uint64))[0]))
    assert first <= place < end
