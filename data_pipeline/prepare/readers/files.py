"""Finding the files of ``--input``: paths, globs, folders and URLs."""

import glob
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from data_pipeline.core.errors import KinspanError, quote_error

from . import huggingface, python_docs
from .compression import is_compressed, is_url
from .registry import (
    FORMATS,
    PYTHON_DOCS,
    can_read,
    find_missing,
    find_reader,
    get_reader,
    is_companion,
    split_prefix,
)

# What stores call a file's state, or the time of its last change: S3, HTTP, Google's, Azure's and local ones.
_STAMPS = ("ETag", "etag", "LastModified", "Last-Modified", "last_modified", "updated", "mtime", "created")


@dataclass(frozen=True)
class InputFile:
    """A file to read, and what tells whether it has changed.

    name:     is a path or a URL, with the reader's name before it where the input names one
    size:     is in bytes, as it is stored
    modified: is the time of its last change, or what a store says in its place
    called:   is what names it in the ids of its documents, see ``reader.name_record``
    """

    name: str
    size: int
    modified: str
    called: str = ""


def find_input_files(inputs: list[str], allow_skipped: bool = False) -> tuple[list[InputFile], Counter[str]]:
    """Find the files that ``--input`` names: paths, globs, folders (searched through), URLs, ``hf:NAME``, or
    ``python-docs``. A path may have the name of its reader before it: ``bookcorpus:books/``.

    They are sorted within each input, and each file comes once. With them come the numbers of the files in folders
    that cannot be read, by suffix, and of the links there that lead nowhere.

    Raises KinspanError for an input that names nothing, for a named file that cannot be read, for a folder that cannot
    be searched, and, unless ``allow_skipped``, for a folder that holds files that cannot be read or links to nothing.
    """
    files: dict[str, InputFile] = {}
    skipped: set[str] = set()
    for given in inputs:
        key, name = split_prefix(given)
        if given == PYTHON_DOCS:
            files[given] = InputFile(given, python_docs.SOURCE_BYTES, _describe_docs())
            continue
        if key == huggingface.PREFIX:
            if not name:
                raise KinspanError(f"{given}: name a data set behind it, as in hf:NAME, hf:NAME:CONFIG:SPLIT")
            files[given] = InputFile(given, 0, huggingface.stamp(name))
            continue
        if key:
            get_reader(key)  # which says so where it cannot be loaded
            name = name if "/" in name else f"./{name}"  # so that the file's own name has no prefix
        prefix = f"{key}:" if key else ""
        places = _UrlPlaces(name) if is_url(name) else _LocalPlaces(name)
        for place in places.found:
            if places.is_folder(place):
                inside = places.list_files(place)
                taken = (p for p in inside if not (key and is_companion(p, key)))  # a named reader takes all others
                known = [p for p in taken if can_read(prefix + p) and places.exists(p)]
                others = sorted(p for p in {*inside} - {*known} if not is_companion(p, key))
                if inside and not known and not others:
                    raise KinspanError(
                        f"{place}: no file in this folder holds documents; {inside[0]} only belongs to one that does"
                    )
                _refuse_missing_text(place, prefix, known, others, allow_skipped)
                files.update({prefix + places.identify(p): places.describe(prefix, p) for p in known})
                skipped.update(prefix + p for p in others)
            elif not places.exists(place):
                raise KinspanError(f"{given}: no such file")
            elif not can_read(prefix + place):
                raise KinspanError(f"{prefix}{place}: {_explain(prefix + place)}")
            else:
                files[prefix + places.identify(place)] = places.describe(prefix, place)
    return _call_apart(list(files.values())), Counter(map(_name_suffix, skipped))


def refuse_own_output(inputs: list[str], folder: Path) -> None:
    """Raise KinspanError where an input is a folder that the output lies in, which the next run would read as well."""
    for given in inputs:
        name = split_prefix(given)[1]
        for place in [] if is_url(name) else map(Path, expand_glob(name)):
            if place.is_dir() and folder.resolve().is_relative_to(place.resolve()):
                raise KinspanError(f"--output_dir {folder} lies in {place}, which is read: choose one outside")


def _call_apart(files: list[InputFile]) -> list[InputFile]:
    """Have files of the same name called by their paths below the folder that these have in common."""
    alike: dict[str, list[list[str]]] = {}
    paths = [split_prefix(file.name)[1].split("/") for file in files]
    for path in paths:
        alike.setdefault(path[-1], []).append(path)
    common = {name: _count_common(min(same), max(same)) for name, same in alike.items()}
    return [
        replace(file, called="/".join(path[common[path[-1]] :])) if len(alike[path[-1]]) > 1 else file
        for file, path in zip(files, paths, strict=True)
    ]


def _count_common(first: list[str], last: list[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))


def check_unchanged(files: list[InputFile]) -> None:
    """Raise KinspanError where a local file is another than when it was found: parts of it were cut by its old size."""
    for file in files:
        prefix, name = split_prefix(file.name)
        if prefix == huggingface.PREFIX or file.name == PYTHON_DOCS or is_url(name):
            continue
        now = _LocalPlaces(name).describe(f"{prefix}:" if prefix else "", name)
        if (now.size, now.modified) != (file.size, file.modified):
            raise KinspanError(f"{file.name} was changed while it was read: give the same command again")


def _describe_docs() -> str:
    """Name the versions that the default corpus is read from, and say so where they are others than it is meant for."""
    if other := python_docs.describe_differences():
        print(f"note: the default corpus, and with it its figures, will differ, because of {other}", file=sys.stderr)
    return python_docs.describe_versions()


