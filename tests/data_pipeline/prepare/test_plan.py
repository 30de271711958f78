"""Tasks and buckets depend on the input alone."""

import shutil
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.prepare import plan
from data_pipeline.prepare.plan import count_buckets, cut_tasks
from data_pipeline.prepare.readers import InputFile, find_input_files, parse_record
from tests.synthetic import write_file

SIZES = st.lists(st.integers(0, 1 << 30), min_size=1, max_size=40)


def make_files(sizes, suffix=".jsonl"):
    return [InputFile(f"{k}{suffix}", size, "then") for k, size in enumerate(sizes)]


@given(SIZES)
def test_every_byte_is_read_once_and_in_order(sizes):
    pieces = [(file.name, part) for task in cut_tasks(make_files(sizes), "") for file, part in task.pieces]
    assert list(dict.fromkeys(name for name, _ in pieces)) == [f"{k}.jsonl" for k in range(len(sizes))]
    for k, size in enumerate(sizes):
        parts = [part for name, part in pieces if name == f"{k}.jsonl"]
        if not size:
            assert parts == [None]  # as a whole: a web server may not say how large a file is
            continue
        ends = [0, *(part.end for part in parts)]
        assert [part.begin for part in parts] == ends[:-1]
        assert ends[-1] >= size


def test_the_key_changes_with_the_file_and_with_the_settings():
    [file] = make_files([100])
    same, again = (cut_tasks([file], "settings")[0].key for _ in range(2))
    others = [
        cut_tasks([InputFile(file.name, 100, "later")], "settings")[0].key,
        cut_tasks([InputFile(file.name, 101, "then")], "settings")[0].key,
        cut_tasks([file], "other settings")[0].key,
    ]
    assert same == again
    assert len({same, *others}) == 4


@given(st.lists(st.integers(1, 300_000), min_size=100, max_size=200), st.integers(0, 99), st.randoms())
def test_a_small_file_that_is_added_changes_the_groups_around_it_alone(sizes, place, draw):
    files = [InputFile(f"{draw.random()}.txt", size, "then") for size in sizes]
    before, after = (cut_tasks(some, "") for some in (files, [*files[:place], InputFile("x", 9, ""), *files[place:]]))
    assert len({task.key for task in after} - {task.key for task in before}) < 40


def test_a_source_is_a_file_a_folder_or_an_archive_not_each_file_in_it(tmp_path):
    for name in ("docs/a.txt", "docs/deep/b.txt", "one.txt", "site/c.txt", "site/d.txt"):
        write_file(tmp_path / name, "A text.")
    shutil.make_archive(str(tmp_path / "all"), "zip", tmp_path / "docs")
    given = [f"{tmp_path}/{name}" for name in ("docs", "one.txt", "all.zip", "site/*.txt")]
    records = [record for task in cut_tasks(find_input_files(given).files, "") for record in task.read()]
    sources = Counter(document.source for record in records for document in parse_record(record))
    assert sources == {"docs": 2, "one.txt": 1, "all.zip": 2, "site": 2}


@given(st.integers(0, 10**12), st.integers(1, 1 << 29), st.floats(0, 0.5))
def test_a_bucket_fits_into_memory_unless_a_shard_does_not(total, shard_bytes, share):
    buckets = count_buckets(total, shard_bytes, share)
    assert buckets.train >= 1 <= buckets.validation
    assert total / buckets.train <= max(plan.MAX_BUCKET, shard_bytes)
