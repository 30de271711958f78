"""What is put into buckets comes out of them, whole and in the order of the input."""

from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.prepare import spill
from data_pipeline.prepare.inputs import count_buckets, cut_tasks, estimate_total
from data_pipeline.prepare.readers import InputFile
from data_pipeline.prepare.spill import (
    Buckets,
    Spill,
    SpillWriter,
    is_written,
    load_array,
    load_facts,
    merge_spills,
    read_bucket,
)
from data_pipeline.prepare.tasks import Progress
from data_pipeline.prepare.write import SHARD_TOKENS


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
        "held_out": [k % 4 for k in range(count)],
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


BUCKETS, STARTS = Buckets(3, 2), np.array([0, 60, 120, 180])
SHARED = np.arange(180) % 3 == 0  # documents whose id many have


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Three tasks of two chunks each, in several segments."""
    monkeypatch.setattr(spill, "SEGMENT_BYTES", 3000)
    chunks = {}
    for task, key in enumerate("abc"):
        writer = SpillWriter(tmp_path, key, False)
        chunks[key] = [make_rows(30, 2 * task + k) for k in range(2)]
        for rows in chunks[key]:
            paragraphs = np.arange(len(rows.column("chars").flatten()), dtype=np.uint64)[::-1]
            writer.add(rows, np.arange(rows.num_rows, dtype=np.uint64), paragraphs)
        assert not is_written(tmp_path, key)
        writer.reject([{"file": "f", "line": 1, "reason": "r"}])
        writer.finish({"more": 1})
    return tmp_path, chunks


def read_all(spills, buckets=BUCKETS):
    """The documents of each bucket, ``[(task, number, row)]``."""
    found = []
    for bucket in range(buckets.count):
        rows, tasks = read_bucket(spills, buckets, bucket, False, STARTS, SHARED)
        listed = [] if rows is None else rows.to_pylist()
        found.append([(task, row.pop("number"), row) for task, row in zip(tasks.tolist(), listed, strict=True)])
    return found


def spill_tasks(folder):
    return [Spill(folder, key, task) for task, key in enumerate("abc")]


@pytest.mark.parametrize("buckets", [BUCKETS, Buckets(1, 1), Buckets(7, 5)])
def test_each_document_is_in_one_bucket_and_whole(written, buckets):
    folder, chunks = written
    by_bucket = read_all(spill_tasks(folder), buckets)
    found = {(task, number): row for bucket in by_bucket for task, number, row in bucket}
    assert sum(map(len, by_bucket)) == len(found) == 180
    for task, key in enumerate("abc"):
        for number, row in enumerate(row for rows in chunks[key] for row in rows.to_pylist()):
            split = row.pop("held_out")
            assert found[task, number].pop("held_out") == (split >> 1 if SHARED[60 * task + number] else split & 1)
            assert found[task, number] == row
    for bucket, rows in enumerate(by_bucket):
        for task, number, row in rows:
            upper = np.array([int.from_bytes(row["key"][:4], "big")])
            place = load_array(folder, "abc"[task], "documents")["place"][number]
            assert int(place) & 0xFFFFFFFF == upper[0]
            assert buckets.place(upper, np.array([int(bucket >= buckets.train)])) == [bucket]


def test_documents_come_in_the_order_of_the_input(written):
    for rows in read_all(spill_tasks(written[0])):
        places = [(task, number) for task, number, _ in rows]
        assert places == sorted(places)


def test_merged_files_hold_the_same_and_each_is_opened_once(written, monkeypatch):
    folder, _ = written
    expected = read_all(spill_tasks(folder))
    monkeypatch.setattr(spill, "SEGMENT_BYTES", 3000)
    opened = []
    whole = spill.OpenSpill.__init__
    monkeypatch.setattr(spill.OpenSpill, "__init__", lambda self, one: opened.append(one) or whole(self, one))
    first, second, third = spill_tasks(folder)
    for number, group in enumerate(([[first, second], [third]], [[Spill(folder / "0", f"{k:05d}") for k in range(2)]])):
        for part in range(len(group)):
            partial(merge_spills, group, folder / str(number), False)(part, Progress(folder / "note"))
    assert len(opened) == 5
    merged = [Spill(folder / "1", "00000")]
    assert len(load_array(folder / "1", "00000", "batches")) > 3
    assert read_all(merged) == expected


def test_paragraphs_are_sorted_by_hash_and_say_where_they_stand(written):
    folder, chunks = written
    paragraphs = load_array(folder, "a", "paragraphs")
    assert (np.diff(paragraphs["hash"].astype(np.int64)) >= 0).all()
    lengths = [len(row["chars"]) for rows in chunks["a"] for row in rows.to_pylist()]
    places = sorted(zip(paragraphs["number"].tolist(), paragraphs["paragraph"].tolist(), strict=True))
    assert places == [(number, k) for number, length in enumerate(lengths) for k in range(length)]


def test_facts_are_kept(written):
    folder, _ = written
    facts = load_facts(folder, "a")
    assert (facts["documents"], facts["more"], facts["filled"]) == (60, 1, [])


@given(st.integers(1, 5000), st.integers(0, (1 << 32) - 1))
def test_buckets_are_ranges_of_keys(count, upper):
    for buckets, held_out in ((Buckets(count, 1), 0), (Buckets(1, count), 1)):
        bucket = int(buckets.place(np.array([upper]), np.array([held_out]))[0])
        first, end = buckets.find_range(bucket)
        assert first <= upper < end


def test_400_gigabytes_are_merged_in_one_round():
    files = [InputFile(f"{number}.jsonl", 4_000_000_000, "") for number in range(100)]
    tasks, buckets = cut_tasks(files, ""), count_buckets(estimate_total(files), SHARD_TOKENS, 0.02)
    merged = -(-len(tasks) // spill.MERGE_FILES)
    assert len(tasks) * buckets.count > spill.MAX_OPENS > merged * buckets.count
