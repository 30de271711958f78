"""``python-docs``: the default corpus, the documentation of Python and of the pinned packages.

It lets the engine work offline, without any data of the user's own. Which packages it reads, and of which versions,
stands in ``python_docs.txt``, so that its figures do not move with what else is installed. Files are read as source
text and never imported, so that a module that is broken or has side effects does no harm. A module is a document. A
paragraph is what one docstring, or a part of a long one, says in English: the objectives need several sentences on one
subject.
"""

import ast
import gc
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from data_pipeline.prepare.document import Document

from .docstrings import extract_paragraphs
from .reader import FilePart, Reader, SourceFile

SOURCE, _TOPICS = "python-docs", "pydoc_data.topics"
SOURCE_BYTES = 40_000_000  # about how much work it is to read, as bytes of other formats
MAX_FILE_BYTES = 2_000_000  # a larger file is a generated table
UNDOCUMENTED_SIZE = 10_000  # characters per triple quote: a file with fewer of them is not worth parsing
MIN_PASSED = 200  # characters: a shorter string in a call is an argument, not documentation

_STDLIB = Path(sysconfig.get_path("stdlib")).resolve()
_ROOTS = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
_SKIPPED_DIRS = {
    *("test", "tests", "idle_test", "_vendor", "_vendored", "__pycache__", "site-packages", "dist-packages"),
    *("ensurepip", "idlelib", "lib2to3", "turtledemo"),  # which not every system installs with Python
}


def read_pins() -> dict[str, str]:
    """Read which packages belong to the corpus, and of which version."""
    lines = Path(__file__).with_name("python_docs.txt").read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@cache
def find_versions() -> dict[str, str]:
    """Find the installed version of each of them; "" where it is not installed."""
    found = {}
    for name in read_pins():
        try:
            found[name] = distribution(name).version.partition("+")[0]  # a build of torch says its device after a +
        except PackageNotFoundError:
            found[name] = ""
    return found


def describe_versions() -> str:
    """Name the versions that the corpus is read from: it is the same where they are."""
    python = ".".join(map(str, sys.version_info[:3]))
    return "; ".join([f"python {python}", *(f"{name} {version}" for name, version in find_versions().items())])


def describe_differences() -> str:
    """Say which packages are of another version than the corpus is meant for; nothing where none is."""
    pins = read_pins()
    other = [f"{name} {v or 'missing'} (not {pins[name]})" for name, v in find_versions().items() if v != pins[name]]
    return ", ".join(other)


def find_source_files(number: int) -> list[Path]:
    """List the Python files of the standard library (0), or of a package (from 1 on); sorted, without tests."""
    if number == 0:
        found = [(path, path.relative_to(_STDLIB).parts) for path in _STDLIB.rglob("*.py")]
    else:
        name, version = list(find_versions().items())[number - 1]
        files = distribution(name).files or [] if version else []
        found = [(Path(str(file.locate())), file.parts) for file in files if file.suffix == ".py"]
    return sorted(path for path, parts in found if not _SKIPPED_DIRS.intersection(parts))


def _name_module(path: Path) -> str:
    path = path.resolve()
    top = next((parent for parent in path.parents if parent in _ROOTS), None)
    top = top or next(parent for parent in path.parents if not (parent / "__init__.py").exists())
    return ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__")


def _find_docstrings(node: ast.AST) -> Iterator[str]:
    """Yield each string that stands as a statement."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            value = child.value if isinstance(child, ast.Expr) else None
            if value is None:
                yield from _find_docstrings(child)
            elif isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value
            elif isinstance(value, ast.Call) and isinstance(node, ast.Module):  # as NumPy documents C functions
                passed = [part.value for part in ast.walk(value) if isinstance(part, ast.Constant)]
                yield from (str(text) for text in passed if len(str(text)) > MIN_PASSED)


def _parse_texts(path: Path) -> dict[str, list[str]]:
    """Parse a file to the texts of each of its documents."""
    name = _name_module(path)
    source = path.read_text("utf-8-sig") if path.stat().st_size <= MAX_FILE_BYTES else ""
    if name != _TOPICS and len(re.findall(r"\"{3}|'{3}", source)) < len(source) // UNDOCUMENTED_SIZE:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        tree = ast.parse(source)
    if name != _TOPICS:
        return {name: list(_find_docstrings(tree))}
    tables = [value for node in tree.body if isinstance(value := getattr(node, "value", None), ast.Dict)]
    topics = {topic: text for table in tables for topic, text in ast.literal_eval(table).items()}
    return {f"{name}.{topic}": [topics[topic]] for topic in sorted(topics)}


def read_texts(path: Path) -> dict[str, list[str]]:
    """Read the texts of each document of a source file, by the document's name; none where it cannot be parsed.

    A file is usually one document. The help topics of pydoc are one each.
    """
    collecting = gc.isenabled()
    gc.disable()  # a syntax tree has no cycles, and the collector would walk it again and again
    try:
        return _parse_texts(path)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    finally:
        if collecting:
            gc.enable()


def make_documents(parsed: dict[str, list[str]], seen: set[bytes]) -> Iterator[Document]:
    """Make the documents of what ``read_texts`` read; ``seen`` is as in ``extract_paragraphs``."""
    for title, texts in parsed.items():
        paragraphs = [paragraph for text in texts for paragraph in extract_paragraphs(text, seen)]
        if paragraphs:
            yield Document(title, title, paragraphs, SOURCE)


def _read(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, Document]]:
    """Read the standard library and the packages, or those of a part. In each, a text comes once."""
    line = 0
    for number in range(part.begin, part.end) if part else range(1 + len(read_pins())):
        seen: set[bytes] = set()
        for path in find_source_files(number):
            for document in make_documents(read_texts(path), seen):
                line += 1
                yield line, document


def _split(name: str, size: int) -> list[FilePart]:
    return [FilePart(number, number + 1) for number in range(1 + len(read_pins()))]


READER = Reader(_read, lambda record: [record.content], split=_split)
