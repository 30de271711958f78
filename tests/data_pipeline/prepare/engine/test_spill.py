"""What is put into buckets comes out of them, whole and in the order of the input."""

import numpy as np
import pyarrow as pa
import pytest

from data_pipeline.prepare.engine import spill
from data_pipeline.prepare.engine.spill import Buckets, SpillWriter, is_written, load_array, load_facts, read_bucket


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
        "held_out": [int(k % 5 == 0) for k in range(count)],
        "title_tokens": [[]] * count,
        "answers": [[]] * count,
        "accepted": [-1] * count,
        "links": [[]] * count,
        "tokens": tokens,
        "key": [rng.bytes(16) for _ in range(count)],
        "chars": [[7] * len(t) for t in tokens],
        "least": [200] * count,
    }
    schema = spill.make_chunk_schema(False)
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Two tasks of two chunks each, in several segments, and the buckets of what they hold."""
    monkeypatch.setattr(spill, "SEGMENT_BYTES", 3000)
    buckets = Buckets(3, 2)
    chunks = {}
    for task, key in enumerate(("a", "b")):
        writer = SpillWriter(tmp_path, key, False, buckets)
        chunks[key] = [make_rows(30, 2 * task + k) for k in range(2)]
        for rows in chunks[key]:
            paragraphs = np.arange(len(rows.column("chars").flatten()), dtype=np.uint64)[::-1]
            writer.add(rows, np.arange(rows.num_rows, dtype=np.uint64), paragraphs)
        assert not is_written(tmp_path, key)
        writer.reject([{"file": "f", "line": 1, "reason": "r"}])
        writer.finish({"more": 1})
    return tmp_path, buckets, chunks


def test_each_document_is_in_one_bucket_and_whole(written):
    folder, buckets, chunks = written
    found = {}
    for bucket in range(buckets.count):
        rows, task_of = read_bucket(folder, ["a", "b"], bucket, False)
        for row, task in zip(rows.to_pylist(), task_of.tolist(), strict=True):
            assert row["held_out"] == (bucket >= buckets.train)
            number = row.pop("number")
            assert found.setdefault(row["id"], (row, task, number)) == (row, task, number)
    expected = {
        row["id"]: (row, task, number)
        for task, key in enumerate("ab")
        for number, row in enumerate([row for rows in chunks[key] for row in rows.to_pylist()])
    }
    assert found == expected


def test_documents_come_in_the_order_of_the_input(written):
    folder, buckets, _ = written
    for bucket in range(buckets.count):
        rows, task_of = read_bucket(folder, ["a", "b"], bucket, False)
        places = list(zip(task_of.tolist(), rows.column("number").to_pylist(), strict=True))
        assert places == sorted(places)


def test_paragraphs_are_sorted_by_hash_and_say_where_they_stand(written):
    folder, _, chunks = written
    paragraphs = load_array(folder, "a", "paragraphs")
    assert (np.diff(paragraphs["hash"].astype(np.int64)) >= 0).all()
    lengths = [len(row["chars"]) for rows in chunks["a"] for row in rows.to_pylist()]
    places = sorted(zip(paragraphs["number"].tolist(), paragraphs["paragraph"].tolist(), strict=True))
    assert places == [(number, k) for number, length in enumerate(lengths) for k in range(length)]


def test_facts_and_buckets_are_kept(written):
    folder, _, chunks = written
    facts = load_facts(folder, "a")
    assert (facts["documents"], facts["more"], facts["filled"]) == (60, 1, [])
    buckets = load_array(folder, "a", "buckets")
    held_out = [row["held_out"] for rows in chunks["a"] for row in rows.to_pylist()]
    assert ((buckets >= 3) == np.array(held_out)).all()
    assert set(buckets.tolist()) == set(range(5))


def test_a_slice_is_written_without_the_rest(written):
    """Arrow's offsets are written anew for each bucket; a copy of the whole segment would fill the disk."""
    folder, _, chunks = written
    size = (folder / "a.arrow").stat().st_size
    batches = len(load_array(folder, "a", "batches"))
    assert size < 3 * sum(rows.nbytes for rows in chunks["a"]) + 4000 * batches
