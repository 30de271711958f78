"""Finds the reader of a file, and reads and parses its records.

To add a format, write a file beside ``jsonl.py`` with a ``reader.Reader``, and add a line to READERS. Or keep the file
elsewhere, and prefix the input with it: ``--input my_reader.py:folder``.
"""

import importlib.util
import re
import tempfile
from collections.abc import Iterator
from errno import EDQUOT, ENOSPC
from functools import cache, lru_cache
from pathlib import Path

from data_pipeline.core.errors import KinspanError, quote_error, redact
from data_pipeline.core.files import load_python
from data_pipeline.prepare.document import Document, Omitted, Rejected, Unreadable

from . import documents, forums, jsonl, python_docs, tables, text, web, wikipedia
from .archives import MAX_DEPTH, Unpack, unpack_7z, unpack_tar, unpack_zip
from .compression import COMPRESSED_SUFFIXES, count_bytes, is_compressed, is_url, open_file
from .reader import FilePart, Meter, Reader, Record, SourceFile, estimate_text, name_file

PYTHON_DOCS = python_docs.SOURCE  # the --input of the built-in default corpus

# Keys are suffixes of files, or prefixes of --input, such as ``bookcorpus:FILE``; some readers also match base names.
READERS: dict[str, Reader] = {
    ".jsonl": jsonl.READER,
    ".txt": text.READER,
    **dict.fromkeys((".csv", ".tsv"), tables.TEXT),
    ".json": tables.JSON,
    ".md": documents.MARKDOWN,
    ".rst": documents.RST,
    **dict.fromkeys((".html", ".htm", ".xhtml"), web.HTML),
    ".xml": wikipedia.DUMP,
    **dict.fromkeys((".warc", ".arc"), web.WARC),
    ".parquet": tables.PARQUET,
    ".arrow": tables.ARROW,
    ".docx": documents.DOCX,
    ".pptx": documents.PPTX,
    ".pdf": documents.PDF,
    "stackexchange": forums.STACKEXCHANGE,
    "questions": forums.QUESTIONS,
    "wikiextractor": wikipedia.EXTRACTED,
    "bookcorpus": text.BOOKS,
    tables.HUB: tables.HUGGING_FACE,
    PYTHON_DOCS: python_docs.READER,
}

ARCHIVES: dict[str, Unpack] = {
    **dict.fromkeys((".zip", ".epub"), unpack_zip),
    **dict.fromkeys((".tar", ".tgz", ".tbz2", ".txz"), unpack_tar),
    ".7z": unpack_7z,
}
_SYSTEM_FILES = r"(?i)\._.*|\.DS_Store|Thumbs\.db|desktop\.ini|mimetype|container\.xml"  # of macOS, Windows and EPUB
# Suffixes of files that are not documents: pictures, sound, fonts, styles, programs and their settings
_NO_DOCUMENTS = re.compile(
    r"(?i)\.(?:png|jpe?g|gif|svg|webp|ico|bmp|tiff?|drawio|dot|mp[34]|wav|ogg|webm|woff2?|[to]tf|eot|s?css|less|js|mjs|ts"
    r"|map|lock|pyi?|pyc|ipynb|[ch]|cc|[ch]pp|rs|go|java|sh|bat|ps1|cfg|ini|toml|ya?ml|inv|opf|ncx)"
)
_NO_DOCUMENT_NAMES = re.compile(r"Makefile|Dockerfile|package(-lock)?\.json|CNAME|\..*")
_OPENWEBTEXT = re.compile(r"urlsf_subset[\d-]+(?:_data)?")  # compressed tars without such a suffix
_PLAIN = [suffix for suffix in READERS if suffix.startswith(".") and READERS[suffix].may_be_compressed]
_PACKED = [suffix for suffix in READERS if suffix.startswith(".") and suffix not in _PLAIN]
FORMATS = (  # for help texts
    f"{', '.join(_PLAIN)} (also {', '.join(COMPRESSED_SUFFIXES)}), {', '.join([*_PACKED, *ARCHIVES])}, "
    "StackExchange's Posts.xml, WikiExtractor's wiki_00 and so on"
)


