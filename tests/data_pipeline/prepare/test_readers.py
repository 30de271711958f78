import bz2
import errno
import gzip
import json
import lzma
import os
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from data_pipeline.prepare.document import Rejected
from data_pipeline.prepare.readers import READERS, parse_record, read_records
from data_pipeline.prepare.readers.text import split_paragraphs
from data_pipeline.prepare.summary import check_trainable, describe_rejected, find_lacks
from objectives import OBJECTIVES
from tests.synthetic import short_tokenizer

COMPRESS = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
LINES = [{"id": f"d{k}", "title": "Ä", "paragraphs": [f"First of {k}.", "Zweite: ß."]} for k in range(5)]
JSONL = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in LINES).encode()


def read(path):
    """All documents of a file, and ``(line, reason)`` of what was rejected."""
    documents, rejected = [], []
    for record in read_records(path):
        try:
            documents += parse_record(record)
        except Rejected as reason:
            rejected.append((record.line, str(reason)))
    return documents, rejected


def written(path, content):
    path.write_bytes(content)
    return path


# What is read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", COMPRESS)
def test_jsonl_is_read_compressed_or_not(tmp_path, suffix):
    path = written(tmp_path / f"a.jsonl{suffix}", COMPRESS[suffix](JSONL))
    documents, rejected = read(path)
    assert not rejected
    assert [(d.id, d.title, d.paragraphs) for d in documents] == [
        (line["id"], line["title"], line["paragraphs"]) for line in LINES
    ]
    assert {d.source for d in documents} == {path.name}


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_files_of_several_compressed_parts_are_read_to_their_end(tmp_path, suffix):
    """As parallel compressors write them, and as ``cat`` joins them."""
    half = JSONL.index(b"\n") + 1
    parts = COMPRESS[suffix](JSONL[:half]) + COMPRESS[suffix](JSONL[half:])
    documents, rejected = read(written(tmp_path / f"a.jsonl{suffix}", parts))
    assert not rejected
    assert [d.id for d in documents] == [line["id"] for line in LINES]


def test_parquet_is_read_with_paragraphs_or_text(tmp_path):
    pq.write_table(pa.Table.from_pylist(LINES), tmp_path / "a.parquet")
    documents, rejected = read(tmp_path / "a.parquet")
    assert not rejected
    assert [(d.id, d.paragraphs) for d in documents] == [(line["id"], line["paragraphs"]) for line in LINES]
    pq.write_table(pa.table({"text": ["One.\n\nTwo.", "Three."], "url": ["x", "y"]}), tmp_path / "b.parquet")
    documents, _ = read(tmp_path / "b.parquet")
    assert [d.paragraphs for d in documents] == [["One.", "Two."], ["Three."]]


def test_a_json_line_with_an_empty_list_is_read_by_its_text_and_a_whole_number_of_pandas_is_an_id(tmp_path):
    path = written(tmp_path / "a.jsonl", b'{"id": 12.0, "paragraphs": [], "text": "One.\\n\\nTwo."}')
    [document], _ = read(path)
    assert (document.id, document.paragraphs) == ("12", ["One.", "Two."])


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_text_file_is_a_document_with_blank_lines_between_paragraphs(tmp_path, suffix):
    text = "\ufeffOne line\nand the next.\r\n\r\n \t\nSecond paragraph.\n\n\n\nThird.\n"
    path = written(tmp_path / f"book.txt{suffix}", COMPRESS[suffix](text.encode()))
    [document], rejected = read(path)
    assert not rejected
    paragraphs = [" ".join(p.split()) for p in document.paragraphs if p.strip()]
    assert paragraphs == ["One line and the next.", "Second paragraph.", "Third."]


@given(st.lists(st.text("ab \t", min_size=1).filter(str.strip), min_size=1, max_size=6), st.integers(2, 4))
def test_paragraphs_are_parted_by_any_number_of_blank_lines(paragraphs, blank):
    found = split_paragraphs(("\n" * blank).join(paragraphs) + "\n")
    assert [p.split() for p in found if p.strip()] == [p.split() for p in paragraphs]


