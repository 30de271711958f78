"""A large file is read in parts: each record in one of them, whatever their size."""

import bz2
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.prepare.readers import lines, reader
from data_pipeline.prepare.readers.registry import open_input
from tests.synthetic import write_file


def page(number, text):
    return (
        f"  <page>\n    <title>T{number}</title>\n    <ns>0</ns>\n    <id>{number}</id>\n    <revision>\n"
        f"      <text>{text}</text>\n    </revision>\n  </page>\n"
    ).encode()


def dump_of(count):
    return [
        b"<mediawiki>\n",
        *(page(k, f"The text of page {k}. " * (1 + k % 7)) for k in range(count)),
        b"</mediawiki>",
    ]


@given(st.lists(st.sampled_from([b"", b" ", b'{"text": "a"}', b'{"text": "' + b"b" * 40 + b'"}'])), st.integers(1, 99))
def test_each_line_is_in_one_part(tmp_path_factory, content, size):
    path = tmp_path_factory.getbasetemp() / "parts.jsonl"
    path.write_bytes(b"\n".join(content))
    whole = [line for _, line in lines.read_lines(open_input(str(path)), None)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "PART_BYTES", size)
        parts = lines.split_bytes(str(path), path.stat().st_size)
        result = [list(lines.read_lines(open_input(str(path)), part)) for part in parts]
    assert [line.rstrip(b"\n") for part in result for _, line in part] == [line.rstrip(b"\n") for line in whole]
    assert len(parts) == max(1, -(-path.stat().st_size // size))


def test_ids_made_of_places_are_not_given_twice(tmp_path, monkeypatch, read_in_parts):
    path = write_file(tmp_path / "a.jsonl", "".join(json.dumps({"text": "x" * (k % 13)}) + "\n" for k in range(400)))
    monkeypatch.setattr(lines, "PART_BYTES", 500)
    (documents, rejected, _), count = read_in_parts(path)
    assert count > 10
    assert not rejected
    assert len({d.id for d in documents}) == len(documents) == 400


def test_row_groups_of_parquet_are_parts(tmp_path, monkeypatch, read, read_in_parts):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"Text {k}." for k in range(1000)]}), path, row_group_size=100)
    monkeypatch.setattr(reader, "PART_BYTES", 2500)
    (documents, rejected, _), count = read_in_parts(path)
    assert 2 < count <= 10
    assert not rejected
    assert documents == read(path)[0]


@pytest.mark.parametrize("size", [1, 50, 777, 10**6])
@pytest.mark.parametrize("level", [None, 1, 9], ids=["plain", "fast", "best"])
def test_pages_of_a_dump_are_each_in_one_part(tmp_path, monkeypatch, read, read_in_parts, size, level):
    """Compressed, a dump has streams of ten pages."""
    head, *pages, foot = dump_of(40)
    streams = [head, *(b"".join(pages[k : k + 10]) for k in range(0, 40, 10)), foot]
    name = "wiki-pages-articles-multistream.xml.bz2" if level else "a.xml"
    path = write_file(tmp_path / name, b"".join(bz2.compress(s, level) if level else s for s in streams))
    monkeypatch.setattr(lines, "PART_BYTES", size)
    (documents, rejected, _), count = read_in_parts(path)
    assert count > 1 or size > 777
    assert not rejected
    assert [d.id for d in documents] == [str(k) for k in range(40)]
    assert documents == read(path)[0]


@pytest.mark.parametrize("keep", [0.5, 0.97, None], ids=["half", "nearly", "between streams"])
def test_a_multistream_dump_that_is_cut_off_says_so(tmp_path, read_in_parts, keep):
    streams = [bz2.compress(text) for text in dump_of(50)]
    whole = b"".join(streams)
    cut = whole[: int(keep * len(whole)) if keep else -len(streams[-1])]
    (documents, rejected, _), _ = read_in_parts(write_file(tmp_path / "multistream.xml.bz2", cut))
    assert 0 < len(documents) < 51
    assert "cut off" in rejected[-1]
