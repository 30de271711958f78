"""Rejected input is counted and named, and beyond a share of the bytes it is refused."""

import gzip

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.plan import InputTask
from data_pipeline.prepare.readers import find_parts, lines, parse_record, read_records, reader, registry, text
from tests.synthetic import short_tokenizer, write_file

PARAGRAPH = "Paragraph {} of the book says what number it is. It has a second sentence, which says so again."
DOCUMENT = "\n\n".join(PARAGRAPH.format(k) for k in range(4))


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


# prepare ------------------------------------------------------------------------------------------------------------

KEY = '{"body": "The text stands under a name that no reader knows."}\n'
LOST = {  # files that are lost as a whole
    "another key": ("a.jsonl", KEY.encode() * 600),
    "utf-16": ("a.jsonl", ('{"text": "It is."}\n' * 99).encode("utf-16")),
    "utf-16 without a mark": ("a.jsonl", ('{"text": "It is."}\n' * 99).encode("utf-16-le")),
    "cut off": ("a.jsonl.gz", b"\x1f\x8b damaged" * 100),
    "of no known format": ("a.odt", b"PK" * 4000),
    "no text column": ("a.csv", b"id,body\n" + b"1,It is a text.\n" * 500),
    "no dump": ("a.xml", b"<html>" + b"It is a text. " * 500),
}


@pytest.mark.parametrize("case", LOST)
def test_a_lost_file_is_refused_and_named(run, folder, tmp_path, case):
    name, content = LOST[case]
    (folder / name).write_bytes(content)
    with pytest.raises(KinspanError, match=f"--max_rejected 0.01: .*{name}"):
        run()
    assert not (tmp_path / "out/manifest.json").exists()
    result = run(max_rejected=0.9)
    assert result.manifest.totals["documents"] == 60
    assert [path.endswith(name) for path in result.read_tally.losses] == [True]
    assert name in (tmp_path / "out/rejected.jsonl").read_text()
    assert run(max_rejected=0.9).reused
    with pytest.raises(KinspanError, match=f"--max_rejected .*{name}"):
        run()


def test_a_few_broken_records_and_empty_files_and_pictures_cost_themselves(run, folder, tmp_path):
    with (folder / "good.jsonl").open("a") as file:
        file.write("{broken\n")
    (folder / "a.jsonl").touch()
    (folder / "blank.jsonl").write_text("\n\n \n")
    for name in ("logo.png", "style.css", "poetry.lock", "photo.JPG"):
        (folder / name).write_bytes(b"no text" * 10_000)
    result = run()
    assert result.manifest.totals["documents"] == 60
    assert result.tally.counts["records omitted: a file in which there is no record"] == 2
    assert result.tally.counts["files passed over: .png"] == 1
    assert result.read_tally.rejected == 1
    assert "good.jsonl: record 61" in (tmp_path / "out/summary.txt").read_text()
    assert (tmp_path / "out/rejected.jsonl").read_text().count("\n") == 1


# What could not be read is tried again: what was in the way may be gone, the file as it was -------------------------


def test_what_could_not_be_read_is_read_by_the_next_command(run, folder, monkeypatch):
    (folder / "2.txt").write_text(DOCUMENT * 40)
    whole = registry.open_file
    with monkeypatch.context() as patch:
        patch.setattr(registry, "open_file", lambda path: whole(f"{path}/" if str(path).endswith("2.txt") else path))
        with pytest.raises(KinspanError, match="--max_rejected"):
            run()
    result = run()
    assert result.manifest.totals["documents"] == 61
    assert result.manifest.fingerprint == run("whole").manifest.fingerprint


def test_a_file_that_changes_while_it_is_read_is_no_part_of_a_corpus(run, folder, monkeypatch):
    """Its parts were cut by its old size: what is behind would be missing, with no word of it."""
    whole = InputTask.read
    (folder / "3.txt").write_text(DOCUMENT)

    def read(task):
        with (folder / "3.txt").open("a") as file:
            file.write("\n\nA paragraph that comes late has a sentence. It has another sentence, which is its last.")
        return whole(task)

    with monkeypatch.context() as patch:
        patch.setattr(InputTask, "read", read)
        with pytest.raises(KinspanError, match=r"3\.txt was changed"):
            run()
    assert run().manifest.totals["documents"] == 61


# Texts of any size --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(reader, "MAX_RECORD_BYTES", 5000)
    monkeypatch.setattr(lines, "PART_BYTES", 4000)
    monkeypatch.setattr(text, "PIECE_BYTES", 1000)


@pytest.mark.parametrize("between", ["\n\n", "\r\n\r\n", "\n", "\n \n\n"], ids=["blank", "dos", "line", "more"])
@pytest.mark.parametrize("name", ["book.txt", "book.txt.gz"])
def test_a_long_text_is_cut_and_nothing_is_lost(tmp_path, small_pieces, between, name):
    words = [PARAGRAPH.format(k) for k in range(300)]
    content = between.join(words).encode()
    path = write_file(tmp_path / name, gzip.compress(content) if name.endswith(".gz") else content)
    parts = find_parts(str(path), path.stat().st_size)
    assert len(parts) == (1 if name.endswith(".gz") else -(-len(content) // 4000))
    documents = [d for part in parts for record in read_records(path, part) for d in parse_record(record)]
    assert all(document.is_part for document in documents)
    assert len({document.id for document in documents}) == len(documents) >= len(content) / 2500
    assert [p.strip() for document in documents for p in document.paragraphs if p.strip()] == words