def test_line_ends_part_paragraphs_where_there_are_no_blank_lines():
    assert split_paragraphs("one\ntwo\r\nthree") == ["one", "two", "three"]
    assert split_paragraphs("one\ntwo\n\n \n") == ["one", "two"]
    assert split_paragraphs("") == []


def test_documents_without_an_id_are_named_by_file_and_line(tmp_path):
    content = b'{"text": "x"}\n\n{"id": "", "text": "y"}\n{"id": 7, "text": "z"}\n{"id": null, "text": "z"}\n'
    documents, _ = read(written(tmp_path / "a.jsonl", content))
    assert [d.id for d in documents] == ["a.jsonl:1", "a.jsonl:3", "7", "a.jsonl:5"]


# What is broken -------------------------------------------------------------------------------------------

BROKEN = {
    b"{broken": "not JSON",
    b"": None,
    b"[" * 100_000: "not JSON",
    b'{"text": "caf\xe9"}': "not UTF-8",
    b"[1, 2]": "not a JSON object",
    b"null": "not a JSON object",
    b'"text"': "not a JSON object",
    b"{}": "neither",
    b'{"title": "x"}': "neither",
    b'{"text": 5}': "neither",
    b'{"text": null}': "neither",
    b'{"paragraphs": "a string"}': "neither",
    b'{"paragraphs": [1, "x"]}': "not a string",
    b'{"paragraphs": [["x"]]}': "not a string",
}


@pytest.mark.parametrize(("line", "reason"), BROKEN.items())
def test_a_broken_line_is_rejected_by_its_number_and_the_rest_is_read(tmp_path, line, reason):
    first, rest = JSONL.split(b"\n", 1)
    documents, rejected = read(written(tmp_path / "a.jsonl", b"\n".join([first, line, rest])))
    assert [d.id for d in documents] == [line["id"] for line in LINES]
    if reason is None:
        assert rejected == []
    else:
        [(number, why)] = rejected
        assert number == 2
        assert reason in why


@pytest.mark.parametrize(
    "fields",
    [
        {"id": [1], "text": "x"},
        {"id": 1.5, "text": "x"},
        {"title": {"a": 1}, "text": "x"},
        {"text": "\ud800"},
    ],
)
def test_odd_ids_titles_and_characters_do_not_stop_reading(tmp_path, fields):
    documents, rejected = read(written(tmp_path / "a.jsonl", json.dumps(fields).encode() + b"\n"))
    assert len(documents) == 1
    assert not rejected


