"""The embedded default corpus: the documentation that comes with Python and the installed packages.

It lets the engine work offline with no data of the user's.  Files are read as source text and never
imported, so a broken or side-effectful module costs nothing.  A module is a document.  A paragraph is what
one docstring, or a part of a long one, says in English: the objectives need several sentences on one thing.
"""

import ast
import functools
import gc
import hashlib
import inspect
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from data_pipeline.document import Document

SOURCE = "python-docs"
MAX_FILE_BYTES = 2_000_000  # larger files are generated tables
UNDOCUMENTED_SIZE = 10_000  # a longer file with hardly a docstring is not worth the parse
MIN_PASSED_STRING = 200  # shorter strings in calls are arguments, not documentation
MIN_ENTRY_WORDS = 10  # of a parameter's description in one sentence; shorter ones have no verb
SHORT_SUMMARY, LONG_HEADING = 25, 80  # characters: a sentence may lack its full stop only above these
MIN_PARAGRAPH, ONE_LINER, SHORT, LONG = 40, 110, 320, 1200  # characters: short paragraphs join up to LONG

_SKIPPED_DIRS = {"test", "tests", "idle_test", "_vendor", "_vendored", "__pycache__", "site-packages"}

# Lines ----------------------------------------------------------------------------------------------------

_UNDERLINE = re.compile(r"([=\-~^*#\"'+`_.:])\1{2,}$")
_COLUMNS = re.compile(r"\S(   +|\t)\S.*\S(   +|\t)\S|[\w,)] {4,}\S|[=\-]{3,}\s+[=\-]{3}")
_DIRECTIVE = re.compile(r"\.\.(?:\s|$)\s*(?:(note|warning|tip|important|caution|attention|hint|admonition)::)?")
_HTML_LINE = re.compile(r"(</?(tip|hfoptions?|div|p|pre|br|table|tr|td|ul|ol|li)\b[^>]*>|\[\[[\w.-]*\]\])+$", re.I)
_DROPPED_SECTION = re.compile(
    r"((usage |example )?(examples?|usage)|references?|see also|raises?|warns|methods|citation|(doc)?tests?"
    r"|licen[cs]e|authors?|todo|notation|shapes?|index)$", re.I)


def _is_layout(line: str) -> bool:
    """Whether it is a rule, a row of a table, a drawing or a line of HTML."""
    if line.startswith(("|", "+", "─", "│", "┌", "├", "└")) or line.endswith(" |"):
        return True
    spaced = "  " in line or "\t" in line or line.startswith(("=", "-"))
    return bool(_UNDERLINE.match(line) or _HTML_LINE.match(line) or (spaced and _COLUMNS.search(line)))


def _visible_lines(text: str) -> Iterator[tuple[int, str]]:
    """(indentation, text) of the lines that are no code, table or dropped section; the others as (0, "")."""
    lines = [*text.split("\n"), ""]
    fenced = doctest = dropped = False
    hidden_below = -1  # hide what is indented deeper than this; -1: nothing
    for line, following in zip(lines, lines[1:], strict=False):
        body = line.strip()
        indent = len(line) - len(line.lstrip())
        doctest = bool(body) and (doctest or body.startswith(">>>"))
        fence = body.startswith(("```", "~~~")) and body[:3] not in body[3:]
        fenced ^= fence
        if not body or fence or fenced or doctest or 0 <= hidden_below < indent:
            yield 0, ""
            continue
        hidden_below = -1
        name = body.rstrip(":")
        if _UNDERLINE.match(following.strip()) and not _UNDERLINE.match(body):  # a heading
            dropped = bool(_DROPPED_SECTION.match(name))
            body = ""
        elif directive := _DIRECTIVE.match(body):
            hidden_below = -1 if directive[1] else indent
            body = body[directive.end() :].strip() if directive[1] else ""
        elif body != name and _DROPPED_SECTION.match(name):
            hidden_below = indent
            body = ""
        elif body.endswith("::"):
            hidden_below = indent
            body = name.rstrip() + ":"
        yield (0, "") if dropped or _is_layout(body) else (indent, body)


# Blocks ---------------------------------------------------------------------------------------------------

_BULLET = re.compile(r"([-*+•‣]|#\.|\(?(?:\d{1,2}|[a-z])[.)])\s+(?=\S)")
_SECTION = re.compile(
    r"(?:((?:(?:keyword|other|optional|required|positional|model|class|input|output)\s)?"
    r"(?:args?|arguments?|params?|parameters|attributes|returns?|yields?|inputs?|outputs?|fields|options|kwargs))"
    r"|(?:notes?|warnings?|description|summary|details|overview|tips?|important))\s*:$", re.I)
