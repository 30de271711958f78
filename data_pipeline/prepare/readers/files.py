"""Finds the files of ``--input``: paths, globs, folders and URLs."""

import glob
import hashlib
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from data_pipeline.core.errors import KinspanError, quote_error, redact

from . import python_docs, tables
from .compression import is_compressed, is_url
from .reader import name_file
from .registry import PYTHON_DOCS, find_obstacle, find_reader, get_reader, is_companion, is_skipped, split_prefix

logger = logging.getLogger(__name__)

# Keys under which fsspec's ``info`` has an ETag or the last change, for S3, HTTP, Google, Azure and local files
_STAMPS = ("ETag", "etag", "LastModified", "Last-Modified", "last_modified", "updated", "mtime", "created")


@dataclass(frozen=True)
class InputFile:
    """A file to read: name (with its reader's prefix, if given), size, last change; the rest is as in Record."""

    name: str
    size: int
    modified: str
    called: str = ""
    folder: str = ""


class InputFiles(NamedTuple):
    """Files to read, unreadable files in folders with the reason, and counts of files that are no text, by suffix."""

    files: list[InputFile]
    unreadable: list[tuple[InputFile, str]]
    passed_over: Counter[str]


def find_input_files(inputs: list[str]) -> InputFiles:
    """Finds the files that ``--input`` names: paths, globs, folders, URLs, ``hf:NAME``, or ``python-docs``. A path may
    have the name of its reader as a prefix: ``bookcorpus:books/``.

    Files are sorted within each input, and listed once.
    """
    files: dict[str, InputFile] = {}
    unreadable: dict[str, tuple[InputFile, str]] = {}
    passed_suffixes: dict[str, str] = {}  # by path
    for given in inputs:
        key, name = ("", given) if os.path.lexists(given) else split_prefix(given)
        if given == PYTHON_DOCS:
            files[given] = InputFile(given, python_docs.SOURCE_BYTES, python_docs.format_versions())
            continue
        if key == tables.HUB:
            if not name:
                raise KinspanError(f"{given}: give hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG:SPLIT")
            files[given] = InputFile(given, *tables.measure_data_set(name))
            continue
        if key:
            get_reader(key)  # raises if it cannot be loaded
            name = name if "/" in name else f"./{name}"  # so that a ":" in it does not make a prefix
        prefix = f"{key}:" if key else ""
        store = _Urls(name) if is_url(name) else _LocalFiles(name)
        for top in store.names:
            if not store.is_folder(top):
                if not store.exists(top):
                    raise KinspanError(f"{given}: no such file")
                if reason := find_obstacle(prefix + top):
                    raise KinspanError(f"{prefix}{top}: {reason}")
                folder = _name_folder(os.path.dirname(top)) if glob.has_magic(name) and top != name else ""
                files[prefix + store.identify(top)] = replace(store.stat(prefix, top), folder=folder)
                continue
            is_empty, folder = True, _name_folder(top)
            for path in store.list_files(top):
                if is_companion(path, key):
                    continue
                below = os.path.relpath(path, top)  # whether ``top`` itself is hidden does not matter
                reason = find_obstacle(prefix + path) if store.exists(path) else "a broken link"
                if re.search(r"(?:^|/)\.[^./]", below) or (not key and is_skipped(below)):  # hidden, or no text
                    suffixes = Path(path).suffixes[-2 if is_compressed(path) else -1 :]
                    passed_suffixes[path] = "".join(suffixes) or name_file(path)
                elif not reason:
                    is_empty = False
                    files[prefix + store.identify(path)] = replace(store.stat(prefix, path), folder=folder)
                else:
                    unreadable[path] = store.stat(prefix, path), reason
            if is_empty:
                raise KinspanError(f"{top}: no file in this folder is of a known format")
    return InputFiles(_disambiguate(list(files.values())), list(unreadable.values()), Counter(passed_suffixes.values()))


def _expect_no_prefix(names: list[str]) -> list[str]:
    """Raises KinspanError if a found file's name begins like a reader's prefix: only users may name programs."""
    if name := next((name for name in names if split_prefix(name)[0]), None):
        raise KinspanError(f"{name}: the part before the colon names a reader: rename the file")
    return names


def refuse_own_output(inputs: list[str], folder: Path) -> None:
    """Raises KinspanError if an input is a folder that contains the output, which the next run would read too."""
    for name in (split_prefix(given)[1] for given in inputs):
        for path in [] if is_url(name) else map(Path, expand_glob(name)):
            if path.is_dir() and folder.resolve().is_relative_to(path.resolve()):
                raise KinspanError(f"--output_dir {folder} is inside the input {path}: choose one outside")
            if path.resolve().is_relative_to(folder.resolve()):
                raise KinspanError(f"--output_dir {folder} holds the input {path}: choose one outside")


def _disambiguate(files: list[InputFile]) -> list[InputFile]:
    """Sets ``called`` for files with equal base names: their paths below the folder that they share."""
    paths = [split_prefix(redact(file.name))[1].split("/") for file in files]
    by_name: dict[str, list[list[str]]] = defaultdict(list)
    for path in paths:
        by_name[path[-1]].append(path)
    num_shared = {name: len(os.path.commonprefix([p[:-1] for p in same])) for name, same in by_name.items()}  # noqa: RUF071
    return [
        replace(file, called="/".join(path[num_shared[path[-1]] :])) if len(by_name[path[-1]]) > 1 else file
        for file, path in zip(files, paths, strict=True)
    ]


