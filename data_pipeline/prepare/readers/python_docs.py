"""``python-docs``: the default corpus, the docstrings of Python and of the pinned packages, as paragraphs of English.

``python_docs.txt`` lists the packages and versions, so that the corpus does not depend on other installed ones. Files
are read as source text and never imported. A module is a document. A paragraph explains a subject in several sentences:
code, signatures, tables, headings, parameters and docstrings of one sentence, which joined read as a list, are dropped.
"""

import ast
import gc
import hashlib
import inspect
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

from data_pipeline.core.default_model import find_version
from data_pipeline.prepare.document import Document

from .reader import FilePart, Reader, SourceFile

SOURCE, _TOPICS = "python-docs", "pydoc_data.topics"
SOURCE_BYTES = 40_000_000  # pretended size: reading takes about as long as this many bytes of other formats
MAX_FILE_BYTES = 2_000_000  # a larger file is a generated table
MAX_CHARS_PER_QUOTE = 10_000  # per triple quote: a file with fewer quotes is not parsed
MIN_ARGUMENT = 200  # characters from which a string argument of a call is documentation

_STDLIB = Path(sysconfig.get_path("stdlib")).resolve()
_ROOTS = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
_SKIPPED_DIRS = {
    *("test", "tests", "idle_test", "_vendor", "_vendored", "__pycache__", "site-packages", "dist-packages"),
    *("ensurepip", "idlelib", "lib2to3", "turtledemo"),  # not every system installs these with Python
}


def read_pins() -> dict[str, str]:
    """Reads the packages of the corpus, and the version of each."""
    lines = Path(__file__).with_name("python_docs.txt").read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@cache
def find_versions() -> dict[str, str]:
    """Returns the installed version of each package of the corpus; "" if it is not installed."""
    return {name: (find_version(name) or "").partition("+")[0] for name in read_pins()}  # torch adds +DEVICE


def format_versions() -> str:
    """Formats the versions of Python and of the packages."""
    python = ".".join(map(str, sys.version_info[:3]))
    return "; ".join([f"python {python}", *(f"{name} {version}" for name, version in find_versions().items())])


def find_source_files(number: int) -> list[Path]:
    """Lists the Python files of the standard library (0) or of a package (from 1 on), sorted, without tests."""
    if number == 0:
        entries = [(path, path.relative_to(_STDLIB).parts) for path in _STDLIB.rglob("*.py")]
    else:
        name, version = list(find_versions().items())[number - 1]
        files = distribution(name).files or [] if version else []
        entries = [(Path(str(file.locate())), file.parts) for file in files if file.suffix == ".py"]
    return sorted(path for path, parts in entries if not _SKIPPED_DIRS.intersection(parts))


def _name_module(path: Path) -> str:
    path = path.resolve()
    top = next((parent for parent in path.parents if parent in _ROOTS), None)
    top = top or next(parent for parent in path.parents if not (parent / "__init__.py").exists())
    return ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__")


def _find_docstrings(node: ast.AST) -> Iterator[str]:
    """Yields each string that is a statement, and long ones in calls at the top of a module."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            value = child.value if isinstance(child, ast.Expr) else None
            if value is None:
                yield from _find_docstrings(child)
            elif isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value
            elif isinstance(value, ast.Call) and isinstance(node, ast.Module):  # as NumPy documents C functions
                arguments = [part.value for part in ast.walk(value) if isinstance(part, ast.Constant)]
                yield from (str(text) for text in arguments if len(str(text)) > MIN_ARGUMENT)


def _parse_texts(path: Path) -> dict[str, list[str]]:
    """Returns the texts of each document of a file."""
    name = _name_module(path)
    source = path.read_text("utf-8-sig") if path.stat().st_size <= MAX_FILE_BYTES else ""
    if name != _TOPICS and len(re.findall(r"\"{3}|'{3}", source)) < len(source) // MAX_CHARS_PER_QUOTE:
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
    """Returns the texts of a file's documents, usually one, by name; none if it cannot be parsed."""
    was_enabled = gc.isenabled()
    gc.disable()  # a syntax tree has no cycles, and collecting garbage would walk it again and again
    try:
        return _parse_texts(path)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    finally:
        if was_enabled:
            gc.enable()


# Docstrings ----------------------------------------------------------------------------------------------

MIN_SUMMARY, MIN_UNSTOPPED = 25, 80  # characters: shorter sentences without a full stop are dropped
MIN_PARAGRAPH, SHORT_BLOCK, MAX_JOINED = 80, 320, 1200  # characters: short blocks are joined to paragraphs
MIN_SENTENCES = 2