_ENTRY = re.compile(
    r":(?P<field>\w+)[^:]*:(?:\s+|$)"  # :param int x: text
    r"|(?P<numpy>[\w.,*`\[\]/() ]{1,60}? : )"  # x : int, optional
    r"|[`*\"']*(?:[a-z_][\w.]*|[A-Z]\w?)[`*\"']*(?:\s*\((?:[^()]|\([^()]*\))*\))?\s*(?::|--|–)(?:\s+|$)"  # x (int):
    r"|[`*]*\w+[`*]*\s*\(.*\)\s*:(?:\s+|$)"
    r"|\w+(?P<raised>Error|Exception|Warning):\s")
_FIELDS_WITH_TEXT = {None, "param", "parameter", "arg", "argument", "return", "returns", "keyword", "key", "var"}


class _Blocks:
    """Splits a docstring's lines to blocks of running text; ``done`` holds (is it on a parameter, text)."""

    def __init__(self, docstring: str) -> None:
        self.done: list[tuple[bool, str]] = []
        self._lines: list[str] = []
        self._indent = 0  # of the block's first line
        self._entry_indent = -1  # of the parameter whose description we are in; -1: none
        for indent, body in [*_visible_lines(inspect.cleandoc(docstring)), (0, "")]:
            self._add(indent, body)

    def _start(self, indent: int, body: str, is_entry: bool = False) -> None:
        if self._lines:
            self.done.append((self._entry_indent >= 0, " ".join(self._lines)))
        self._entry_indent = indent if is_entry else self._entry_indent
        self._indent = indent
        self._lines = [body] if body else []

    def _add(self, indent: int, body: str) -> None:
        if left_entry := bool(body) and indent <= self._entry_indent:
            self._start(indent, "")
            self._entry_indent = -1
        bullet = _BULLET.match(body)
        body = body[bullet.end() :] if bullet else body
        may_be_entry = bullet or left_entry or not self._lines or body.startswith(":")
        if section := _SECTION.match(body):
            self._start(indent, "", is_entry=bool(section[1]))
        elif may_be_entry and (entry := _ENTRY.match(body)):
            textless = entry["numpy"] or entry["raised"] or entry["field"] not in _FIELDS_WITH_TEXT
            self._start(indent, "" if textless else body[entry.end() :], is_entry=True)
        elif not body or bullet or not self._lines or indent < self._indent:
            self._start(indent, body)
        elif indent > self._indent and self._lines[-1].endswith(":"):
            self._start(indent, body)  # a list or code that a lead-in announces
        elif indent > self._indent and self.done and self._is_term():
            self._lines = []
            self._start(self._indent, body, is_entry=True)
        else:
            self._lines.append(body)

    def _is_term(self) -> bool:
        """Whether the block so far is the term of a definition list."""
        term = self._lines[0]
        return len(self._lines) == 1 and len(term) < 60 and term[-1] not in ".,;:" and term.count(" ") < 6


# Prose ----------------------------------------------------------------------------------------------------

