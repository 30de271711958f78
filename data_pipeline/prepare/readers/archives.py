"""``.zip``, ``.tar`` and ``.7z``: archives are read like folders, files in archives in them too.

A tar is read as a stream, once, from its start to its end, compressed or not. OpenWebText is a tar of compressed tars
of compressed texts.
"""

import io
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from .compression import check_ratio, open_file, open_source
from .reader import FilePart, SourceFile, group_parts

MAX_DEPTH = 4  # of archives in archives
# (archive, part, whether a file is read at all) -> its files; one that is not read is named only
Unpack = Callable[[SourceFile, FilePart | None, Callable[[str], bool]], Iterator[SourceFile]]


def unpack_zip(source: SourceFile, part: FilePart | None, is_read: Callable[[str], bool]) -> Iterator[SourceFile]:
    with source.open() as opened, zipfile.ZipFile(opened) as archive:
        files = [info for info in archive.infolist() if not info.is_dir()]
        names = {info.filename: info for info in files}

        def make_source(info: zipfile.ZipInfo) -> SourceFile:
            def find_beside(name: str) -> SourceFile | None:
                beside = names.get(info.filename.rpartition("/")[0] + "/" + name if "/" in info.filename else name)
                return make_source(beside) if beside else None

            is_link = stat.S_ISLNK(info.external_attr >> 16)
            name = f"{source.name}::{info.filename}"
            return SourceFile(name, lambda: _open_member(archive, info), find_beside, info.compress_size, is_link)

        for info in files[part.begin : part.end] if part else files:
            yield make_source(info)


def _open_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    """Opens a file of a zip, of which no more is read than it says. Raises OSError where that would be a bomb."""
    check_ratio(info.file_size, info.compress_size)
    return archive.open(info)


def split_zip(name: str, size: int) -> list[FilePart]:
    """Cuts a zip into runs of files of about PART_BYTES together; one that cannot be opened is one part."""
    try:
        with open_file(name) as opened, zipfile.ZipFile(opened) as archive:
            sizes = [info.compress_size for info in archive.infolist() if not info.is_dir()]
    except (OSError, ValueError, zipfile.BadZipFile):
        return [FilePart(0, 1)]  # reading it says why
    return group_parts(sizes) or [FilePart(0, 1)]


def unpack_tar(source: SourceFile, part: FilePart | None, is_read: Callable[[str], bool]) -> Iterator[SourceFile]:
    with (
        open_source(source) as opened,
        tarfile.open(fileobj=opened, mode="r|", tarinfo=_Header) as archive,
        tempfile.TemporaryDirectory(prefix="kinspan-") as folder,
    ):
        path = Path(folder, "file")  # the reader may need a file twice, and the tar can be read once
        for info in archive:
            is_link = info.issym() or info.islnk()
            if not info.isfile() and not is_link:
                continue
            name = f"{source.name}::{info.name}"
            if is_link or not is_read(name):
                yield SourceFile(name, _open_nothing, size=info.size, is_link=is_link)
                continue
            member = archive.extractfile(info)
            assert member is not None
            with member, path.open("wb") as copy:
                shutil.copyfileobj(member, copy, 1 << 20)
            if path.stat().st_size < info.size:
                raise EOFError(f"{info.name} ends too early")
            yield SourceFile(name, lambda: path.open("rb"), size=info.size)


class _Header(tarfile.TarInfo):
    """A header of a tar. ``tarfile`` takes a broken one, or a missing end mark, for the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> "_Header":
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the end mark
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"the tar is cut or damaged: {error}") from error


def _open_nothing() -> IO[bytes]:
    return io.BytesIO()


def unpack_7z(source: SourceFile, part: FilePart | None, is_read: Callable[[str], bool]) -> Iterator[SourceFile]:
    """Unpacks a 7z to a temporary folder, because its files can be read in no other order than they were packed."""
    import py7zr

    with source.open() as opened, tempfile.TemporaryDirectory(prefix="kinspan-") as folder:
        size = opened.seek(0, io.SEEK_END)
        opened.seek(0)
        with py7zr.SevenZipFile(opened) as archive:
            members = [info for info in archive.list() if not info.is_directory]
            files = [info for info in members if not info.is_symlink]
            check_ratio(sum(info.uncompressed for info in files), size)
            wanted = [info.filename for info in files if is_read(f"{source.name}::{info.filename}")]
            if wanted:
                archive.extract(folder, targets=wanted)
        for info in sorted(members, key=lambda info: info.filename):
            path = Path(folder, info.filename)
            yield (
                _open_unpacked(source.name, Path(folder), path)
                if path.is_file()
                else SourceFile(
                    f"{source.name}::{info.filename}",
                    _open_nothing,
                    size=info.uncompressed or 0,
                    is_link=info.is_symlink,
                )
            )


def _open_unpacked(archive: str, top: Path, path: Path) -> SourceFile:
    def find_beside(name: str) -> SourceFile | None:
        beside = path.with_name(name)
        return _open_unpacked(archive, top, beside) if beside.is_file() else None

    name = f"{archive}::{path.relative_to(top)}"
    return SourceFile(name, lambda: path.open("rb"), find_beside, path.stat().st_size)
