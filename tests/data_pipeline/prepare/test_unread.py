"""What could not be read is tried again by the same command: what was in the way may be gone, the file as it was."""

import importlib.util
import zipfile

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from data_pipeline.prepare import inputs
from data_pipeline.prepare.readers import registry
from tests.synthetic import short_tokenizer

TEXTS = [
    "\n\n".join(
        f"Paragraph {p} of document {k} says what number {k * p} is. It has a second sentence." for p in range(4)
    )
    for k in range(6)
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "in" / f"{number}.txt").write_text(text)
    with zipfile.ZipFile(tmp_path / "in" / "more.zip", "w") as archive:
        archive.writestr("page.md", TEXTS[0].replace("document", "page"))
    return tmp_path / "in"


def fail_to_open(name):
    def open_file(path):
        if str(path).endswith(name):
            raise OSError(5, "Input/output error")
        return whole(path)

    whole = registry.open_file
    return open_file


def hide(module):
    def find_spec(name, *rest):
        return None if name == module else whole(name, *rest)

    whole = importlib.util.find_spec
    return find_spec


def test_a_file_that_could_not_be_read_is_read_again(folder, tmp_path, helpers, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(registry, "open_file", fail_to_open("2.txt"))
        with pytest.raises(KinspanError, match=r"2\.txt.*Input/output error"):
            helpers.prepare([folder], short_tokenizer(), tmp_path / "out")
    result = helpers.prepare([folder], short_tokenizer(), tmp_path / "out")
    assert result.manifest.totals["documents"] == len(TEXTS) + 1
    whole = helpers.prepare([folder], short_tokenizer(), tmp_path / "whole")
    assert result.manifest.fingerprint == whole.manifest.fingerprint


def test_a_file_in_an_archive_is_read_once_its_library_is_there(folder, tmp_path, helpers, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", hide("markdown_it"))
        with pytest.raises(KinspanError, match=r"page\.md.*pip install.*, or give --allow_skipped to go without it$"):
            helpers.prepare([folder], short_tokenizer(), tmp_path / "out")
    result = helpers.prepare([folder], short_tokenizer(), tmp_path / "out")
    assert result.manifest.totals["documents"] == len(TEXTS) + 1


def test_what_was_done_without_a_file_is_not_taken_for_all_of_it(folder, tmp_path, helpers, monkeypatch):
    """A corpus that lacks a file on purpose is not what the command without --allow_skipped asks for."""
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", hide("markdown_it"))
        helpers.prepare([folder], short_tokenizer(), tmp_path / "out", allow_skipped=True)
    again = helpers.prepare([folder], short_tokenizer(), tmp_path / "out", allow_skipped=True)
    assert again.reused
    with pytest.raises(KinspanError, match=r"without .*page\.md.*--allow_skipped"):
        helpers.prepare([folder], short_tokenizer(), tmp_path / "out")
    assert len(Corpus(tmp_path / "out").manifest.shards)


def test_a_file_that_changes_while_it_is_read_is_no_part_of_a_corpus(folder, tmp_path, helpers, monkeypatch):
    """Its parts were cut by its old size: what is behind would be missing, with no word of it."""
    whole = inputs.InputTask.read

    def read(task):
        with (folder / "3.txt").open("a") as file:
            file.write("\n\nA paragraph that comes late has a sentence. It has another sentence, which is its last.")
        return whole(task)

    with monkeypatch.context() as patch:
        patch.setattr(inputs.InputTask, "read", read)
        with pytest.raises(KinspanError, match=r"3\.txt was changed while it was read"):
            helpers.prepare([folder], short_tokenizer(), tmp_path / "out")
    result = helpers.prepare([folder], short_tokenizer(), tmp_path / "out")
    assert result.manifest.totals["paragraphs"] == 4 * (len(TEXTS) + 1) + 1


def test_later_stages_are_done_again_with_what_was_missing(folder, tmp_path, helpers, monkeypatch):
    """An interrupted command that allowed a damage leaves stages that know nothing of the rest of the file."""

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(registry, "open_file", fail_to_open("2.txt"))
        patch.setattr("data_pipeline.prepare.pipeline.write_report", stop)
        with pytest.raises(KeyboardInterrupt):
            helpers.prepare([folder], short_tokenizer(), tmp_path / "out", allow_damaged=True)
    result = helpers.prepare([folder], short_tokenizer(), tmp_path / "out")
    assert result.manifest.totals["documents"] == len(TEXTS) + 1
    whole = helpers.prepare([folder], short_tokenizer(), tmp_path / "whole")
    assert result.manifest.fingerprint == whole.manifest.fingerprint
