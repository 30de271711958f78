"""Archives are read like folders, archives in them too; what they hold beside is named, and bombs are bounded."""

import bz2
import gzip
import io
import lzma
import subprocess
import tarfile
import zipfile
from functools import partial

import py7zr
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow.feather import write_feather

from data_pipeline.prepare.document import Unreadable
from data_pipeline.prepare.readers import archives, read_records, reader
from tests.synthetic import write_file

TEXT = b"A first paragraph.\n\nAnd a second one."


def tar(files):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return held.getvalue()


def zipped(files):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return held.getvalue()


def seven_zipped(files):
    held = io.BytesIO()
    with py7zr.SevenZipFile(held, "w") as archive:
        for name, content in files.items():
            archive.writestr(content, name)
    return held.getvalue()


def as_table(text, write):
    """A table of 64 rows of one text, which it holds once."""
    held = io.BytesIO()
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array([text[: 128 << 10].decode()]))
    write(pa.table({"text": column}), held)
    return held.getvalue()


PACKED = {
    "a.zip": zipped,
    "a.tar": tar,
    "a.tar.gz": lambda files: gzip.compress(tar(files)),
    "a.tar.bz2": lambda files: bz2.compress(tar(files)),
    "a.tar.xz": lambda files: lzma.compress(tar(files)),
    "a.tgz": lambda files: gzip.compress(tar(files)),
    "a.7z": seven_zipped,
}
FILES = {
    "deep/one.txt": TEXT,
    "lines.jsonl.gz": gzip.compress(b'{"id": "x", "text": "A line."}\n{broken\n'),
    "two.txt": TEXT * 2,
}


@pytest.mark.parametrize("name", PACKED)
def test_the_files_of_an_archive_are_read(tmp_path, read, name):
    path = write_file(tmp_path / name, PACKED[name](FILES))
    documents, (broken,), _ = read(path)
    assert [d.id for d in documents] == ["deep/one.txt", "x", "two.txt"]
    assert documents[0].paragraphs == ["A first paragraph.", "And a second one."]
    assert "not JSON" in broken
    assert {record.file for record in read_records(path)} == {f"{path}::{inside}" for inside in FILES}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_an_archive_that_is_cut_off_says_so(tmp_path, name, share):
    files = {f"{k}.txt": bytes(str(k**5) * 2000, "ascii") for k in range(20)}
    content = PACKED[name](files)
    path = write_file(tmp_path / name, content[: int(share * len(content))])
    *_, last = read_records(path)
    assert isinstance(last.content, Unreadable)


def test_a_tar_that_is_cut_between_its_files_or_damaged_says_so(tmp_path):
    """Python's own module takes either for the end of the archive."""
    content = tar({"a.txt": TEXT, "b.txt": TEXT})
    for damaged in (content[:1024], content[:1024] + b"x" * 512 + content[1536:], content[:1100]):
        first, last = read_records(write_file(tmp_path / "a.tar", damaged))
        assert first.content == TEXT
        assert "the tar is cut or damaged" in str(last.content)


def test_openwebtext_is_a_tar_of_compressed_tars(tmp_path, read):
    subsets = {
        f"openwebtext/urlsf_subset0{k}-1_data.xz": lzma.compress(tar({f"000{k}-{n}.txt": TEXT for n in range(3)}))
        for k in range(2)
    }
    documents, rejected, _ = read(write_file(tmp_path / "openwebtext.tar.xz", lzma.compress(tar(subsets))))
    assert not rejected
    assert [d.id for d in documents] == [f"000{k}-{n}.txt" for k in range(2) for n in range(3)]


def test_archives_in_archives_end_somewhere(tmp_path):
    content, name = TEXT, "a.txt"
    for depth in range(archives.MAX_DEPTH + 2):
        content, name = zipped({name: content}), f"{depth}.zip"
    (record,) = read_records(write_file(tmp_path / "outer.zip", content))
    assert isinstance(record.content, Unreadable)


def test_a_7z_names_no_file_of_the_machine(tmp_path, read, monkeypatch):
    own = write_file(tmp_path / "own.txt", b"Something private.")
    monkeypatch.setattr("py7zr.py7zr.check_archive_path", lambda name: True)  # else py7zr writes no such name
    (document,), _, _ = read(write_file(tmp_path / "a.7z", seven_zipped({str(own): TEXT})))
    assert document.paragraphs[0] == TEXT.decode().partition("\n")[0]


BOMBS = "a.parquet a.arrow arrow.tar.gz a.txt.gz a.jsonl.bz2 a.txt.xz a.jsonl.zst a.zip a.7z a.tar.gz sparse.tar"


@pytest.mark.parametrize("name", [*BOMBS.split(), "nested.zip"])
def test_a_bomb_is_bounded(tmp_path, monkeypatch, name):
    """A small file that would grow to gigabytes is not read to its end; the real bound is lowered for the test."""
    with (tmp_path / "zeros.txt").open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["tar", "--sparse", "-cf", "sparse", "zeros.txt"], cwd=tmp_path, check=True)
    monkeypatch.setattr(reader, "MIN_BOMB_BYTES", 1 << 20)
    zeros = b"0" * (8 << 20)
    pack = {
        "a.txt.gz": gzip.compress,
        "a.jsonl.bz2": bz2.compress,
        "a.txt.xz": lzma.compress,
        "a.jsonl.zst": zstandard.ZstdCompressor().compress,
        "a.parquet": lambda text: as_table(text, pq.write_table),
        "a.arrow": lambda text: as_table(text, write_feather),
        "arrow.tar.gz": lambda text: gzip.compress(
            tar({"a.arrow": as_table(text, partial(write_feather, compression="uncompressed"))})
        ),
        "sparse.tar": lambda _: (tmp_path / "sparse").read_bytes(),
        "nested.zip": lambda _: zipped({f"{k}.zip": zipped({"a.txt": zeros[: 900 << 10]}) for k in range(8)}),
    }
    content = pack[name](zeros) if name in pack else PACKED[name]({"a.txt": zeros})
    *records, last = read_records(write_file(tmp_path / name, content))
    assert isinstance(last.content, Unreadable)
    assert "when unpacked" in str(last.content)
    assert sum(len(record.content) for record in records if isinstance(record.content, bytes)) < 2 << 20


def test_a_table_of_usual_text_is_no_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MIN_BOMB_BYTES", 1 << 10)
    for name, write in (("a.arrow", write_feather), ("a.parquet", pq.write_table)):
        write(pa.table({"text": [TEXT.decode() * 9] * 40}), str(tmp_path / name))
        assert len([record for record in read_records(str(tmp_path / name)) if "text" in record.content]) == 40


def test_links_in_archives_are_not_followed_and_are_named(tmp_path, read):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, kind in (("a.txt", tarfile.SYMTYPE), ("b.txt", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    _, _, omitted = read(write_file(tmp_path / "a.tar", held.getvalue()))
    assert omitted == 2 * ["a link in an archive"]

    (tmp_path / "link.txt").symlink_to("/etc/passwd")
    with py7zr.SevenZipFile(tmp_path / "a.7z", "w") as packed:
        packed.write(tmp_path / "link.txt", "link.txt")
    link = zipfile.ZipInfo("link.txt")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr(link, "/etc/passwd")
    for name in ("a.7z", "a.zip"):
        assert read(tmp_path / name) == ([], [], ["a link in an archive"])
