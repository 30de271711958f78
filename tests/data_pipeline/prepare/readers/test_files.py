"""Which files an input names, and which are left out with a word."""

import os
import re
import zipfile

import fsspec
import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.readers import find_input_files, find_reader, registry
from tests.synthetic import write_file

JSONL = b'{"text": "x"}\n'


@pytest.fixture
def tree(tmp_path):
    for name in ("b.jsonl", "a.jsonl.gz", "deep/er/c.txt", "deep/d.parquet", "deep/notes.odt", "e.xls"):
        write_file(tmp_path / name, b"")
    return tmp_path


def names(files, tree):
    return [os.path.relpath(f.name, tree) for f in files]


def test_a_folder_is_searched_through_for_known_formats(tree):
    for name in ("logo.svg", "deep/logo.svg", "style.css", ".git/config", "package.json", ".venv/a.txt", ".b.md"):
        write_file(tree / name, b"")
    (tree / "deep/gone.jsonl").symlink_to(tree / "never.jsonl")
    result = find_input_files([str(tree)])
    assert names(result.files, tree) == ["a.jsonl.gz", "b.jsonl", "deep/d.parquet", "deep/er/c.txt"]
    assert names([file for file, _ in result.unreadable], tree) == ["deep/gone.jsonl", "deep/notes.odt", "e.xls"]
    assert result.passed_over == {".svg": 2, ".css": 1, "config": 1, ".json": 1, ".txt": 1, ".md": 1}


def test_linked_folders_are_read_once(tree, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "more.txt").touch()
    (outside / "back").symlink_to(tree)  # a loop
    (tree / "aside").symlink_to(outside)
    (tree / "again").symlink_to(tree / "deep")
    (tree / "before").mkdir()
    (tree / "before/deep").symlink_to(tree / "deep")  # a folder keeps the name of where it lies
    files, *_ = find_input_files([str(tree)])
    assert names(files, tree) == ["a.jsonl.gz", "aside/more.txt", "b.jsonl", "deep/d.parquet", "deep/er/c.txt"]


def test_globs_are_expanded_and_each_file_comes_once(tree):
    files, *_ = find_input_files([f"{tree}/*.jsonl*", f"{tree}/deep/../b.jsonl", f"{tree}/**/c.txt"])
    assert names(files, tree) == ["a.jsonl.gz", "b.jsonl", "deep/er/c.txt"]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    "name",
    [
        *["nowhere.jsonl", "*.nothing", "e.xls", "deep/notes.odt", "empty"],
        *["memory://bucket/none.jsonl", "memory:///bucket/deep/c.odt", "nothing://bucket/a.jsonl"],
    ],
)
def test_an_input_that_cannot_be_used_is_named(tree, name):
    (tree / "empty").mkdir()
    with pytest.raises(KinspanError, match=re.escape(name)):
        find_input_files([str(tree / "b.jsonl"), name if "://" in name else str(tree / name)])


# What a name stands for ---------------------------------------------------------------------------------------------


def test_a_change_of_a_file_beside_it_or_of_its_reader_is_one_of_the_file(tmp_path):
    write_file(tmp_path / "Posts.xml", b"")
    links = write_file(tmp_path / "PostLinks.xml", b"")
    (tmp_path / "mine.py").write_text(READER)
    for changed, name in ((links, f"{tmp_path}/Posts.xml"), (tmp_path / "mine.py", f"{tmp_path}/mine.py:{links}")):
        before = find_input_files([name])
        os.utime(changed, ns=(0, 0))
        assert find_input_files([name]) != before


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *[("dump/enwiki-20211101-pages-articles1.xml-p1p41.bz2", ".xml"), ("forum/Posts.xml.xz", "stackexchange")],
        *[("text/AA/wiki_00", "wikiextractor"), ("text/AA/wiki_17.bz2", "wikiextractor")],
        *[("books_large_p1.txt", "bookcorpus"), ("book.txt", ".txt"), ("bookcorpus:book.txt", "bookcorpus")],
        *[("jsonl:lines.data", ".jsonl"), ("s3://bucket/a.jsonl.gz", ".jsonl"), ("a.tar::deep/b.warc.gz", ".warc")],
        ("hf:wikitext", "hf"),
    ],
)
def test_the_reader_of_a_name(name, key):
    assert find_reader(name) is registry.READERS[key]


READER = """
from data_pipeline.prepare.document import Document
from data_pipeline.prepare.readers.reader import Reader
from data_pipeline.prepare.readers.text import read_whole

READER = Reader(read_whole, lambda record: [Document("one", "", [record.content.decode().upper()], "mine")])
"""


