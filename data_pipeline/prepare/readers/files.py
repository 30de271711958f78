"""Finds the files of ``--input``: paths, globs, folders and URLs."""

import glob
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from data_pipeline.core.errors import KinspanError, quote_error

from . import python_docs, tables
from .compression import is_compressed, is_url
from .registry import PYTHON_DOCS, find_obstacle, find_reader, get_reader, is_companion, is_no_document, split_prefix

logger = logging.getLogger(__name__)

# Names that stores give a file's state, or the time of its last change: S3, HTTP, Google's, Azure's and local ones.
_STAMPS = ("ETag", "etag", "LastModified", "Last-Modified", "last_modified", "updated", "mtime", "created")


@dataclass(frozen=True)
class InputFile:
    """A file to read: its name, perhaps behind a reader's, stored bytes, last change, and name in documents' ids."""

    name: str
    size: int
    modified: str
    called: str = ""


class InputFiles(NamedTuple):
    """Files of an input; those of its folders that cannot be read, with the reason; and counts of pictures etc."""

    files: list[InputFile]
    unknown: list[tuple[InputFile, str]]
    passed_over: Counter[str]


def find_input_files(inputs: list[str]) -> InputFiles:
    """Finds the files that ``--input`` names: paths, globs, folders, URLs, ``hf:NAME``, or ``python-docs``. A path may
    have the name of its reader before it: ``bookcorpus:books/``.

    They are sorted within each input, and each file comes once. Raises KinspanError for an input that names nothing,
    for a named file that cannot be read, and for a folder that cannot be searched or holds no file that can be read.
    """
    files: dict[str, InputFile] = {}
    unknown: dict[str, tuple[InputFile, str]] = {}
    passed_over: dict[str, str] = {}
    for given in inputs:
        key, name = split_prefix(given)
        if given == PYTHON_DOCS:
            files[given] = InputFile(given, python_docs.SOURCE_BYTES, python_docs.format_versions())
            continue
        if key == tables.HUB:
            if not name:
                raise KinspanError(f"{given}: give hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG:SPLIT")
            files[given] = InputFile(given, 0, tables.stamp(name))
            continue
        if key:
            get_reader(key)  # which raises where it cannot be loaded
            name = name if "/" in name else f"./{name}"  # so that the file's name has no prefix
        prefix = f"{key}:" if key else ""
        store = _Urls(name) if is_url(name) else _LocalFiles(name)
        for place in store.names:
            if not store.is_folder(place):
                if not store.exists(place):
                    raise KinspanError(f"{given}: no such file")
                if reason := find_obstacle(prefix + place):
                    raise KinspanError(f"{prefix}{place}: {reason}")
                files[prefix + store.identify(place)] = store.stat(prefix, place)
                continue
            is_empty = True
            for path in store.list_files(place):
                if is_companion(path, key):
                    continue
                reason = find_obstacle(prefix + path) if store.exists(path) else "a link to nothing"
                if not reason:
                    is_empty = False
                    files[prefix + store.identify(path)] = store.stat(prefix, path)
                elif is_no_document(path[len(place) :]):
                    passed_over[path] = _name_suffix(path)
                else:
                    unknown[path] = store.stat(prefix, path), reason
            if is_empty:
                raise KinspanError(f"{place}: no file in this folder is of a known format")
    return InputFiles(_call_apart(list(files.values())), list(unknown.values()), Counter(passed_over.values()))


def refuse_own_output(inputs: list[str], folder: Path) -> None:
    """Raises KinspanError where an input is a folder that the output lies in: the next run would read it as well."""
    for name in (split_prefix(given)[1] for given in inputs):
        for place in [] if is_url(name) else map(Path, expand_glob(name)):
            if place.is_dir() and folder.resolve().is_relative_to(place.resolve()):
                raise KinspanError(f"--output_dir {folder} lies in {place}, which is read: choose one outside")


def _call_apart(files: list[InputFile]) -> list[InputFile]:
    """Calls files of the same name by their paths below the folder that these have in common."""
    paths = [split_prefix(file.name)[1].split("/") for file in files]
    alike: dict[str, list[list[str]]] = defaultdict(list)
    for path in paths:
        alike[path[-1]].append(path)
    return [
        replace(file, called="/".join(path[_count_common(alike[path[-1]]) :])) if len(alike[path[-1]]) > 1 else file
        for file, path in zip(files, paths, strict=True)
    ]


