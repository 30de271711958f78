"""All formats, which of them a file is of, and reading it.

To add a format, write a file beside ``jsonl.py`` with a ``reader.Reader``, and add a line to READERS. Or keep the file
elsewhere, and name it before the input: ``--input my_reader.py:folder``.
"""

import importlib.util
import re
import tempfile
from collections.abc import Iterator
from errno import EDQUOT, ENOSPC
from functools import cache, lru_cache
from pathlib import Path

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import load_python
from data_pipeline.prepare.document import Document, Omitted, Rejected, Unreadable

from . import documents, forums, jsonl, python_docs, tables, text, web, wikipedia
from .archives import MAX_DEPTH, Unpack, unpack_7z, unpack_tar, unpack_zip
from .compression import COMPRESSED_SUFFIXES, is_compressed, is_url, open_file
from .reader import FilePart, Reader, Record, SourceFile, estimate_text, name_file

PYTHON_DOCS = python_docs.SOURCE  # the --input that stands for the embedded default corpus

# By the suffix of a file's name; by the names that a reader takes; or by the key before an input: ``bookcorpus:FILE``.
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
    "stackexchange-code": forums.WITH_CODE,
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
_OF_SYSTEMS = r"(?i)\._.*|\.DS_Store|Thumbs\.db|desktop\.ini|mimetype|container\.xml"  # of macOS, Windows and EPUB
# Files that stand beside documents and are none: pictures, sound, fonts, styles, programs and their settings
_NO_DOCUMENTS = re.compile(
    r"(?i)\.(?:png|jpe?g|gif|svg|webp|ico|bmp|tiff?|drawio|dot|mp[34]|wav|ogg|webm|woff2?|[to]tf|eot|s?css|less|js|mjs|ts"
    r"|map|lock|pyi?|pyc|ipynb|[ch]|cc|[ch]pp|rs|go|java|sh|bat|ps1|cfg|ini|toml|ya?ml|inv|opf|ncx)"
)
_NO_DOCUMENT_NAMES = re.compile(r"Makefile|Dockerfile|package(-lock)?\.json|CNAME|\..*")
_OPENWEBTEXT = re.compile(r"urlsf_subset[\d-]+(?:_data)?")  # a compressed tar without a suffix that says so
_PLAIN = [suffix for suffix in READERS if suffix.startswith(".") and READERS[suffix].may_be_compressed]
_PACKED = [suffix for suffix in READERS if suffix.startswith(".") and suffix not in _PLAIN]
FORMATS = (  # for help texts
    f"{', '.join(_PLAIN)} (also {', '.join(COMPRESSED_SUFFIXES)}), {', '.join([*_PACKED, *ARCHIVES])}, "
    "StackExchange's Posts.xml, WikiExtractor's wiki_00 and so on"
)


def split_prefix(name: str) -> tuple[str, str]:
    """Splits the name of a reader, or "", from an input: ``bookcorpus:books/``."""
    head, colon, rest = name.partition(":")
    is_reader = head.endswith(".py") or head in READERS or f".{head}" in READERS
    return (head, rest) if colon and is_reader and not rest.startswith(("//", ":")) else ("", name)


def _strip(name: str) -> str:
    base = name_file(name)
    return Path(base).stem if is_compressed(base) else base


def find_archive(name: str) -> Unpack | None:
    """Returns the function that unpacks an archive; None for any other file."""
    base = _strip(split_prefix(name)[1])
    if re.fullmatch(_OF_SYSTEMS, base):
        return None
    if name_file(name) != base:  # compressed
        return unpack_tar if base.lower().endswith(".tar") or _OPENWEBTEXT.fullmatch(base) else None
    return ARCHIVES.get(Path(base).suffix.lower())


def find_reader(name: str | Path) -> Reader | None:
    """Returns the reader of a file by its name; None where no reader takes it."""
    key = _find_key(str(name))
    return get_reader(key) if key else None


@lru_cache(1024)
def _find_key(name: str) -> str:
    """Returns the key of a file's reader; "" where there is none. It is called for each record, and so cached."""
    key, path = split_prefix(name)
    if name == PYTHON_DOCS or key:
        return key or name
    base = _strip(path)
    named = (key for key, reader in READERS.items() if reader.names and re.fullmatch(reader.names, base))
    suffix = Path(base).suffix.lower()
    reader_key = next(named, "") or ("" if is_companion(path) or suffix not in READERS else suffix)
    return "" if reader_key and is_compressed(path) and not READERS[reader_key].may_be_compressed else reader_key