@given(st.binary(max_size=60))
def test_no_line_of_bytes_can_stop_reading(tmp_path_factory, line):
    path = written(tmp_path_factory.getbasetemp() / "fuzz.jsonl", line.replace(b"\n", b" ") + b"\n" + JSONL)
    documents, _ = read(path)
    assert [d.id for d in documents][-len(LINES) :] == [line["id"] for line in LINES]


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x, max_size=3)))
def test_no_value_of_a_field_can_stop_reading(tmp_path_factory, value):
    line = json.dumps({"id": value, "title": value, "paragraphs": value, "text": "Some text."})
    path = written(tmp_path_factory.getbasetemp() / "fuzz.jsonl", line.encode() + b"\n" + JSONL)
    documents, _ = read(path)
    assert [d.id for d in documents][-len(LINES) :] == [line["id"] for line in LINES]
    assert all(isinstance(text, str) for d in documents for text in (d.id, d.title, *d.paragraphs))


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("kind", [".jsonl", ".txt"])
def test_a_truncated_archive_is_rejected_where_it_ends(tmp_path, kind, suffix):
    many = b"".join(
        json.dumps({"id": f"d{k}", "text": f"{k * 7919 % 1009} {k} " * 2}).encode() + b"\n" for k in range(40_000)
    )
    content = COMPRESS[suffix](many)
    documents, rejected = read(written(tmp_path / f"a{kind}{suffix}", content[: len(content) * 2 // 3]))
    assert len(rejected) >= 1
    assert "cannot read on" in rejected[-1][1]
    if kind == ".jsonl":
        assert 0 < len(documents) < 40_000
        assert rejected[-1][0] in (len(documents) + 1, len(documents) + 2)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.bz2", "a.jsonl.xz", "a.jsonl.zst", "a.parquet"])
def test_a_file_that_is_not_what_its_name_says_is_rejected(tmp_path, name):
    documents, rejected = read(written(tmp_path / name, b"this is no archive at all" * 10))
    assert documents == []
    assert len(rejected) == 1
    assert rejected[0][1].startswith("cannot read on")


@pytest.mark.parametrize(
    "table",
    [{"words": ["x", "y"]}, {"text": [1, 2]}, {"paragraphs": [[1], [2]]}, {"title": ["x", "y"]}],
    ids=["no field", "text of numbers", "paragraphs of numbers", "a title alone"],
)
def test_a_parquet_file_without_text_is_skipped_as_a_whole(tmp_path, table):
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    documents, rejected = read(tmp_path / "a.parquet")
    assert documents == []
    ((line, reason),) = rejected
    assert line == 1
    assert reason.startswith("skipped: it has neither")
    assert f"{next(iter(table))} (" in reason


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("text", pa.large_string()),
        ("text", pa.dictionary(pa.int32(), pa.string())),
        ("paragraphs", pa.large_list(pa.string())),
    ],
)
def test_text_of_other_types_is_read(tmp_path, name, kind):
    values = pa.array(["One.", None] if name == "text" else [["One."], None]).cast(kind)
    pq.write_table(pa.table({name: values}), tmp_path / "a.parquet")
    documents, rejected = read(tmp_path / "a.parquet")
    assert [d.paragraphs for d in documents] == [["One."]]
    assert [line for line, _ in rejected] == [2]


def test_prepare_counts_what_is_broken_by_file_line_and_reason(tmp_path, helpers, tmp_path_factory):
    output = tmp_path_factory.mktemp("corpus") / "out"
    good = helpers.synthetic_documents(7)
    helpers.write_jsonl(tmp_path / "good.jsonl", good[1:])
    (tmp_path / "mixed.jsonl").write_bytes(
        b"{broken\n" + json.dumps(good[0]).encode() + b'\n{"text": "caf\xe9"}\n{"text": 3}\n'
    )
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(JSONL * 50)[:150])
    (tmp_path / "latin.txt").write_bytes("Café".encode("latin-1"))
    result = helpers.prepare([tmp_path], short_tokenizer(), output, allow_damaged=True, allow_rejected=0.1)
    lines = (output / "rejected.jsonl").read_text().splitlines()
    rejected = {(e["file"].rsplit("/", 1)[1], e["line"]): e["reason"] for e in map(json.loads, lines)}
    assert result.tally.counts["records rejected"] == len(lines) == len(rejected)
    assert {k for k in rejected if k[0] != "cut.jsonl.gz"} == {
        ("mixed.jsonl", 1),
        ("mixed.jsonl", 3),
        ("mixed.jsonl", 4),
        ("latin.txt", 1),
    }
    assert any("cannot read on" in reason for (name, _), reason in rejected.items() if name == "cut.jsonl.gz")
    assert result.tally.counts["documents kept"] == Corpus(output).manifest.totals["documents"] == 7