_ITEM = re.compile(r"^(?:[-*+•‣>]|#\.|\(?(?:\d{1,2}|[a-z])[.)]) +(\S.*(?:\n +\S.*)*)", re.M)
_REPLACED: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"^( *)```(?!.*```)(?:.*\n)*?(?: *```.*|\Z)", re.M), ""),  # fenced code
    (re.compile(  # sections of a NumPy docstring, up to the next heading
        r"^(?:(?:.* )?(?:examples?|usage)|references?|see also|raises?|warns|methods|parameters|returns?|yields?"
        r"|attributes|notation|shapes?|todo|authors?|licen[cs]e)\n(?:-{3,}|={3,})\n"
        r"(?:(?!.+\n(?:-{3,}|={3,})$).*\n)*", re.M | re.I
    ), ""),
    (re.compile(r"^\S.*\n([=\-~^*#\"'+`_.:])\1{2,}$", re.M), "\n"),  # headings
    (_ITEM, lambda match: f"\n{' '.join(match[1].split())}\n"),  # items of lists
]  # fmt: skip
# Lines of code, parameters and tables; a block with such a line is dropped
_NOT_TEXT = re.compile(r">>>|[|+─│┌├└=]|.* \||.*(?:[\w,)] {4,}|\S {3,}\S.*?\S {3,})\S")
_ENTRY = re.compile(  # the beginning of a block about a parameter, directive or error
    r":\w[^:]*:(?:\s|$)|\.\.(?:\s|$)|[\w.,*`\[\]/() ]{1,60}? : |\w+(?:Error|Exception|Warning):\s"
    r"|[`*\"']*(?:[a-z_][\w.]*|[A-Z]\w?)[`*\"']*(?:\s*\(.*\))?\s*(?::|--|–)(?:\s|$)|[`*]*\w+[`*]*\s*\(.*\)\s*:(?:\s|$)"
)


def split_blocks(docstring: str) -> Iterator[str]:
    """Yields the blocks of running text, and each item of a list, but no indented block, such as code."""
    text = "".join(line.rstrip() + "\n" for line in inspect.cleandoc(docstring).split("\n"))
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    for block in re.split(r"\n{2,}", text):
        lines = block.strip("\n").split("\n")
        if not _ENTRY.match(lines[0]) and not any(line.startswith(" ") or _NOT_TEXT.match(line) for line in lines):
            yield " ".join(lines)