@cache
def _load_reader(path: str) -> Reader:
    reader = getattr(load_python(path, f"the reader {path}"), "READER", None)
    if not isinstance(reader, Reader):
        raise KinspanError(f"the reader {path} defines no READER, which must be a Reader of readers/reader.py")
    return reader


def get_reader(key: str) -> Reader:
    """Returns the reader of a key of READERS, with or without its dot, or of a Python file. Raises KinspanError."""
    if key.endswith(".py"):
        return _load_reader(key)
    if reader := READERS.get(key) or READERS.get(f".{key}"):
        return reader
    raise KinspanError(f"--reader {key}: there is no such reader")


def is_companion(name: str, key: str = "") -> bool:
    """Tells whether a file is read together with another, or is no document beside one that is, for a reader or any."""
    readers = [get_reader(key)] if key else READERS.values()
    patterns = [_OF_SYSTEMS, *(p for reader in readers for p in (reader.companions, reader.ignored) if p)]
    return any(re.fullmatch(pattern, _strip(name)) for pattern in patterns)


def is_no_document(name: str) -> bool:
    """Tells whether a file, by its name or by that of a hidden folder, is passed over beside documents."""
    parts = re.split(r"/|::", split_prefix(name)[1])
    is_hidden = any(part.startswith(".") and part.strip(".") for part in parts[:-1])
    return is_hidden or bool(_NO_DOCUMENTS.fullmatch(Path(name).suffix) or _NO_DOCUMENT_NAMES.fullmatch(parts[-1]))


def find_obstacle(name: str) -> str:
    """Returns why a file cannot be read: its format is not known, or a library is missing; "" where it can."""
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
    """Cuts a file into parts for a task each; None is the whole file, also of an unknown size, which is 0."""
    reader = None if find_archive(name) else find_reader(name)
    return list(reader.split(split_prefix(name)[1], size)) if size and reader and reader.split else [None]


def open_input(name: str, size: int = 0) -> SourceFile:
    """Opens a file on a disk or behind a URL as a source; ``size`` is that of the latter."""

    def find_beside(beside: str) -> SourceFile | None:
        folder, slash, _ = path.rpartition("/")
        path_beside = folder + slash + beside
        if is_url(path_beside):
            import fsspec

            filesystem, inside = fsspec.url_to_fs(path_beside)
            return open_input(path_beside) if filesystem.exists(inside) else None
        return open_input(path_beside) if Path(path_beside).is_file() else None

    _, path = split_prefix(name)
    size = size or (Path(path).stat().st_size if Path(path).is_file() else 0)
    return SourceFile(name, lambda: open_file(path), find_beside, size)


def read_records(name: str | Path, part: FilePart | None = None, called: str = "", size: int = 0) -> Iterator[Record]:
    """Yields the raw records of a file, a part or an archive. Where it cannot be read on, the last is Unreadable."""
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
    except (KinspanError, MemoryError):  # the first already says what to do; the second says nothing of the file
        raise
    except Exception as error:  # truncated archives, broken parquet, permissions: each library has its own
        if isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT):  # of the disk here, not of the file
            folder = Path(tempfile.gettempdir())
            raise KinspanError(f"TMPDIR: {folder} cannot be written: {quote_error(error)}") from error
        reason = f"cannot read on: {type(error).__name__}: {quote_error(error)}"
        yield Record(source.name, line + 1, Unreadable(reason, estimate_text(source.name, source.size)))


def _read_member(member: SourceFile, number: int) -> Iterator[Record]:
    key = split_prefix(member.name)[0]
    if is_companion(member.name, key):
        return
    if member.is_link:
        reason: Rejected = Omitted("a link in an archive")
    elif not (obstacle := find_obstacle(member.name)) and member.name.count("::") <= MAX_DEPTH:
        yield from _read_source(member, None, member.name.rpartition("::")[2])
        return
    elif is_no_document(name_file(member.name)):
        reason = Omitted("a picture, a font, a style or a program", member.size)
    else:
        reason = Unreadable(obstacle or "too many archives in archives", estimate_text(member.name, member.size))
    yield Record(member.name, number, reason)


def parse_record(record: Record) -> list[Document]:
    """Returns the documents of a record. Raises Rejected where it holds none, and Omitted where it is to hold none."""
    if isinstance(record.content, Rejected):
        raise record.content
    reader = find_reader(record.file)
    assert reader is not None
    try:
        return reader.parse(record)
    except (Rejected, KinspanError, ImportError):
        raise
    except Exception as error:  # of the libraries that parse what people wrote
        raise Rejected(f"cannot be parsed: {type(error).__name__}: {quote_error(error)}") from error