def _count_common(paths: list[list[str]]) -> int:
    pairs = zip(min(paths), max(paths), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def check_unchanged(files: list[InputFile]) -> None:
    """Raises KinspanError where a local file has changed since it was found: its parts were cut by its old size."""
    for file in files:
        key, name = split_prefix(file.name)
        if key == tables.HUB or file.name == PYTHON_DOCS or is_url(name):
            continue
        now = _LocalFiles(name).stat(f"{key}:" if key else "", name)
        if (now.size, now.modified) != (file.size, file.modified):
            raise KinspanError(f"{file.name} was changed while it was read: give the same command again")


def expand_glob(name: str) -> list[str]:
    """Lists the paths of a local name or glob; a path that exists is no glob, such as ``a[1].txt``."""
    return [name] if os.path.lexists(name) else sorted(glob.glob(name, recursive=True))


class _LocalFiles:
    """Files and folders of a local name or glob."""

    def __init__(self, name: str) -> None:
        self.names = expand_glob(name) or [name]

    def is_folder(self, name: str) -> bool:
        return os.path.isdir(name)

    def exists(self, name: str) -> bool:
        return os.path.isfile(name)

    def identify(self, name: str) -> str:
        return os.path.abspath(name)

    def list_files(self, folder: str) -> list[str]:
        """Lists all files below a folder, sorted, with the links that lead nowhere.

        Links to folders are followed after all that are there without one; each folder is listed once, so no loop of
        links goes on for ever. Raises KinspanError where a folder cannot be searched.
        """

        def refuse(error: OSError) -> None:
            raise KinspanError(f"{error.filename} cannot be searched: {error.strerror}") from error

        paths: list[str] = []
        searched: set[str] = set()
        waiting = [str(Path(folder))]
        while waiting:
            links: list[str] = []
            for start in waiting:
                for parent, folders, names in os.walk(start, onerror=refuse):
                    if (place := os.path.realpath(parent)) in searched:
                        folders.clear()
                        continue
                    searched.add(place)
                    paths += [os.path.join(parent, name) for name in names]
                    links += [path for name in folders if os.path.islink(path := os.path.join(parent, name))]
            waiting = sorted(links)
        return sorted((p for p in paths if os.path.isfile(p) or not os.path.exists(p)), key=lambda p: p.split("/"))

    def stat(self, prefix: str, name: str) -> InputFile:
        """Returns a file with its state, which covers the files that its reader reads beside it."""
        if not os.path.exists(name):
            return InputFile(prefix + name, 0, "")
        reader = find_reader(prefix + name)
        folder = os.path.dirname(name) or "."
        try:
            companions = reader.companions if reader else ""
            beside = sorted(os.listdir(folder)) if companions else []
            paths = [os.path.join(folder, file) for file in beside if re.match(companions, file)]
            paths += [prefix[:-1]] if prefix.endswith(".py:") else []
            state = os.stat(name)
            times = [state.st_mtime_ns, *(os.stat(path).st_mtime_ns for path in paths)]
        except OSError as error:
            raise KinspanError(f"{name} cannot be read: {error.strerror}") from error
        return InputFile(prefix + name, state.st_size, " ".join(map(str, times)))


class _Urls:
    """Files and folders of a URL or a pattern of URLs, by fsspec."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url
        with self._reaching():
            self.filesystem, path = fsspec.url_to_fs(url)
            paths = sorted(self.filesystem.glob(path)) if glob.has_magic(url) else [path]
        self.names = list(map(self.filesystem.unstrip_protocol, paths)) or [url]

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each store has its own
            raise KinspanError(f"{self.url} cannot be reached: {quote_error(error)}") from error

    def is_folder(self, url: str) -> bool:
        with self._reaching():
            return not self.filesystem.isfile(url) and bool(self.filesystem.isdir(url))

    def exists(self, url: str) -> bool:
        with self._reaching():
            return bool(self.filesystem.exists(url))

    def identify(self, url: str) -> str:
        return url

    def list_files(self, folder: str) -> list[str]:
        with self._reaching():
            return list(map(self.filesystem.unstrip_protocol, sorted(self.filesystem.find(folder))))

    def stat(self, prefix: str, url: str) -> InputFile:
        with self._reaching():
            info = self.filesystem.info(url)
        stamp = next((stamp for key in _STAMPS if (stamp := info.get(key))), "")
        return InputFile(prefix + url, int(info.get("size") or 0), str(stamp))


def _name_suffix(name: str) -> str:
    """Returns the suffix by which a file's format is known, such as ``.csv.gz``."""
    path = Path(name)
    return (Path(path.stem).suffix + path.suffix if is_compressed(name) else path.suffix) or path.name
