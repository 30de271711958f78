"""``.zip``, ``.tar`` and ``.7z``: archives are read like folders, nested ones too.

A tar, compressed or not, is read once, as a stream. OpenWebText is a tar of compressed tars of compressed texts.
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

from .compression import count_bytes, open_source
from .reader import SourceFile

MAX_DEPTH = 4  # of nested archives
# (archive, is_wanted) -> files in the archive; those that are not wanted may be empty
Unpack = Callable[[SourceFile, Callable[[str], bool]], Iterator[SourceFile]]


def unpack_zip(source: SourceFile, is_wanted: Callable[[str], bool]) -> Iterator[SourceFile]:
    with source.open() as opened, zipfile.ZipFile(opened) as archive:
        files = {info.filename: info for info in archive.infolist() if not info.is_dir()}

        def make_source(info: zipfile.ZipInfo) -> SourceFile:
            def find_beside(name: str) -> SourceFile | None:
                folder, slash, _ = info.filename.rpartition("/")
                sibling = files.get(folder + slash + name)
                return make_source(sibling) if sibling else None

            def open_member() -> IO[bytes]:
                return count_bytes(archive.open(info), source.meter.count_unpacked)

            is_link = stat.S_ISLNK(info.external_attr >> 16)
            name = f"{source.name}::{info.filename}"
            return SourceFile(name, open_member, find_beside, info.file_size, is_link, source.meter)

        yield from (make_source(info) for info in archive.infolist() if not info.is_dir())


def unpack_tar(source: SourceFile, is_wanted: Callable[[str], bool]) -> Iterator[SourceFile]:
    with (
        open_source(source) as opened,
        tarfile.open(fileobj=opened, mode="r|", tarinfo=_Header) as archive,
        tempfile.TemporaryDirectory(prefix="kinspan-") as folder,
    ):
        path = Path(folder, "file")  # a copy, since a reader may need a file twice and the tar is read once
        again: list[Iterator[SourceFile]] = []  # held, since an iterator's end removes its file

        def find(beside: str) -> SourceFile | None:
            wanted = f"{source.name}::{info.name.rpartition('/')[0]}/{beside}".replace("::/", "::")
            again.append(file for file in unpack_tar(source, wanted.__eq__) if file.name == wanted)
            return next(again[-1], None)

        for info in archive:
            archive.members = []  # type: ignore[attr-defined]  # it would remember all entries
            name, is_link = f"{source.name}::{info.name}", info.issym() or info.islnk()
            if is_link or (info.isfile() and not is_wanted(name)):
                yield SourceFile(name, io.BytesIO, size=info.size, is_link=is_link)
            elif member := archive.extractfile(info):
                with count_bytes(member, source.meter.count_unpacked) as unpacked, path.open("wb") as copy:
                    shutil.copyfileobj(unpacked, copy, 1 << 20)
                if path.stat().st_size < info.size:
                    raise EOFError(f"{info.name} ends too early")
                yield SourceFile(name, lambda: path.open("rb"), find, info.size, meter=source.meter, path=str(path))
                path.unlink()  # ext4 waits for the disk when a file is written over


class _Header(tarfile.TarInfo):
    """Raises ReadError for a broken header or a missing end mark, which ``tarfile`` takes for the archive's end."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> "_Header":
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # at the end mark
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"the tar is cut or damaged: {error}") from error


def unpack_7z(source: SourceFile, is_wanted: Callable[[str], bool]) -> Iterator[SourceFile]:
    """Unpacks a 7z to a temporary folder, because its files can only be read in the order in which they were packed."""
    import py7zr

    with source.open() as opened, tempfile.TemporaryDirectory(prefix="kinspan-") as folder:
        size = opened.seek(0, io.SEEK_END)
        opened.seek(0)
        with py7zr.SevenZipFile(opened) as archive:
            members = [info for info in archive.list() if not info.is_directory]
            source.meter.count_read(0 if "::" in source.name else size)  # which py7zr is about to read
            source.meter.count_unpacked(sum(info.uncompressed for info in members if not info.is_symlink))
            names = [info.filename for info in members if not info.is_symlink]
            if targets := [name for name in names if is_wanted(f"{source.name}::{name}")]:
                archive.extract(folder, targets=targets)

        def make_source(name: str, size: int = 0, is_link: bool = False) -> SourceFile:
            path = Path(folder, name.lstrip("/"))  # as py7zr unpacks it

            def find_beside(beside: str) -> SourceFile | None:
                return make_source(str(Path(name).with_name(beside))) if path.with_name(beside).is_file() else None

            open_member = (lambda: path.open("rb")) if path.is_file() else io.BytesIO
            full_name = f"{source.name}::{name}"
            return SourceFile(full_name, open_member, find_beside, size, is_link, source.meter, str(path))

        for info in sorted(members, key=lambda info: info.filename):
            yield make_source(info.filename, info.uncompressed or 0, info.is_symlink)
