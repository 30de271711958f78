"""``python-docs``: the default corpus, the docstrings of Python and of the pinned packages, as paragraphs of English.

It lets the engine work offline, without any data of the user's own. ``python_docs.txt`` has the packages and versions,
so that its figures do not move with what else is installed. Files are read as source text and never imported. A module
is a document. A paragraph is what explains a subject in several sentences: code, signatures, tables, headings and
markup go; so do descriptions of parameters and returned values, and docstrings of one sentence, which side by side are
a list.
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
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from data_pipeline.prepare.document import Document

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
    """Reads which packages belong to the corpus, and of which version."""
    lines = Path(__file__).with_name("python_docs.txt").read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@cache
def find_versions() -> dict[str, str]:
    """Returns the installed version of each; "" where it is not installed."""
    entries = {}
    for name in read_pins():
        try:
            entries[name] = distribution(name).version.partition("+")[0]  # a build of torch says its device after a +
        except PackageNotFoundError:
            entries[name] = ""
    return entries


def format_versions() -> str:
    """Lists the versions that the corpus is read from."""
    python = ".".join(map(str, sys.version_info[:3]))
    return "; ".join([f"python {python}", *(f"{name} {version}" for name, version in find_versions().items())])


def find_source_files(number: int) -> list[Path]:
    """Lists the Python files of the standard library (0), or of a package (from 1 on); sorted, without tests."""
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
    """Yields each string that stands as a statement."""
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
    """Parses a file to the texts of each of its documents."""
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
    """Reads the texts of a file's documents, usually one, by their names; none where it cannot be parsed."""
    collecting = gc.isenabled()
    gc.disable()  # a syntax tree has no cycles, and the collector would walk it again and again
    try:
        return _parse_texts(path)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    finally:
        if collecting:
            gc.enable()


# Docstrings ----------------------------------------------------------------------------------------------

SHORT_SUMMARY, LONG_HEADING = 25, 80  # characters: only a longer sentence may lack its full stop
MIN_PARAGRAPH, SHORT, LONG = 80, 320, 1200  # characters: short paragraphs are joined up to LONG
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
# Lines of code, parameters, tables: their block goes
_NOT_TEXT = re.compile(r">>>|[|+─│┌├└=]|.* \||.*(?:[\w,)] {4,}|\S {3,}\S.*?\S {3,})\S")
_ENTRY = re.compile(  # a parameter, directive or error, which the rest of the block describes
    r":\w[^:]*:(?:\s|$)|\.\.(?:\s|$)|[\w.,*`\[\]/() ]{1,60}? : |\w+(?:Error|Exception|Warning):\s"
    r"|[`*\"']*(?:[a-z_][\w.]*|[A-Z]\w?)[`*\"']*(?:\s*\(.*\))?\s*(?::|--|–)(?:\s|$)|[`*]*\w+[`*]*\s*\(.*\)\s*:(?:\s|$)"
)


def split_blocks(docstring: str) -> Iterator[str]:
    """Yields the blocks of running text, items of lists apart; none that is indented, as code and parameters are."""
    text = "".join(line.rstrip() + "\n" for line in inspect.cleandoc(docstring).split("\n"))
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    for block in re.split(r"\n{2,}", text):
        lines = block.strip("\n").split("\n")
        if not _ENTRY.match(lines[0]) and not any(line.startswith(" ") or _NOT_TEXT.match(line) for line in lines):
            yield " ".join(lines)