def test_a_reader_of_the_users_own_takes_what_follows_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_reader.py").write_text(READER)
    (tmp_path / "data").mkdir()
    write_file(tmp_path / "data/a.xyz", b"abc")
    files, unknown, _ = find_input_files(["my_reader.py:data"])
    assert [f.name for f in files] == ["my_reader.py:data/a.xyz"]
    assert not unknown
    (record,) = registry.read_records(files[0].name)
    assert registry.parse_record(record)[0].paragraphs == ["ABC"]
    write_file(tmp_path / "data/evil.py", "import os; os.mkdir('harmed')")
    write_file(tmp_path / "data/evil.py:1.txt", b"abc")
    for given in ("data", "data/*.txt", "data/evil.py:1.txt"):  # a name that somebody else has chosen runs nothing
        with pytest.raises(KinspanError, match=r"evil\.py:1\.txt"):
            find_input_files([given])
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("content", ["", "1 / 0", "READER = 3", None])
def test_a_reader_that_cannot_be_used_is_a_one_line_error(tmp_path, content):
    path = tmp_path / "broken.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(KinspanError, match=r"the reader .*broken\.py") as error:
        find_input_files([f"{path}:{tmp_path}"])
    assert "\n" not in str(error.value)
    registry._load_reader.cache_clear()


def test_files_beside_those_that_are_read_are_not_skipped(tmp_path):
    for name in ("Posts.xml", "PostLinks.xml", "Users.xml", "Comments.xml.xz", "data-0.arrow", "state.json"):
        write_file(tmp_path / name, b"")
    files, unknown, _ = find_input_files([str(tmp_path)])
    assert names(files, tmp_path) == ["Posts.xml", "data-0.arrow"]
    assert not unknown
    (tmp_path / "Posts.xml").unlink()
    (tmp_path / "data-0.arrow").unlink()
    with pytest.raises(KinspanError, match="no file in this folder"):
        find_input_files([str(tmp_path)])


def test_what_systems_leave_in_folders_is_no_input(tmp_path, read):
    for name in (".DS_Store", "._a.jsonl", "__MACOSX/._a.zip", "._b.jsonl.gz", "Thumbs.db", "desktop.ini"):
        write_file(tmp_path / name, b"\x00\x05\x16\x07")
    write_file(tmp_path / "a.jsonl", b'{"text": "A line."}\n')
    files, unknown, _ = find_input_files([str(tmp_path)])
    assert names(files, tmp_path) == ["a.jsonl"]
    assert not unknown
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in sorted(tmp_path.rglob("*")):
            if path.is_file() and path.name != "all.zip":
                archive.write(path, path.relative_to(tmp_path))
    documents, rejected, _ = read(tmp_path / "all.zip")
    assert [d.paragraphs for d in documents] == [["A line."]]
    assert not rejected


def test_files_of_the_same_name_have_ids_of_their_own(tmp_path):
    """With one id, all pages of a site would be held out for validation, or none."""
    for name in ("site/a/index.txt", "site/b/index.txt", "site/b/deep/index.txt", "site/only.txt"):
        write_file(tmp_path / name, b"text")
    wanted = {"a/index.txt", "b/index.txt", "b/deep/index.txt", "only.txt"}
    site = f"{tmp_path}/site"
    for given in ([site], [f"{site}/**/*.txt"], [f"txt:{site}"], sorted(map(str, tmp_path.rglob("*.txt")))):
        files, *_ = find_input_files(given)
        records = [record for file in files for record in registry.read_records(file.name, None, file.called)]
        documents = [document for record in records for document in registry.parse_record(record)]
        assert {d.id for d in documents} == wanted
        assert {d.title for d in documents} == {"index", "only"}


# Behind URLs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def store():
    """A store in memory, which fsspec knows as ``memory://``."""
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe({"/bucket/a.jsonl": JSONL, "/bucket/deep/b.jsonl": JSONL * 2, "/bucket/deep/c.odt": b""})
    yield filesystem
    filesystem.rm("/bucket", recursive=True)


@pytest.mark.usefixtures("store")
def test_urls_are_files_folders_and_patterns():
    def find(url):
        return [f.name for f in find_input_files([url]).files]

    assert find("memory://bucket/a.jsonl") == ["memory:///bucket/a.jsonl"]
    assert find("memory://bucket") == ["memory:///bucket/a.jsonl", "memory:///bucket/deep/b.jsonl"]
    assert find("memory://bucket/*/*.jsonl") == ["memory:///bucket/deep/b.jsonl"]
    (file,), *_ = find_input_files(["memory://bucket/deep/b.jsonl"])
    assert file.size == 2 * len(JSONL)
    assert file.modified
    assert len(list(registry.read_records(file.name))) == 2


def test_a_listing_tells_of_its_files_at_once(store, monkeypatch):
    """A store that is asked for each file may scan its listing each time."""
    asked, info = [], type(store).info
    monkeypatch.setattr(
        type(store), "info", lambda self, path, **given: asked.append(path) or info(self, path, **given)
    )
    assert [file.size for file in find_input_files(["memory://bucket"]).files] == [len(JSONL), 2 * len(JSONL)]
    assert not [path for path in asked if "jsonl" in path]
