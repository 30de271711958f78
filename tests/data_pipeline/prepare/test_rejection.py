"""Input that is lost is refused, and the files are named; whoever says how much may be lost gets the rest."""

import json
import tracemalloc

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from data_pipeline.prepare import rejection
from data_pipeline.prepare.document import Rejected
from data_pipeline.prepare.readers import find_parts, lines, parse_record, read_records, reader, text
from data_pipeline.prepare.rejection import ReadTally, refuse_rejected
from tests.synthetic import short_tokenizer

PARAGRAPH = "Paragraph {} of the book says what number it is. It has a second sentence, which says so again."


@pytest.fixture
def folder(tmp_path, helpers):
    (tmp_path / "in").mkdir()
    helpers.write_jsonl(tmp_path / "in/good.jsonl", helpers.synthetic_documents(60, seed="rejection"))
    return tmp_path / "in"


@pytest.fixture
def run(folder, helpers, tmp_path):
    def prepare(name="out", **options):
        return helpers.prepare([folder], short_tokenizer(), tmp_path / name, **options)

    return prepare


def write_other(folder, count):
    """Lines under another key."""
    lines = [json.dumps({"body": f"The text number {k} stands under another name. " * 5}) for k in range(count)]
    (folder / "other.jsonl").write_text("\n".join(lines) + "\n")


def test_a_row_is_measured_alike_whether_it_is_rejected_or_not(tmp_path):
    """Else one broken row among long columns that are not kept would be refused as a large share of the text."""
    row = ["It is a text.", "a note that is not kept " * 40]
    (tmp_path / "a.csv").write_text("\n".join(["text,note", *[",".join(row)] * 3, ",".join([*row, ""])]) + "\n")
    *good, broken = read_records(str(tmp_path / "a.csv"))
    assert {reader.measure_content(record.content) for record in good} == {len("".join(row))}
    assert isinstance(broken.content, Rejected)
    assert reader.measure_content(broken.content) == len("".join(row))
    assert parse_record(good[0])[0].paragraphs == ["It is a text."]


# The rule -----------------------------------------------------------------------------------------------------------


def tally(*records):
    """A tally of (file, documents, bytes); a record without a document was rejected."""
    made = ReadTally()
    for file, documents, size in records:
        made.count(file, documents, size, "" if documents else f"why {file}", is_rejected=not documents)
    return made


GOOD, BAD = ("good", 1, 10_000), ("good", 0, 150)


@pytest.mark.parametrize(
    ("records", "allowed", "refused"),
    [
        ([GOOD], None, None),
        ([GOOD, ("good", 0, 90)], None, None),
        ([GOOD, BAD], None, r"1\.5% .*1 of 2 .*, 150 bytes of 10,150 bytes: good .*why good.*--allow_rejected 0\.02"),
        ([GOOD, BAD], 0.02, None),
        ([GOOD, BAD], 0.0, "1.5%"),
        ([GOOD, ("lost", 0, 1)], None, r"1 file without a document: lost .*first: why lost.*--allow_rejected 0\.01"),
        ([GOOD, ("lost", 0, 1)], 0.01, None),
        ([GOOD, *((f"f{k}", 0, 1) for k in range(5))], None, "5 files without a document: f0 .*f2 .*and 2 more"),
    ],
)  # fmt: skip
def test_what_is_refused(records, allowed, refused):
    if refused is None:
        return refuse_rejected(tally(*records), allowed, "the input")
    with pytest.raises(KinspanError, match=refused) as error:
        refuse_rejected(tally(*records), allowed, "the input")
    assert "\n" not in str(error.value)


def test_a_file_whose_parts_several_tasks_read_needs_one_document_in_all():
    parts = []
    for documents in (0, 1):
        part = ReadTally(["large"])
        part.count("large", documents, 10_000_000 if documents else 10, "blank")
        parts.append(ReadTally.from_json(json.loads(json.dumps(part.to_json()))))
    for order in (parts, parts[::-1]):
        total = ReadTally()
        for part in order:
            total.add(part)
        refuse_rejected(total, None, "the input")
        assert total.total["records"] == 2
        assert total.total["bytes"] == 10_000_010


def test_a_million_broken_files_are_counted_and_some_are_named(monkeypatch):
    monkeypatch.setattr(rejection, "MAX_FILES", 10)
    made = tally(*((f"f{k}", 0, 1) for k in range(50)))
    made.close()
    assert len(made.losing) == 10
    with pytest.raises(KinspanError, match="50 files without a document"):
        refuse_rejected(made, None, "the input")


# prepare ------------------------------------------------------------------------------------------------------------


def test_a_file_under_another_key_is_refused_and_named(run, folder, tmp_path):
    write_other(folder, 600)
    with pytest.raises(KinspanError, match=r'other\.jsonl \(600 of 600 records.*"text".*--allow_rejected 0\.'):
        run()
    assert not (tmp_path / "out/manifest.json").exists()
    result = run(allow_rejected=0.9)
    assert result.manifest.totals["documents"] == 60
    assert result.tally.counts["records rejected"] == 600
    assert result.tally.counts["bytes rejected"] == len((folder / "other.jsonl").read_bytes())
    assert run(allow_rejected=0.9).reused
    with pytest.raises(KinspanError, match=r"holds this corpus, but .*other\.jsonl"):
        run()