def test_a_file_that_cannot_be_read_to_its_end_is_an_error_and_no_corpus(tmp_path, helpers):
    """Unless a flag allows it; and a corpus without the rest of it is not taken for the whole one later."""
    source = helpers.write_jsonl(tmp_path / "in.jsonl", helpers.synthetic_documents(6))
    cut = written(tmp_path / "cut.jsonl.gz", gzip.compress(source.read_bytes())[:-200])
    inputs, output = [source, cut], tmp_path / "out"
    for _ in range(2):
        with pytest.raises(KinspanError, match=r"cut.jsonl.gz, record \d: cannot read on: EOFError") as error:
            helpers.prepare(inputs, short_tokenizer(), output)
        assert "\n" not in str(error.value)
        with pytest.raises(KinspanError, match="no corpus"):
            Corpus(output)
    assert not helpers.prepare(inputs, short_tokenizer(), output, allow_damaged=True).reused
    with pytest.raises(KinspanError, match=r"without all of .*cut.jsonl.gz"):
        helpers.prepare(inputs, short_tokenizer(), output)
    assert helpers.prepare(inputs, short_tokenizer(), output, allow_damaged=True).reused


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_an_error_of_the_storage_is_no_rejected_record(tmp_path, helpers, monkeypatch, number):
    source = helpers.write_jsonl(tmp_path / "in.jsonl", helpers.synthetic_documents(6))

    def read(opened, part):
        yield 1, source.read_bytes().split(b"\n")[0]
        raise OSError(number, os.strerror(number))

    monkeypatch.setitem(READERS, ".jsonl", replace(READERS[".jsonl"], read=read))
    with pytest.raises(KinspanError, match=rf"in.jsonl, record 2: .*{os.strerror(number)}"):
        helpers.prepare([source], short_tokenizer(), tmp_path / "out")


def test_a_corpus_that_nothing_can_train_on_says_what_is_missing(tmp_path, helpers):
    source = helpers.write_jsonl(tmp_path / "in.jsonl", helpers.synthetic_documents(1))
    manifest = helpers.prepare([source], short_tokenizer(), tmp_path / "out", validation_share=0.0).manifest
    train, *_, validate = find_lacks(manifest, OBJECTIVES)
    assert "ssp" in train
    assert (
        "cannot train on this corpus: of the documents not held out, 1 can be used, and 2 are needed (it takes" in train
    )
    assert "cannot validate on this corpus" in validate
    assert "--validation_share" in validate
    with pytest.raises(KinspanError, match=r"can train no objective.*--title_texts"):
        check_trainable(manifest, "this")
    options = {"validation_share": 0.0, "title_texts": True}
    titled = helpers.prepare([source], short_tokenizer(), tmp_path / "titled", **options).manifest
    with pytest.raises(KinspanError, match=r"can train no objective.*--validation_share\)$"):
        check_trainable(titled, "this")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"{broken\n", "line 1: not JSON"), (b"", "an empty file"), (b'{"text": "Short."}\n', "documents")],
)
def test_nothing_to_keep_is_a_one_line_error_that_says_why(tmp_path, helpers, content, reason):
    source = written(tmp_path / "a.jsonl", content)
    with pytest.raises(KinspanError, match=reason) as error:
        helpers.prepare([source], short_tokenizer(), tmp_path / "out")
    assert "\n" not in str(error.value)
    with pytest.raises(KinspanError, match="no corpus"):
        Corpus(tmp_path / "out")


def test_a_file_name_that_is_not_utf8_is_read_and_reported(tmp_path, helpers):
    source = tmp_path / "caf\udce9.jsonl"
    try:
        helpers.write_jsonl(source, helpers.synthetic_documents(3))
    except OSError:
        pytest.skip("this file system takes names in UTF-8 alone")
    with source.open("ab") as file:
        file.write(b"{broken\n")
    result = helpers.prepare([source], short_tokenizer(), tmp_path / "out")
    assert result.tally.counts["documents kept"] == 3
    assert result.tally.counts["records rejected"] == 1
    said = describe_rejected(tmp_path / "out", result.tally)
    assert said.encode().startswith(b"1 record rejected (8 bytes of ")  # it can be printed