_MARKUP = re.compile(r"[`*$~|]|__|\]\(|\]_")  # what the patterns below need
_INLINE = [
    (re.compile(r"(?<!\w):(?:[\w+.-]+:){1,2}`[~!]?([^`]+?)(?:\s*<[^`<>\s]*>)?`"), r"\1"),  # :class:`Foo`
    (re.compile(r"\[[^\[\]`]+\?\]\([^()\s]*\)"), ""),  # a question that links is navigation
    (re.compile(r"\[`?([^\[\]`]+)`?\]\[[\w.]*\]"), r"\1"),  # [text][target]
    (re.compile(r"!?\[`?[~!]?([^\[\]`]+)`?\]\([^()\s]*\)"), r"\1"),  # [text](url)
    (re.compile(r"\[`[~!]?([\w.]+)`\]"), r"\1"),  # [`~Foo`]
    (re.compile(r"`([^`<>]+?)\s*<[^`<>\s]+>`__?"), r"\1"),  # `text <url>`_
    (re.compile(r"(?:\s+(?:in|by|see|from|of|and|also|e\.g\.))*\s*\[(?:\d+|[A-Z]\w*\d+|#\w*)\]_"), ""),  # footnotes
    (re.compile(r"`([\w.-]+)'"), r"\1"),  # the old way to quote
    (re.compile(r"(`+)([^`]+)\1_{0,2}"), r"\2"),
    (re.compile(r"(?<![\w*])(\*{1,2})(?=[\w\[<])([^*]+?)\1(?![\w*])"), r"\2"),
    (re.compile(r"(?<![\w_])__(?=[A-Z])([^_]+)__(?!\w)"), r"\1"),
    (re.compile(r"\$([\w, ()+=<>.'-]+)\$|\|([\w. -]+)\|"), r"\1\2"),  # $n$ and |substitution|
    (re.compile(r"\\([*_`|])|(?<!\w)~(?=[A-Za-z])"), r"\1"),
]
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\w\.\w\.)(?<!cf\.)(?<!vs\.)(?<!Eq\.)\s+(?=[\"'(\[<]?[A-Z0-9])")
_UNREADABLE = re.compile(  # every branch begins with a literal: that makes the search fast
    r"://|www\.|[{}|^~\\$]|%\(|[-=]>|[=<>!]=.*[=<>!]=|=\w.*\w=|\(\)\.|``|et al\b|TODO|doi\b|Defaults?\b.{,40}$")
_LEGAL = (
    "copyright", "(c) 1", "(c) 2", "license", "permission is hereby", "all rights reserved", "without warrant",
    "redistribut", "liable for", "this software is", "©")
_ORPHAN = re.compile(r"[a-z]+,? |[,;.)]")  # goes on from a formula or a code block
_TYPE_PREFIX = re.compile(r"^\(?[\w.]+(\[.*?\]+)?\)?( of shape \([^)]*\))?: ")  # of a returned value
_PLAIN_WORD = re.compile(r"(?<!\S)[a-z'-]+[.,;:!?]?(?!\S)")
_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_COMMON = frozenset(
    "a about after all also an and any are as at be because been before being both but by can cannot could do does"
    " each either for from given has have how if in into is it its may more most must no not of on one only or"
    " other otherwise out over same should so some such than that the their them then there these they this those"
    " to two under up use used uses using was we were what when where whether which while will with within without"
    " would you your".split())


def _plain(text: str) -> str:
    """The text without inline markup."""
    if _MARKUP.search(text):
        for pattern, replacement in _INLINE:
            text = pattern.sub(replacement, text)
    return " ".join(text.split())


def _reads_as_english(sentence: str) -> bool:
    words = _WORD.findall(sentence)
    if len(words) < 3 or _UNREADABLE.search(sentence):
        return False
    other_characters = len(sentence) - sentence.count(" ") - sum(map(len, words))
    common = sum(map(_COMMON.__contains__, map(str.lower, words)))
    shouted = sum(map(str.isupper, words))
    return other_characters <= 0.3 * len(sentence) and common >= 0.15 * len(words) and shouted <= 0.4 * len(words)


def _finished(sentences: list[str], may_lack_stop: bool) -> list[str]:
    """The sentences less a last one that does not end: a heading, or a lead-in to what was dropped."""
    last = sentences[-1]
    if last.endswith((".", "!", "?", ".)", '."', ".'", '?"')) and not last.endswith((".g.", ".e.", "..")):
        return sentences
    complete = last[-1:].isalnum() and len(last) > (SHORT_SUMMARY if may_lack_stop else LONG_HEADING)
    return [*sentences[:-1], last + "."] if complete else sentences[:-1]


def _prose(raw: str, is_entry: bool, is_first: bool) -> str:
    """The sentences of a block that read as English, or ""."""
    text = _TYPE_PREFIX.sub("", _plain(raw)) if is_entry else _plain(raw)
    lowered = text.lower()
    if any(word in lowered for word in _LEGAL) or not (is_entry or is_first or not _ORPHAN.match(raw)):
        return ""
    # summaries and descriptions often go without their full stop
    sentences = _finished(_SENTENCE_END.split(text), is_first or is_entry)
    kept = [sentence for sentence in sentences if _reads_as_english(sentence)]
    prose = " ".join(kept)
    if len(prose) < 0.5 * len(text) or (is_entry and len(kept) < 2 and prose.count(" ") < MIN_ENTRY_WORDS):
        return ""
    return prose[0].upper() + prose[1:] if re.match(r"[a-z]+,? ", prose) else prose


def _pack(blocks: Iterable[str]) -> list[str]:
    """Joins short neighbours: a summary belongs with what explains it."""
    packed: list[str] = []
    for block in blocks:
        if packed and min(len(packed[-1]), len(block)) < SHORT and len(packed[-1]) + len(block) < LONG:
            packed[-1] += " " + block
        else:
            packed.append(block)
    return packed


def _is_fresh(block: str, seen: set[bytes]) -> bool:
    """Whether ``seen`` lacks its plain lower-case words: texts that differ by names and numbers are one."""
    key = hashlib.blake2b(" ".join(_PLAIN_WORD.findall(block)).encode(), digest_size=12).digest()
    return key not in seen and not seen.add(key)


def _fresh_paragraphs(docstring: str, seen: set[bytes]) -> list[str]:
    """The paragraphs of the blocks that are not in ``seen``, which takes them in."""
    prose: dict[bool, list[str]] = {False: [], True: []}
    for position, (is_entry, text) in enumerate(_Blocks(docstring).done):
        if (block := _prose(text, is_entry, position == 0)) and _is_fresh(block, seen):
            prose[is_entry].append(block)
    paragraphs = [*_pack(prose[False]), *_pack(prose[True])]
    return _pack(paragraphs) if sum(map(len, paragraphs)) < 2 * SHORT else paragraphs


def prose_paragraphs(docstring: str) -> list[str]:
    """The docstring's paragraphs of English prose: no code, signatures, tables, headings or markup."""
    return _fresh_paragraphs(docstring, set())


# Files ----------------------------------------------------------------------------------------------------

@functools.cache
def _roots() -> list[Path]:
    paths = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    return list(dict.fromkeys(paths))


def python_doc_files() -> list[Path]:
    """The Python files of the standard library, then of the installed packages; sorted, each once."""
    files: dict[Path, None] = {}
    for root in _roots():
        found = [path for path in root.rglob("*.py") if not _SKIPPED_DIRS.intersection(path.relative_to(root).parts)]
        files.update(dict.fromkeys(sorted(found)))
    return list(files)


def _module_name(path: Path) -> str:
    top = next((parent for parent in path.parents if parent in _roots()), None)
    top = top or next(parent for parent in path.parents if not (parent / "__init__.py").exists())
    name = ".".join(path.relative_to(top).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _docstrings(node: ast.AST, about: int) -> Iterator[tuple[int, str]]:
    """(id of the class or module that it is about, text) of the strings that stand as statements.

    The documentation of C functions is passed to calls at module level: long strings there count too.
    """
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            if not isinstance(child, ast.Expr):
                yield from _docstrings(child, id(child) if isinstance(child, ast.ClassDef) else about)
                continue
            parts = ast.walk(child.value) if isinstance(node, ast.Module) else (child.value,)
            for part in parts:
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    if part is child.value or len(part.value) >= MIN_PASSED_STRING:
                        yield (about if part is child.value else id(part)), part.value


def _parsed_texts(path: Path) -> dict[str, list[tuple[int, str]]]:
    """The texts of each document of the file, as ``_docstrings`` has them."""
    name = _module_name(path)
    source = path.read_text("utf-8-sig") if path.stat().st_size <= MAX_FILE_BYTES else ""
    quoted = re.split(r"\"{3}|'{3}", source)[1::2]
    if len(source) > UNDOCUMENTED_SIZE and sum(map(len, quoted)) < 0.02 * len(source):
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        tree = ast.parse(source)
    if name != "pydoc_data.topics":
        return {name: list(_docstrings(tree, id(tree)))}
    tables = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    topics = {topic: text for table in tables for topic, text in ast.literal_eval(table).items()}
    return {f"{name}.{topic}": [(0, topics[topic])] for topic in sorted(topics)}


def _texts(path: Path) -> dict[str, list[tuple[int, str]]]:
    collecting = gc.isenabled()
    gc.disable()  # a syntax tree has no cycles: the collector would walk it again and again for nothing
    try:
        return _parsed_texts(path)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    finally:
        if collecting:
            gc.enable()


def _documents(path: Path, seen: set[bytes]) -> Iterator[Document]:
    for title, texts in _texts(path).items():
        paragraphs = [""]
        last_about = 0
        for about, text in texts:
            fresh = _fresh_paragraphs(text, seen)
            if fresh and about == last_about and min(len(paragraphs[-1]), len(fresh[0])) < ONE_LINER:
                if len(paragraphs[-1]) < SHORT:  # one-liners on a class or a module make a paragraph
                    paragraphs[-1] += " " + fresh.pop(0)
            last_about = about if len(fresh) == 1 else last_about if not fresh else 0
            paragraphs += fresh
        paragraphs = [paragraph for paragraph in paragraphs if len(paragraph) >= MIN_PARAGRAPH]
        if paragraphs:
            yield Document(title, title, paragraphs, SOURCE)


def module_documents(path: Path) -> list[Document]:
    """The documents of a source file: usually one, none where it has no prose, many for pydoc's topics."""
    return list(_documents(path, set()))


def python_documents() -> Iterator[Document]:
    """The whole corpus in a fixed order, each text once, however often the sources repeat it."""
    seen: set[bytes] = set()
    names: set[str] = set()
    for path in python_doc_files():
        for document in _documents(path, seen):
            if document.id not in names:  # a package may shadow a module of the standard library
                names.add(document.id)
                yield document
