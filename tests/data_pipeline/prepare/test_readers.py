import bz2
import gzip
import json
import lzma

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.document import Rejected
from data_pipeline.prepare.readers import parse_record, read_records
from data_pipeline.prepare.summary import check_trainable, list_lacks, list_oddities
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


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x, max_size=3)))
def test_no_value_of_a_field_can_stop_reading(tmp_path_factory, value):
    line = json.dumps({"id": value, "title": value, "paragraphs": value, "text": "Some text."})
    path = written(tmp_path_factory.getbasetemp() / "fuzz.jsonl", line.encode() + b"\n" + JSONL)
    documents, _ = read(path)
    assert [d.id for d in documents][-len(LINES) :] == [line["id"] for line in LINES]
    assert all(isinstance(text, str) for d in documents for text in (d.id, d.title, *d.paragraphs))


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


def test_a_corpus_that_nothing_can_train_on_says_what_is_missing(tmp_path, helpers):
    source = helpers.write_jsonl(tmp_path / "in.jsonl", helpers.synthetic_documents(1))
    manifest = helpers.prepare([source], short_tokenizer(), tmp_path / "out", validation_share=0.0).manifest
    train, *_, validate = list_lacks(manifest, OBJECTIVES)
    assert "ssp" in train
    assert "cannot train: 1 of the needed 2 documents" in train
    assert "cannot validate" in validate
    with pytest.raises(KinspanError, match="this: "):
        check_trainable(manifest, "this")


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
    assert result.read.rejected == 1
    (note,) = list_oddities(result.tally, result.read)
    assert b"record 4: not JSON" in note.encode()  # it can be printed