_MARKUP = re.compile(r"[`*$~|]|__|\]\(|\]_")  # what the patterns below need
_INLINE = [
    (re.compile(r"(?<!\w):(?:[\w+.-]+:){1,2}`[~!]?([^`]+?)(?:\s*<[\w.~:/#-]{5,}>)?`"), r"\1"),  # :class:`Foo`
    (re.compile(r"\[[^\[\]`]+\?\]\([^()\s]*\)"), ""),  # a question that links is navigation
    (re.compile(r"!?\[`?[~!]?([^\[\]`]+)`?\](?:\([^()\s]*\)|\[[\w.]*\])"), r"\1"),  # [text](url)
    (re.compile(r"\[`[~!]?([\w.]+)`\]"), r"\1"),  # [`~Foo`]
    (re.compile(r"`([^`<>]+?)\s*<[^`<>\s]+>`__?"), r"\1"),  # `text <url>`_
    (re.compile(r"(?:\s+(?:in|by|see|from|of|and|also))*\s*\[(?:\d+|[A-Z]\w*\d+|#\w*)\]_"), ""),
    (re.compile(r"`([\w.-]+)'"), r"\1"),  # the old way to quote
    (re.compile(r"(`+)([^`]+)\1_{0,2}"), r"\2"),
    (re.compile(r"(?<![\w*])(\*{1,2})(?=[\w\[<])([^*]+?)\1(?![\w*])"), r"\2"),
    (re.compile(r"\$([\w, ()+=<>.'-]+)\$|(?<!<)\|([\w. -]+)\|(?!>)"), r"\1\2"),  # $n$ and |substitution|
    (re.compile(r"\\([*_`|])|(?<!\w)~(?=[A-Za-z])"), r"\1"),
]
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\w\.\w\.)(?<!cf\.)(?<!vs\.)\s+(?=[\"'(\[<]?[A-Z0-9])")
_UNREADABLE = re.compile(  # every alternative begins with a literal, which makes the search fast
    r"://|www\.|[{}^~\\$]|\|(?!>)(?<!<\|)|%\(|[-=]>|[=<>!]=.*[=<>!]=|=\w.*\w=|\(\)\.|``"
    r"|et al[. ]|TODO|doi:|Default.{,40}$"
)
_LEGAL = re.compile(
    r"copyright|\(c\) [12]|license|permission is hereby|rights reserved|without warrant|redistribut|liable|©"
)
_ORPHAN = re.compile(r"[a-z]+,? |[,;.)]")  # continues after a formula or a code block
_NAMED = re.compile(r"[\w.*-]+(?: \([^)]*\))?: ")  # one of a list of names, each with what it means
_PLAIN_WORD = re.compile(r"(?<!\S)[a-z'-]+[.,;:!?]?(?!\S)")
_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_COMMON_WORDS = (
    "a about after all also an and any are as at be been before being both but by can cannot could do does"
    " each for from given has have how if in into is it its may more most must no not of on one only or other"
    " out over same should so some such than that the their them then there these they this those to two use"
    " used using was we were what when where whether which while will with within would"
)
_COMMON = frozenset(_COMMON_WORDS.split())


def _strip_markup(text: str) -> str:
    for pattern, replacement in _INLINE if _MARKUP.search(text) else ():
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


def _reads_as_english(sentence: str) -> bool:
    words = _WORD.findall(sentence)
    if len(words) < 3 or _UNREADABLE.search(sentence):
        return False
    other_characters = len(sentence) - sentence.count(" ") - sum(map(len, words))
    common = sum(map(_COMMON.__contains__, map(str.lower, words)))
    is_text = other_characters <= 0.3 * len(sentence) and sum(map(str.isupper, words)) <= 0.4 * len(words)
    return is_text and common >= 0.15 * len(words)


def _drop_unfinished(sentences: list[str], may_lack_stop: bool) -> list[str]:
    """Drops a last sentence that does not end: it is a heading, or leads in to what was dropped."""
    last = sentences[-1]
    if last.endswith((".", "!", "?", ".)", '."', ".'", '?"')) and not last.endswith((".g.", ".e.", "..")):
        return sentences
    complete = last[-1:].isalnum() and len(last) > (SHORT_SUMMARY if may_lack_stop else LONG_HEADING)
    return [*sentences[:-1], last + "."] if complete else sentences[:-1]


def _extract_prose(raw: str, is_first: bool) -> str:
    """Keeps the sentences of a block that read as English. A summary may lack its full stop."""
    text = _strip_markup(raw)
    if _LEGAL.search(text.lower()) or (_ORPHAN.match(raw) and not is_first):
        return ""
    sentences = _drop_unfinished(_SENTENCE_END.split(text), is_first)
    kept = [sentence for sentence in sentences if _reads_as_english(sentence)]
    prose = " ".join(kept)
    if len(prose) < 0.5 * len(text) or sum(_NAMED.match(sentence) is not None for sentence in kept) > 1:
        return ""
    return prose[0].upper() + prose[1:] if re.match(r"[a-z]+,? ", prose) else prose


def _join_short(blocks: Iterable[str]) -> list[str]:
    """Joins short neighbours: a summary belongs with what explains it."""
    packed: list[str] = []
    for block in blocks:
        if packed and min(len(packed[-1]), len(block)) < SHORT and len(packed[-1]) + len(block) < LONG:
            packed[-1] += " " + block
        else:
            packed.append(block)
    return packed


def extract_paragraphs(docstring: str, seen: set[bytes]) -> list[str]:
    """Extracts the paragraphs of English prose.

    seen: keys of the blocks of earlier docstrings, which are left out; those of this one are added
    """
    prose: list[str] = []
    for position, text in enumerate(split_blocks(docstring)):
        block = _extract_prose(text, position == 0)
        # texts with the same plain lower-case words differ in names and numbers alone, and count as one
        key = hashlib.blake2b(" ".join(_PLAIN_WORD.findall(block)).encode(), digest_size=12).digest()
        if block and key not in seen:
            seen.add(key)
            prose.append(block)
    return [p for p in _join_short(prose) if len(p) >= MIN_PARAGRAPH and not _is_list(p)]


def _is_list(paragraph: str) -> bool:
    """Tells whether too few sentences begin differently."""
    return len({sentence[:SHORT_SUMMARY] for sentence in _SENTENCE_END.split(paragraph)}) < MIN_SENTENCES


def make_documents(parsed: dict[str, list[str]], seen: set[bytes]) -> Iterator[Document]:
    """Makes the documents of what ``read_texts`` read; ``seen`` is as in ``extract_paragraphs``."""
    for title, texts in parsed.items():
        paragraphs = [paragraph for text in texts for paragraph in extract_paragraphs(text, seen)]
        if paragraphs:
            yield Document(title, title, paragraphs, SOURCE)


def _read(source: SourceFile, part: FilePart | None) -> Iterator[tuple[int, Document]]:
    """Reads the standard library and the packages, or those of a part. In each, a text comes once."""
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