def test_a_few_broken_records_cost_themselves(run, folder):
    with (folder / "good.jsonl").open("a") as file:
        file.write("{broken\n")
    assert run().manifest.totals["documents"] == 60


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt", "Posts.xml", "a.md"])
def test_utf_16_is_called_so(run, folder, name):
    content = {"a.csv": "text\nIt is a text.\n", "a.jsonl": '{"text": "It is."}\n', "Posts.xml": "<posts>\n</posts>"}
    (folder / name).write_bytes(content.get(name, "It is a text.").encode("utf-16"))
    with pytest.raises(KinspanError, match=f"{name}.*it is UTF-16, not UTF-8: convert it") as error:
        run()
    assert "cut" not in str(error.value)


def test_utf_16_without_a_byte_order_mark_is_no_file_that_was_cut_off(run, folder):
    (folder / "a.jsonl").write_bytes('{"text": "It is."}\n'.encode("utf-16-le") * 3)
    with pytest.raises(KinspanError, match=r"a\.jsonl.*holds NULs, as UTF-16"):
        run()


@pytest.mark.parametrize(
    "content", ["\n\n \n", "text,id\n", "<?xml version='1.0'?>\n<posts>\n<row\n Id='1'/>\n</posts>"]
)
def test_a_file_in_which_there_is_nothing_is_named(run, folder, content):
    name = {"\n": "a.jsonl", "t": "a.csv", "<": "Posts.xml"}[content[0]]
    (folder / name).write_text(content)
    with pytest.raises(KinspanError, match=f"1 file without a document: .*{name}"):
        run()


def test_an_empty_file_loses_nothing_and_is_counted(run, folder):
    (folder / "a.jsonl").touch()
    assert run().tally.counts["records omitted: an empty file"] == 1


def test_a_csv_with_semicolons_is_read(run, folder):
    rows = "".join(
        f'{k};"Row {k} holds; {PARAGRAPH.format(k)} {PARAGRAPH.format(-k)} So it goes on."\n' for k in range(5)
    )
    (folder / "a.csv").write_text("id;text\n" + rows)
    assert run().manifest.totals["documents"] == 65


# Texts of any size --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(reader, "MAX_RECORD_BYTES", 5000)
    monkeypatch.setattr(lines, "PART_BYTES", 4000)
    monkeypatch.setattr(text, "PIECE_BYTES", 1000)
    monkeypatch.setattr(text, "WINDOW_BYTES", 300)


def read_pieces(path):
    parts = find_parts(str(path), path.stat().st_size)
    return [record for part in parts for record in read_records(path, part)], len(parts)


@pytest.mark.parametrize(
    "between", ["\n\n", "\r\n\r\n", "\n", " ", "。", "\n \n\n"], ids=["blank", "dos", "line", "space", "none", "more"]
)
@pytest.mark.parametrize("name", ["book.txt", "book.txt.gz"])
def test_a_long_text_is_cut_and_nothing_is_lost(tmp_path, small_pieces, between, name):
    import gzip

    words = [PARAGRAPH.format(k).replace(" ", "é") if between == "。" else PARAGRAPH.format(k) for k in range(300)]
    content = between.join(words).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    records, num_parts = read_pieces(tmp_path / name)
    assert b"".join(record.content["text"] for record in records) == content
    assert num_parts == (1 if name.endswith(".gz") else -(-len(content) // 4000))
    documents = [document for record in records for document in parse_record(record)]
    assert all(document.is_part for document in documents)
    assert len({document.id for document in documents}) == len(documents) >= len(content) / 1500
    if "\n\n" in between:
        paragraphs = [p.strip() for document in documents for p in document.paragraphs if p.strip()]
        assert paragraphs == words


def test_a_text_that_fits_into_one_document_is_one(tmp_path, small_pieces):
    (tmp_path / "a.txt").write_text("x" * 5000)
    (record,), _ = read_pieces(tmp_path / "a.txt")
    assert parse_record(record)[0].id == "a.txt"


def test_a_text_of_one_endless_word_is_read_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MAX_RECORD_BYTES", 1 << 20)
    (tmp_path / "a.txt").write_bytes("é".encode() * (10 << 20))
    tracemalloc.start()
    size = 0
    for record in read_records(tmp_path / "a.txt"):
        (document,) = parse_record(record)
        size += 2 * len(document.paragraphs[0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 20 << 20
    assert peak < 10 << 20


def test_a_long_text_beside_others_is_part_of_the_corpus(run, folder, small_pieces, tmp_path):
    (folder / "book.txt").write_text("\n\n".join(PARAGRAPH.format(k) for k in range(300)))
    result = run()
    cut = result.tally.counts["documents cut off a longer text"]
    assert result.manifest.totals["documents"] == 60 + cut > 80
    assert sum(s["documents"] for s in result.manifest.sources if s["name"] == "book.txt") == cut
    assert len(Corpus(tmp_path / "out").manifest.shards)


def test_other_files_that_are_too_large_are_refused_by_their_bytes(run, folder, small_pieces):
    (folder / "book.md").write_text("\n\n".join(PARAGRAPH.format(k) for k in range(300)))
    with pytest.raises(
        KinspanError, match=r"book\.md \(1 of 1 records rejected, 2\d,\d+ bytes; first: the file is larger"
    ):
        run()
