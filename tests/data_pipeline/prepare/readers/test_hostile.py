"""Input that nobody meant: each kind has an outcome that is counted and explained, in bounded memory and time."""

import bz2
import gzip
import json
import lzma
import re
import tracemalloc

import pytest

from data_pipeline.prepare.cleaning import Rules, Tally, clean
from data_pipeline.prepare.readers import read_records, reader
from data_pipeline.prepare.readers.compression import open_decompressed
from tests.synthetic import write_file

SUFFIXES = [
    ".jsonl", ".txt", ".csv", ".tsv", ".md", ".html", ".xml", ".warc", ".arc", ".parquet", ".arrow", ".docx", ".pdf",
    ".zip", ".tar", ".7z", ".warc.gz", ".xml.bz2", ".jsonl.zst", ".tar.gz",
]  # fmt: skip
NAMES = [*(f"a{suffix}" for suffix in SUFFIXES), "Posts.xml", "wiki_00", "books_large_p1.txt"]
CONTENTS = {
    "binary": bytes(range(256)) * 40,
    "NULs": b"\x00" * 5001,
    "latin-1": "Café au lait. ".encode("latin-1") * 50,
    "UTF-16": "A text of some length. ".encode("utf-16") * 20,
    "UTF-16 unmarked": "A text of some length.".encode("utf-16-le") * 20,
    "a tag": b"<" * 5000,
    "braces": b"{" * 5000 + b"\n",
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_not_what_its_name_says_has_a_counted_outcome(tmp_path, read, name, content):
    documents, rejected, _ = read(write_file(tmp_path / name, content))
    assert documents or rejected
    for document in documents:
        for paragraph in clean(document, Rules(0, 0), Tally()) or []:
            assert "\x00" not in paragraph
    assert all("\n" not in reason for reason in rejected)


@pytest.mark.parametrize("compress", [bz2.compress, lzma.compress])
def test_a_damaged_stream_is_not_taken_for_the_end_of_a_compressed_file(tmp_path, compress):
    """Python's own files end there, and say nothing of what follows."""
    suffix = {bz2.compress: "bz2", lzma.compress: "xz"}[compress]
    first, second, path = compress(b"one\n" * 9000), compress(b"two\n"), tmp_path / f"a.txt.{suffix}"
    path.write_bytes(first + b"\0" * 8 + second + b"\0" * 70_000)
    with open_decompressed(path) as file:
        assert file.read() == b"one\n" * 9000 + b"two\n"
    path.write_bytes(first + b"!" + second)
    with open_decompressed(path) as file, pytest.raises((OSError, lzma.LZMAError)):
        file.read()


@pytest.mark.parametrize("name", ["a.jsonl", "wiki_00", "Posts.xml", "a.xml", "books_large_p1.txt", "a.md", "a.csv"])
def test_a_line_without_end_is_rejected_in_bounded_memory(tmp_path, monkeypatch, read, name):
    """200 MB in one line would be rejected at 64 MB; here 20 MB at 1 MB, which takes less time."""
    monkeypatch.setattr(reader, "MAX_RECORD_BYTES", 1 << 20)
    start = {"a.xml": b"<mediawiki><page>", "wiki_00": b'<doc id="1">', "a.csv": b"text\n"}.get(name, b"")
    path = write_file(tmp_path / name, start + b"x" * (20 << 20))
    tracemalloc.start()
    documents, rejected, _ = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not documents
    assert re.search("(larger|longer) than 1 MB", rejected[0])
    assert peak < 8 << 20


@pytest.mark.parametrize("given", ["a.jsonl", "a.jsonl.gz", "wiki_00", "questions:a.jsonl"])
def test_lines_that_are_cut_off_are_no_whole_file(tmp_path, read, given):
    reader, colon, name = given.rpartition(":")
    lines = "".join(json.dumps({"id": str(k), "text": "Some text."}) + "\n" for k in range(3)).encode()
    pack = gzip.compress if name.endswith(".gz") else bytes
    for keep, ids, is_cut in ((len(lines), "012", False), (len(lines) - 1, "012", False), (-9, "01", True)):
        documents, rejected, _ = read(f"{reader}{colon}{write_file(tmp_path / name, pack(lines[:keep]))}")
        assert [d.id for d in documents] == list(ids)
        assert [reason.startswith("cannot read on") for reason in rejected] == [True] * is_cut


UTF_16 = "<mediawiki>\ntext\n</mediawiki>\n".encode("utf-16")


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [(name, UTF_16, "UTF-16") for name in ("a.xml", "a.jsonl", "a.csv", "Posts.xml", "wiki_00")]
    + [(f"a.{suffix}", UTF_16[2:], "NULs") for suffix in ("txt", "md", "rst")]
    + [("a.txt", "東京は日本の首都です。".encode("iso2022_jp") * 20, "ISO-2022")]
    + [("a.txt", start + b"A sentence of it. " * 9, "PDF or RTF") for start in (b"%PDF-1.4\n", b"{\\rtf1\\ansi ")],
)
def test_a_file_of_another_kind_is_refused_for_that(tmp_path, read, name, content, kind):
    documents, (reason,), _ = read(write_file(tmp_path / name, content))
    assert (documents, kind in reason) == ([], True)


def test_a_file_that_vanishes_is_unreadable(tmp_path):
    (record,) = read_records(tmp_path / "gone.jsonl")
    assert "cannot read on: FileNotFoundError" in str(record.content)
