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
from data_pipeline.prepare.document import DOCUMENT_IDS, Rejected, note_unread_ids
from data_pipeline.prepare.readers import parse_record, read_records, reader
from data_pipeline.prepare.summary import check_trainable, list_notes
from tests.synthetic import short_tokenizer, write_file

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


# What is read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("suffix", COMPRESS)
def test_jsonl_is_read_compressed_or_not(tmp_path, suffix, parts):
    """Also where several compressed files are one, as parallel compressors write them, and as ``cat`` joins them."""
    lines = JSONL.splitlines(keepends=True)
    content = b"".join(COMPRESS[suffix](b"".join(lines[k::parts])) for k in range(parts))
    path = write_file(tmp_path / f"a.jsonl{suffix}", content)
    documents, rejected = read(path)
    assert not rejected
    assert [(d.id, d.title, d.paragraphs) for d in documents] == [
        (line["id"], line["title"], line["paragraphs"]) for k in range(parts) for line in LINES[k::parts]
    ]
    assert {d.source for d in documents} == {path.name}


@pytest.mark.parametrize("name", DOCUMENT_IDS)
def test_ids_have_many_names(tmp_path, name, caplog):
    write_file(tmp_path / "a.jsonl", json.dumps({name: "d7", "text": "One."}).encode())
    write_file(tmp_path / "a.csv", f"{name},text\nd7,One.\n".encode())
    pq.write_table(pa.table({name: ["d7"], "text": ["One."]}), tmp_path / "a.parquet")
    files = [tmp_path / f"a.{suffix}" for suffix in ("jsonl", "csv", "parquet")]
    assert [read(path)[0][0].id for path in files] == ["d7"] * 3
    assert not caplog.text
    pq.write_table(pa.table({"page_uuid": ["d7"], "video": ["v"], "text": ["One."]}), tmp_path / "a.parquet")
    assert [document.id for _ in range(2) for document in read(tmp_path / "a.parquet")[0]] == ["a.parquet:1"] * 2
    note_unread_ids.cache_clear()
    assert [record.args[1] for record in caplog.records] == ["page_uuid"]


def test_a_json_line_with_an_empty_list_is_read_by_its_text_and_a_whole_number_of_pandas_is_an_id(tmp_path):
    path = write_file(tmp_path / "a.jsonl", b'{"id": 12.0, "paragraphs": [], "text": "One.\\n\\nTwo."}')
    [document], _ = read(path)
    assert (document.id, document.paragraphs) == ("12", ["One.", "Two."])


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_text_file_is_a_document_with_blank_lines_between_paragraphs(tmp_path, suffix):
    text = "\ufeffOne line\nand the next.\r\n\r\n \t\nSecond paragraph.\n\n\n\nThird.\n"
    path = write_file(tmp_path / f"book.txt{suffix}", COMPRESS[suffix](text.encode()))
    [document], rejected = read(path)
    assert not rejected
    paragraphs = [" ".join(p.split()) for p in document.paragraphs if p.strip()]
    assert paragraphs == ["One line and the next.", "Second paragraph.", "Third."]


def test_documents_without_an_id_are_named_by_file_and_line(tmp_path):
    content = b'{"text": "x"}\n\n{"id": "", "text": "y"}\n{"id": 7, "text": "z"}\n{"id": null, "text": "z"}\n'
    documents, _ = read(write_file(tmp_path / "a.jsonl", content))
    assert [d.id for d in documents] == ["a.jsonl:1", "a.jsonl:3", "7", "a.jsonl:5"]


# What is broken -------------------------------------------------------------------------------------------


BROKEN = [
    *[b"{broken", b"[" * 100_000, b'{"text": "caf\xe9"}', b"[1, 2]", b"null", b'"text"', b"{}", b'{"title": "x"}'],
    *[b'{"text": 5}', b'{"text": null}', b'{"paragraphs": "text"}', b'{"paragraphs": [1]}', b'{"paragraphs": [["x"]]}'],
    b'{"text": "One text.", "text": "Another."}',
]


@pytest.mark.parametrize("broken", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_line_is_rejected_by_its_number_and_the_rest_is_read(tmp_path, broken):
    first, rest = JSONL.split(b"\n", 1)
    documents, rejected = read(write_file(tmp_path / "a.jsonl", b"\n".join([first, b"", broken, rest])))
    assert [d.id for d in documents] == [line["id"] for line in LINES]
    assert [number for number, _ in rejected] == [3]


def test_a_corpus_that_nothing_can_train_on_is_refused(tmp_path, helpers):
    source = helpers.write_jsonl(tmp_path / "in.jsonl", helpers.synthetic_documents(1))
    manifest = helpers.prepare([source], short_tokenizer(), tmp_path / "out", validation_share=0.0).manifest
    with pytest.raises(KinspanError, match="this: "):
        check_trainable(manifest, "this")


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x, max_size=3)))
def test_no_value_of_a_field_can_stop_reading(tmp_path_factory, value):
    line = json.dumps({"id": value, "title": value, "paragraphs": value, "text": "Some text."})
    path = write_file(tmp_path_factory.getbasetemp() / "fuzz.jsonl", line.encode() + b"\n" + JSONL)
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


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_long_rows_are_read_one_by_one_and_those_above_the_limit_rejected(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(reader, "MAX_RECORD_BYTES", 1 << 20)
    table, path = pa.table({"text": [str(k) * (2 << k) for k in range(10)] + ["x" * (2 << 20), "y"]}), tmp_path / "a"
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)
    documents, ((number, reason),) = read(path.rename(tmp_path / f"a.{suffix}"))
    assert [len(d.paragraphs[0]) for d in documents] == [*(2 << k for k in range(10)), 1]
    assert (number, "row is larger than 1 MB" in reason) == (11, True)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *[("text", pa.large_string()), ("text", pa.dictionary(pa.int32(), pa.string()))],
        ("paragraphs", pa.large_list(pa.string())),
    ],
)
def test_text_of_other_types_is_read(tmp_path, name, kind):
    values = pa.array(["One.", None] if name == "text" else [["One."], None]).cast(kind)
    pq.write_table(pa.table({name: values}), tmp_path / "a.parquet")
    documents, rejected = read(tmp_path / "a.parquet")
    assert [d.paragraphs for d in documents] == [["One."]]
    assert [line for line, _ in rejected] == [2]


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
    assert result.read_tally.rejected == 1
    (note,) = list_notes(result.tally, result.read_tally)
    assert b"record 4: not JSON" in note.encode()  # it can be printed