_MARKUP = re.compile(r"[`*$~|]|__|\]\(|\]_")  # every match of _INLINE has one of these
_INLINE = [
    (re.compile(r"(?<!\w):(?:[\w+.-]+:){1,2}`[~!]?([^`]+?)(?:\s*<[\w.~:/#-]{5,}>)?`"), r"\1"),  # :class:`Foo`
    (re.compile(r"\[[^\[\]`]+\?\]\([^()\s]*\)"), ""),  # a linked question is navigation
    (re.compile(r"!?\[`?[~!]?([^\[\]`]+)`?\](?:\([^()\s]*\)|\[[\w.]*\])"), r"\1"),  # [text](url)
    (re.compile(r"\[`[~!]?([\w.]+)`\]"), r"\1"),  # [`~Foo`]
    (re.compile(r"`([^`<>]+?)\s*<[^`<>\s]+>`__?"), r"\1"),  # `text <url>`_
    (re.compile(r"(?:\s+(?:in|by|see|from|of|and|also))*\s*\[(?:\d+|[A-Z]\w*\d+|#\w*)\]_"), ""),
    (re.compile(r"`([\w.-]+)'"), r"\1"),  # old-style quotation marks
    (re.compile(r"(`+)([^`]+)\1_{0,2}"), r"\2"),
    (re.compile(r"(?<![\w*])(\*{1,2})(?=[\w\[<])([^*]+?)\1(?![\w*])"), r"\2"),
    (re.compile(r"\$([\w, ()+=<>.'-]+)\$|(?<!<)\|([\w. -]+)\|(?!>)"), r"\1\2"),  # $n$ and |substitution|
    (re.compile(r"\\([*_`|])|(?<!\w)~(?=[A-Za-z])"), r"\1"),
]
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\w\.\w\.)(?<!cf\.)(?<!vs\.)\s+(?=[\"'(\[<]?[A-Z0-9])")
_UNREADABLE = re.compile(  # every alternative begins with a literal, so that the search is fast
    r"://|www\.|[{}^~\\$]|\|(?!>)(?<!<\|)|%\(|[-=]>|[=<>!]=.*[=<>!]=|=\w.*\w=|\(\)\.|``"
    r"|et al[. ]|TODO|doi:|Default.{,40}$"
)
_LEGAL = re.compile(
    r"copyright|\(c\) [12]|license|permission is hereby|rights reserved|without warrant|redistribut|liable|©"
)
_ORPHAN = re.compile(r"[a-z]+,? |[,;.)]")  # continues after a formula or a code block
_NAMED = re.compile(r"[\w.*-]+(?: \([^)]*\))?: ")  # an entry such as "name (type): meaning"; several make a list
_PLAIN_WORD = re.compile(r"(?<!\S)[a-z'-]+[.,;:!?]?(?!\S)")
_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_COMMON_WORDS = (
    "a about after all also an and any are as at be been before being both but by can cannot could do does"
    " each for from given has have how if in into is it its may more most must no not of on one only or other"
    " out over same should so some such than that the their them then there these they this those to two use"
    " used using was we were what when where whether which while will with within would"
)
_COMMON = frozenset(_COMMON_WORDS.split())


def _reads_as_english(sentence: str) -> bool:
    words = _WORD.findall(sentence)
    if len(words) < 3 or _UNREADABLE.search(sentence):
        return False
    other_characters = len(sentence) - sentence.count(" ") - sum(map(len, words))
    common = sum(map(_COMMON.__contains__, map(str.lower, words)))
    is_text = other_characters <= 0.3 * len(sentence) and sum(map(str.isupper, words)) <= 0.4 * len(words)
    return is_text and common >= 0.15 * len(words)


def _drop_unfinished(sentences: list[str], is_summary: bool) -> list[str]:
    """Drops a last sentence without an end: a heading, or the introduction to something that was dropped."""
    last = sentences[-1]
    if last.endswith((".", "!", "?", ".)", '."', ".'", '?"')) and not last.endswith((".g.", ".e.", "..")):
        return sentences
    is_complete = last[-1:].isalnum() and len(last) > (MIN_SUMMARY if is_summary else MIN_UNSTOPPED)
    return [*sentences[:-1], last + "."] if is_complete else sentences[:-1]


def _extract_prose(raw: str, is_summary: bool) -> str:
    """Returns the sentences of a block that read as English; a docstring's first block is its summary."""
    text = raw
    for pattern, replacement in _INLINE if _MARKUP.search(raw) else ():
        text = pattern.sub(replacement, text)
    text = " ".join(text.split())
    if _LEGAL.search(text.lower()) or (_ORPHAN.match(raw) and not is_summary):
        return ""
    sentences = _drop_unfinished(_SENTENCE_END.split(text), is_summary)
    kept = [sentence for sentence in sentences if _reads_as_english(sentence)]
    prose = " ".join(kept)
    if len(prose) < 0.5 * len(text) or sum(_NAMED.match(sentence) is not None for sentence in kept) > 1:
        return ""
    return prose[0].upper() + prose[1:] if re.match(r"[a-z]+,? ", prose) else prose


def _join_short(blocks: Iterable[str]) -> list[str]:
    """Joins short neighbours, such as a summary and its explanation."""
    joined: list[str] = []
    for block in blocks:
        if joined and min(len(joined[-1]), len(block)) < SHORT_BLOCK and len(joined[-1]) + len(block) < MAX_JOINED:
            joined[-1] += " " + block
        else:
            joined.append(block)
    return joined


def extract_paragraphs(docstring: str, seen: set[bytes]) -> list[str]:
    """Extracts the paragraphs of English prose.

    seen: keys of the blocks of earlier docstrings, which are left out; this docstring's keys are added
    """
    prose: list[str] = []
    for index, text in enumerate(split_blocks(docstring)):
        block = _extract_prose(text, index == 0)
        # texts with the same plain lower-case words differ only in names and numbers, and count as equal
        key = hashlib.blake2b(" ".join(_PLAIN_WORD.findall(block)).encode(), digest_size=12).digest()
        if block and key not in seen:
            seen.add(key)
            prose.append(block)
    paragraphs = [paragraph for paragraph in _join_short(prose) if len(paragraph) >= MIN_PARAGRAPH]
    beginnings = [{sentence[:MIN_SUMMARY] for sentence in _SENTENCE_END.split(p)} for p in paragraphs]
    return [p for p, b in zip(paragraphs, beginnings, strict=True) if len(b) >= MIN_SENTENCES]  # else it is a list


def make_documents(parsed: dict[str, list[str]], seen: set[bytes]) -> Iterator[Document]:
    """Makes the documents of the texts of ``read_texts``; ``seen`` is as in ``extract_paragraphs``."""
    for title, texts in parsed.items():
        paragraphs = [paragraph for text in texts for paragraph in extract_paragraphs(text, seen)]
        if paragraphs:
            yield Document(title, title, paragraphs, SOURCE, is_parsed=True)


def _read(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, Document]]:
    """Yields the documents of the standard library and of each package, or of a part; each without repeated texts."""
    count = 0
    for number in range(part.begin, part.end) if part else range(1 + len(read_pins())):
        seen: set[bytes] = set()
        for path in find_source_files(number):
            for document in make_documents(read_texts(path), seen):
                count += 1
                yield count, document


READER = Reader(
    _read,
    lambda record: [record.content],
    split=lambda name, size: [FilePart(number, number + 1) for number in range(1 + len(read_pins()))],
)