def split_prefix(name: str) -> tuple[str, str]:
    """Splits an input such as ``bookcorpus:books/`` into its reader's key, or "", and the rest."""
    head, colon, rest = name.partition(":")
    is_reader = head.endswith(".py") or head in READERS or f".{head}" in READERS
    return (head, rest) if colon and is_reader and not rest.startswith(("//", ":")) else ("", name)


def _get_base_name(name: str) -> str:
    base = name_file(name)
    return Path(base).stem if is_compressed(base) else base


def find_archive(name: str) -> Unpack | None:
    """Returns the function that unpacks an archive; None if the file is not an archive."""
    base = _get_base_name(split_prefix(name)[1])
    if re.fullmatch(_SYSTEM_FILES, base):
        return None
    if name_file(name) != base:  # compressed
        return unpack_tar if base.lower().endswith(".tar") or _OPENWEBTEXT.fullmatch(base) else None
    return ARCHIVES.get(Path(base).suffix.lower())


def find_reader(name: str | Path) -> Reader | None:
    """Returns the reader of a file, by its name; None if it has none."""
    key = _find_key(str(name))
    return get_reader(key) if key else None


@lru_cache(1024)
def _find_key(name: str) -> str:
    """Returns the key of a file's reader; "" if it has none. Cached, since it is called for each record."""
    key, path = split_prefix(name)
    if name == PYTHON_DOCS or key:
        return key or name
    base = _get_base_name(path)
    by_name = (key for key, reader in READERS.items() if reader.names and re.fullmatch(reader.names, base))
    suffix = Path(base).suffix.lower()
    reader_key = next(by_name, "") or ("" if is_companion(path) or suffix not in READERS else suffix)
    return "" if reader_key and is_compressed(path) and not READERS[reader_key].may_be_compressed else reader_key


@cache
def _load_reader(path: str) -> Reader:
    reader = getattr(load_python(path, f"the reader {path}"), "READER", None)
    if not isinstance(reader, Reader):
        raise KinspanError(f"the reader {path} defines no READER, which must be a Reader of readers/reader.py")
    return reader


def get_reader(key: str) -> Reader:
    """Returns a reader by its key in READERS, with or without the dot, or by its Python file. Raises KinspanError."""
    if key.endswith(".py"):
        return _load_reader(key)
    if reader := READERS.get(key) or READERS.get(f".{key}"):
        return reader
    raise KinspanError(f"--reader {key}: there is no such reader")


def is_companion(name: str, key: str = "") -> bool:
    """Tells whether a file is read along with another file or ignored, by the reader of ``key``, or else by any."""
    readers, base = [get_reader(key)] if key else READERS.values(), _get_base_name(name)
    patterns = [_SYSTEM_FILES, *(p for reader in readers for p in (reader.companions, reader.ignored) if p)]
    return any(re.fullmatch(pattern, base) for pattern in patterns)


def is_skipped(name: str) -> bool:
    """Tells whether a file is not a document, by its name."""
    return bool(_NO_DOCUMENTS.fullmatch(Path(name).suffix) or _NO_DOCUMENT_NAMES.fullmatch(name_file(name)))


def find_obstacle(name: str) -> str:
    """Returns why a file cannot be read: its format is unknown, or a library is missing; "" if it can be read."""
    modules: tuple[str, ...] = ()
    if find_archive(name):
        modules = ("py7zr",) if name.lower().endswith(".7z") else ()
    elif reader := find_reader(name):
        modules = reader.modules
    else:
        return "not a known format"
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return f"needs {missing[0]}: pip install 'kinspan[prepare]'" if missing else ""