def check_unchanged(files: list[InputFile]) -> None:
    """Raises KinspanError if a local file has changed since it was found, so that its parts no longer fit."""
    for file in files:
        key, name = split_prefix(file.name)
        if key == tables.HUB or file.name == PYTHON_DOCS or is_url(name):
            continue
        found = _LocalFiles(name).stat(f"{key}:" if key else "", name)
        if (found.size, found.modified) != (file.size, file.modified):
            raise KinspanError(f"{file.name} was changed while it was read: give the same command again")


def expand_glob(name: str) -> list[str]:
    """Lists the paths of a local name or glob; an existing path, such as ``a[1].txt``, is not taken for a glob."""
    return [name] if os.path.lexists(name) else sorted(glob.glob(name, recursive=True))


class _LocalFiles:
    """Finds the files and folders of a local name or glob."""

    is_folder, exists = staticmethod(os.path.isdir), staticmethod(os.path.isfile)

    def identify(self, name: str) -> str:
        return os.path.abspath(name)

    def __init__(self, name: str) -> None:
        self.names = _expect_no_prefix(expand_glob(name)) or [name]

    def list_files(self, folder: str) -> list[str]:
        """Lists all files below a folder, sorted, including broken links.

        Linked folders are searched after the real ones, and each folder once, so that loops of links end. Raises
        KinspanError if a folder cannot be searched.
        """

        def refuse(error: OSError) -> None:
            raise KinspanError(f"{error.filename} cannot be searched: {error.strerror}") from error

        paths: list[str] = []
        searched: set[str] = set()
        queue = [str(Path(folder))]
        while queue:
            links: list[str] = []
            for start in queue:
                for parent, folders, names in os.walk(start, onerror=refuse):
                    if (real_path := os.path.realpath(parent)) in searched:
                        folders.clear()
                        continue
                    searched.add(real_path)
                    paths += [os.path.join(parent, name) for name in names]
                    links += [path for name in folders if os.path.islink(path := os.path.join(parent, name))]
            queue = sorted(links)
        paths = [path for path in paths if os.path.isfile(path) or not os.path.exists(path)]
        return sorted(_expect_no_prefix(paths), key=lambda path: path.split("/"))

    def stat(self, prefix: str, name: str) -> InputFile:
        """Returns an InputFile; ``modified`` joins the times of the file, its companions and the reader's .py file."""
        if not os.path.exists(name):
            return InputFile(prefix + name, 0, "")
        reader = find_reader(prefix + name)
        folder = os.path.dirname(name) or "."
        try:
            companions = reader.companions if reader else ""
            siblings = sorted(os.listdir(folder)) if companions else []
            paths = [os.path.join(folder, file) for file in siblings if re.match(companions, file)]
            paths += [prefix[:-1]] if prefix.endswith(".py:") else []
            state = os.stat(name)
            times = [state.st_mtime_ns, *(os.stat(path).st_mtime_ns for path in paths)]
        except OSError as error:
            raise KinspanError(f"{name} cannot be read: {error.strerror}") from error
        return InputFile(prefix + name, state.st_size, " ".join(map(str, times)))


class _Urls:
    """Finds the files and folders of a URL or a pattern of URLs, with fsspec."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url, self.found = url, dict[str, dict]()  # what a listing tells of files: asking again may scan it whole
        with self._report_unreachable():
            self.filesystem, path = fsspec.url_to_fs(url)
            paths = sorted(self.filesystem.glob(path)) if glob.has_magic(url) else [path]
        self.names = list(map(self.filesystem.unstrip_protocol, paths)) or [url]

    @contextmanager
    def _report_unreachable(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each store raises its own types
            raise KinspanError(f"{self.url} cannot be reached: {quote_error(error)}") from error

    def is_folder(self, url: str) -> bool:
        with self._report_unreachable():
            return not self.filesystem.isfile(url) and bool(self.filesystem.isdir(url))

    def exists(self, url: str) -> bool:
        with self._report_unreachable():
            return url in self.found or bool(self.filesystem.exists(url))

    def identify(self, url: str) -> str:
        return url

    def list_files(self, folder: str) -> list[str]:
        with self._report_unreachable():
            listed = sorted(self.filesystem.find(folder, detail=True).items())
        infos = {self.filesystem.unstrip_protocol(path): info for path, info in listed}
        self.found |= {u: i for u, i in infos.items() if i.get("size") is not None and not i.get("islink")}
        return list(infos)

    def stat(self, prefix: str, url: str) -> InputFile:
        with self._report_unreachable():
            info = self.found.get(url) or self.filesystem.info(url)
        size, query = int(info.get("size") or 0), url.partition("?")[2].encode()
        # Files of unknown size and time may differ by their query alone, which is not stored
        stamps = [info.get(key) for key in _STAMPS] + ([] if size else [hashlib.sha256(query).hexdigest()])
        return InputFile(prefix + url, size, str(next(filter(None, stamps), "")))


def _name_folder(path: str) -> str:
    return name_file(path.rstrip("/") if is_url(path) else os.path.abspath(path))