def _explain(name: str) -> str:
    return find_missing(name) or f"not a known format; known are {FORMATS}; or name its reader, as in txt:FILE"


def expand_glob(name: str) -> list[str]:
    """List what a local name or glob stands for; what is there by this very name is no glob, such as ``a[1].txt``."""
    return [name] if os.path.lexists(name) else sorted(glob.glob(name, recursive=True))


class _LocalPlaces:
    """What a local name or glob stands for."""

    def __init__(self, name: str) -> None:
        self.found = expand_glob(name) or [name]

    def is_folder(self, name: str) -> bool:
        return os.path.isdir(name)

    def exists(self, name: str) -> bool:
        return os.path.isfile(name)

    def identify(self, name: str) -> str:
        return os.path.abspath(name)

    def list_files(self, folder: str) -> list[str]:
        return [str(path) for path in _list_files(Path(folder))]

    def describe(self, prefix: str, name: str) -> InputFile:
        """Describe a file. That it has changed also shows in the files that its reader reads beside it."""
        reader = find_reader(prefix + name)
        folder = os.path.dirname(name) or "."
        beside = reader.companions if reader else ""
        try:
            stat = os.stat(name)
            others = [other for other in (sorted(os.listdir(folder)) if beside else []) if re.match(beside, other)]
            times = [stat.st_mtime_ns, *(os.stat(os.path.join(folder, other)).st_mtime_ns for other in others)]
            if prefix.endswith(".py:"):
                times.append(os.stat(prefix[:-1]).st_mtime_ns)
        except OSError as error:
            raise KinspanError(f"{name} cannot be read: {error.strerror}") from error
        return InputFile(prefix + name, stat.st_size, " ".join(map(str, times)))


class _UrlPlaces:
    """What a URL or a pattern of URLs stands for, by fsspec."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url
        with self._reaching():
            self.filesystem, path = fsspec.url_to_fs(url)
            found = sorted(self.filesystem.glob(path)) if glob.has_magic(url) else [path]
        self.found = [self._name(p) for p in found] or [url]

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each store has its own
            raise KinspanError(f"{self.url} cannot be reached: {quote_error(error)}") from error

    def _name(self, path: str) -> str:
        return self.filesystem.unstrip_protocol(path)

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
            return [self._name(path) for path in sorted(self.filesystem.find(folder))]

    def describe(self, prefix: str, url: str) -> InputFile:
        with self._reaching():
            info = self.filesystem.info(url)
        stamps = (info.get(key) for key in _STAMPS)
        return InputFile(prefix + url, int(info.get("size") or 0), str(next(filter(None, stamps), "")))


def _refuse_missing_text(folder: str, prefix: str, known: list[str], others: list[str], allow_skipped: bool) -> None:
    """Raises KinspanError where a folder has no file that can be read, or, unless ``allow_skipped``, others too."""
    kinds = count_suffixes(prefix + name for name in others)
    if not known:
        raise KinspanError(f"{folder}: no file in this folder is of a known format ({kinds}); known are {FORMATS}")
    if allow_skipped:
        return
    if broken := [name for name in others if not is_url(name) and not os.path.exists(name)]:
        raise KinspanError(
            f"{folder}: {broken[0]} is a link to nothing (the folder has {len(broken)} of them), so text would "
            "be missing: mend it, remove it, or give --allow_skipped to leave it out"
        )
    if others:
        raise KinspanError(
            f"{folder}: {kinds} in this folder cannot be read, so their text would be missing (the first is "
            f"{others[0]}); known formats are {FORMATS}: convert them, name the files to read, name their reader, as "
            "in txt:FOLDER, or give --allow_skipped to leave them out"
        )


def _list_files(folder: Path) -> list[Path]:
    """List all files below a folder, sorted, with the links that lead nowhere.

    Links to folders are followed, after all that are there without one; each folder is listed once, so no loop of links
    goes on for ever. Raises KinspanError where a folder cannot be searched.
    """

    def refuse(error: OSError) -> None:
        raise KinspanError(f"{error.filename} cannot be searched: {error.strerror}") from error

    found: list[Path] = []
    searched: set[str] = set()
    waiting = [folder]
    while waiting:
        links: list[Path] = []
        for start in waiting:
            for parent, folders, names in os.walk(start, onerror=refuse):
                if (place := os.path.realpath(parent)) in searched:
                    folders.clear()
                    continue
                searched.add(place)
                found += [Path(parent, name) for name in names]
                links += [Path(parent, name) for name in folders if os.path.islink(os.path.join(parent, name))]
        waiting = sorted(links)
    return sorted(path for path in found if path.is_file() or not path.exists())


def _name_suffix(name: str) -> str:
    """Name the suffix by which a file's format is known, such as ``.csv.gz``, and the library that reading it lacks; or
    say that it is a broken link. ``name`` may begin with its reader's."""
    path = Path(split_prefix(name)[1])
    if not is_url(name) and not path.exists():
        return "link to nothing"
    suffix = (Path(path.stem).suffix + path.suffix if is_compressed(name) else path.suffix) or "no suffix"
    return ", ".join(filter(None, [suffix, find_missing(name)]))


def count_suffixes(names: Iterable[str]) -> str:
    """Say how many files there are of each suffix: ``60 files (.html), 59 files (.md)``."""
    return format_skipped(Counter(map(_name_suffix, names)))


def format_skipped(skipped: Counter[str]) -> str:
    """Say how many files were skipped, by suffix, the most frequent first."""
    ordered = sorted(skipped.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{number} file{'s' * (number > 1)} ({suffix})" for suffix, number in ordered) or "it is empty"