def find_parts(name: str, size: int) -> list[FilePart | None]:
    """Cuts a file into a part per task. ``[None]`` is the whole file; a file of unknown size, 0, is not cut."""
    reader = None if find_archive(name) else find_reader(name)
    return list(reader.split(split_prefix(name)[1], size)) if size and reader and reader.split else [None]


def open_input(name: str, size: int = 0) -> SourceFile:
    """Returns the SourceFile of a path or URL; ``size`` is only needed for a URL."""

    def find_beside(beside: str) -> SourceFile | None:
        address, mark, query = path.partition("?") if is_url(path) else (path, "", "")
        folder, slash, _ = address.rpartition("/")
        path_beside = folder + slash + beside + mark + query
        if is_url(path_beside):
            import fsspec

            filesystem, inside = fsspec.url_to_fs(path_beside)
            return open_input(path_beside) if filesystem.exists(inside) else None
        return open_input(path_beside) if Path(path_beside).is_file() else None

    _, path = split_prefix(name)
    local = path if Path(path).is_file() else ""
    size, meter = size or (Path(local).stat().st_size if local else 0), Meter()
    return SourceFile(
        redact(name), lambda: count_bytes(open_file(path), meter.count_read), find_beside, size, meter=meter, path=local
    )


def read_records(name: str | Path, part: FilePart | None = None, called: str = "", size: int = 0) -> Iterator[Record]:
    """Yields the raw records of a file, a part or an archive; if reading fails, the last record is Unreadable."""
    yield from _read_source(open_input(str(name), size), part, called)


def _read_source(source: SourceFile, part: FilePart | None, called: str) -> Iterator[Record]:
    unpack, reader = find_archive(source.name), find_reader(source.name)
    line = 0
    try:
        if unpack:
            for member in unpack(source, lambda name: not find_obstacle(name) or is_companion(name)):
                line += 1
                yield from _read_member(member, line)
            if not line:
                yield Record(source.name, 1, Rejected("the archive holds no files"))
        else:
            assert reader is not None
            for line, content in reader.read(source, part):
                yield Record(source.name, line, content, called)
    except (KinspanError, MemoryError):  # the first is clear already; the second is not the file's fault
        raise
    except Exception as error:  # truncated archives, broken parquet, permissions: each library raises its own
        if isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT):  # the local disk is full
            folder = Path(tempfile.gettempdir())
            raise KinspanError(f"TMPDIR: {folder} cannot be written: {quote_error(error)}") from error
        reason = f"cannot read on: {type(error).__name__}: {quote_error(error)}"
        size = source.size or (0 if "::" in source.name else source.meter.read)  # a URL may not tell its length
        yield Record(source.name, line + 1, Unreadable(reason, estimate_text(source.name, size)))


def _read_member(member: SourceFile, number: int) -> Iterator[Record]:
    key = split_prefix(member.name)[0]
    if is_companion(member.name, key):
        return
    if member.is_link:
        reason: Rejected = Omitted("a link in an archive")
    elif not (obstacle := find_obstacle(member.name)) and member.name.count("::") <= MAX_DEPTH:
        yield from _read_source(member, None, member.name.rpartition("::")[2])
        return
    elif is_skipped(name_file(member.name)):
        reason = Omitted("a picture, a font, a style or a program", member.size)
    else:
        reason = Unreadable(obstacle or "too many archives in archives", estimate_text(member.name, member.size))
    yield Record(member.name, number, reason)


def parse_record(record: Record, keep_code: bool = False) -> list[Document]:
    """Returns the documents of a record. Raises Rejected if it is broken, Omitted if it is meant to be none."""
    if isinstance(record.content, Rejected):
        raise record.content
    reader = find_reader(record.file)
    assert reader is not None
    try:
        return reader.parse(record, keep_code) if reader.has_code else reader.parse(record)
    except (Rejected, KinspanError, ImportError):
        raise
    except Exception as error:  # parsers may raise anything on malformed input
        raise Rejected(f"cannot be parsed: {type(error).__name__}: {quote_error(error)}") from error
