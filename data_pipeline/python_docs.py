"""The embedded default corpus: the documentation that comes with Python and the installed packages.

It lets the engine work offline with no data of the user's.  Files are read as source text and never
imported, so a broken or side-effectful module costs nothing.  A module is a document; a paragraph is what
one docstring (or a part of a long one) says in English, because the objectives need several sentences
about one thing.
"""

import ast
import functools
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
MIN_PASSED_STRING = 200  # shorter strings in calls are arguments, not documentation
MIN_ENTRY_WORDS = 10  # of a parameter's description in one sentence; shorter ones have no verb
SHORT, LONG = 320, 1200  # characters: a paragraph below SHORT takes in what follows, up to LONG

_SKIPPED_DIRS = {"test", "tests", "idle_test", "_vendor", "_vendored", "__pycache__", "site-packages"}

# ---- which lines are seen at all -------------------------------------------------------------------------

_FENCE = re.compile(r"(```|~~~)(?!.*\1)")
_UNDERLINE = re.compile(r"([=\-~^*#\"'+`_.:])\1{2,}$")
_TABLE = re.compile(
    r"[|+]|[=\-]{3,}\s+[=\-]{3}|.*\S(   +|\t)\S.*\S(   +|\t)\S|.*\s\|$|.*[─-╿]|.*[\w,)] {4,}\S|\{\w*\}$"
)
_DIRECTIVE = re.compile(r"\.\.(?:\s|$)\s*(?:(note|warning|tip|important|caution|attention|hint|admonition)::)?")
_MARKUP_LINE = re.compile(r"(</?(tip|hfoptions?|div|p|pre|br|table|tr|td|ul|ol|li)\b[^>]*>|\[\[[\w.-]*\]\])+$", re.I)
_DROPPED_SECTION = re.compile(
    r"(examples?|references?|see also|raises?|warns|methods|usage|citation|tests?|doctests?|licen[cs]e"
    r"|authors?|todo|notation|shapes?|index|example usage|usage examples?)$", re.I
)  # fmt: skip


def _visible_lines(text: str) -> Iterator[tuple[int, str]]:
    """(indentation, text) of the lines that are no code, table or dropped section; others as (0, "")."""
    lines = [*text.split("\n"), ""]
    fenced = doctest = dropped = False
    hidden_below = -1  # hide what is indented deeper than this; -1: nothing
    for line, following in zip(lines, lines[1:], strict=False):
        body = line.strip()
        indent = len(line) - len(line.lstrip())
        doctest = bool(body) and (doctest or body.startswith(">>>"))
        if _FENCE.match(body):
            fenced = not fenced
            body = ""
        if not body or fenced or doctest or (0 <= hidden_below < indent):
            yield 0, ""
            continue
        hidden_below = -1
        if _UNDERLINE.match(following.strip()) and not _UNDERLINE.match(body):
            dropped = bool(_DROPPED_SECTION.match(body.rstrip(":")))
            body = ""
        elif directive := _DIRECTIVE.match(body):
            hidden_below = -1 if directive[1] else indent
            body = body[directive.end() :].strip() if directive[1] else ""
        elif body.endswith(":") and _DROPPED_SECTION.match(body.rstrip(":")):
            hidden_below = indent
            body = ""
        elif body.endswith("::"):
            hidden_below = indent
            body = body.rstrip(": ") + ":"
        if dropped or _UNDERLINE.match(body) or _TABLE.match(body) or _MARKUP_LINE.match(body):
            body = ""
        yield indent, body


# ---- lines to blocks -------------------------------------------------------------------------------------

_BULLET = re.compile(r"([-*+•‣]|#\.|\(?(?:\d{1,2}|[a-z])[.)])\s+(?=\S)")
_SECTION = re.compile(
    r"(?:((?:(?:keyword|other|optional|required|positional|model|class|input|output)\s)?"
    r"(?:args?|arguments?|params?|parameters|attributes|returns?|yields?|inputs?|outputs?|fields|options|kwargs))"
    r"|(?:notes?|warnings?|description|summary|details|overview|tips?|important))\s*:$", re.I
)  # fmt: skip
_ENTRY = re.compile(
    r":(?P<field>\w+)[^:]*:(?:\s+|$)"  # :param int x: text
    r"|(?P<numpy>[\w.,*`\[\]/() ]{1,60}? : )"  # x : int, optional
    r"|[`*\"']*(?:[a-z_][\w.]*|[A-Z]\w?)[`*\"']*(?:\s*\((?:[^()]|\([^()]*\))*\))?\s*(?::|--|–)(?:\s+|$)"  # x (int): text
    r"|[`*]*\w+[`*]*\s*\(.*\)\s*:(?:\s+|$)"
    r"|\w+(?P<raised>Error|Exception|Warning):\s"
)
_FIELDS_WITH_TEXT = {"param", "parameter", "arg", "argument", "return", "returns", "keyword", "key", "kwarg", "var"}


class _Blocks:
    """Splits a docstring's lines to blocks of running text; ``done`` holds (is a parameter's text, text)."""

    def __init__(self) -> None:
        self.done: list[tuple[bool, str]] = []
        self._lines: list[str] = []
        self._indent = 0  # of the block's first line
        self._entry_indent = -1  # of the parameter whose description we are in; -1: none

    def flush(self) -> None:
        if self._lines:
            self.done.append((self._entry_indent >= 0, " ".join(self._lines)))
        self._lines = []

    def _start(self, indent: int, body: str) -> None:
        self.flush()
        self._indent = indent
        self._lines = [body] if body else []

    def _enter(self, indent: int, body: str) -> None:
        self.flush()
        self._entry_indent = indent
        self._start(indent, body)

    def add(self, indent: int, body: str) -> None:
        if left_entry := bool(body) and indent <= self._entry_indent:
            self.flush()
            self._entry_indent = -1
        bullet = _BULLET.match(body)
        body = body[bullet.end() :] if bullet else body
        if section := _SECTION.match(body):
            self._enter(indent, "") if section[1] else self.flush()
        elif (bullet or left_entry or not self._lines or body.startswith(":")) and (entry := _ENTRY.match(body)):
            textless = entry["numpy"] or entry["raised"] or entry["field"] not in {None, *_FIELDS_WITH_TEXT}
            self._enter(indent, "" if textless else body[entry.end() :])
        elif not body or bullet or not self._lines or indent < self._indent:
            self._start(indent, body)
        elif indent > self._indent and len(self._lines) == 1 and self._is_term() and self.done:
            self._lines = []  # a definition list's term
            self._enter(self._indent, body)
        else:
            self._lines.append(body)

    def _is_term(self) -> bool:
        return len(self._lines[0]) < 60 and self._lines[0][-1] not in ".,;:" and self._lines[0].count(" ") < 6


# ---- blocks to prose -------------------------------------------------------------------------------------

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
    (re.compile(r"\$([\w, ()]+)\$"), r"\1"),
    (re.compile(r"(?<!\w)[~](?=[A-Za-z])"), ""),
]
_MARKUP = re.compile(r"[`*$~]|__|\]\(|\]_")  # what the patterns above need
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!cf\.)(?<!vs\.)(?<!Eq\.)\s+(?=[\"'(\[<]?[A-Z0-9])")
_UNREADABLE = re.compile(
    r"://|www\.|\\\w|\$|\{\w*\}|%\(|[=<>!]=|->|=>|[{}|^~\\]|\w\(\)\.|\w=\w|__\w+__.*__\w+__|\bet al\b|\bTODO\b|``|\bdoi\b|^Defaults?\b.{,40}$"
)
_LEGAL = (
    "copyright", "(c) 1", "(c) 2", "license", "permission is hereby", "all rights reserved", "without warrant",
    "redistribut", "liable for", "this software is", "©",
)  # fmt: skip
_PLAIN_WORD = re.compile(r"(?<!\S)[a-z'-]+[.,;:!?]?(?!\S)")
_TYPE_PREFIX = re.compile(r"^[\w.]+(\[.*?\]+)?( of shape \([^)]*\))?: ")  # of a returned value
_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_COMMON = frozenset(
    "a about after all also an and any are as at be because been before being both but by can cannot could do does"
    " each either for from given has have how if in into is it its may more most must no not of on one only or"
    " other otherwise out over same should so some such than that the their them then there these they this those"
    " to two under up use used uses using was we were what when where whether which while will with within without"
    " would you your".split()
)
_ORPHAN = re.compile(r"[a-z]+,? |[,;.)]")  # goes on from a formula or a code block


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
    letters = sum(map(len, words))
    common = sum(map(_COMMON.__contains__, map(str.lower, words)))
    shouted = sum(map(str.isupper, words))
    symbols_and_digits = len(sentence) - sentence.count(" ") - letters
    return symbols_and_digits <= 0.3 * (len(sentence)) and common >= 0.15 * len(words) and shouted <= 0.4 * len(words)


def _finished(sentences: list[str], may_lack_stop: bool) -> list[str]:
    """The sentences less a last one that does not end: a heading, or a lead-in to what was dropped."""
    last = sentences[-1].rstrip()
    if last.endswith((".", "!", "?", ".)", '."', ".'", '?"')):
        return sentences
    complete = may_lack_stop and len(last) > 25 and (last[-1].isalnum() or last[-1] in ")\"'")
    return [*sentences[:-1], last + "."] if complete else sentences[:-1]


def _prose(raw: str, is_entry: bool, is_first: bool) -> str:
    """The sentences of a block that read as English, or ""."""
    text = _plain(raw)
    if is_entry:
        text = _TYPE_PREFIX.sub("", text)
    lowered = text.lower()
    if not text or any(word in lowered for word in _LEGAL):
        return ""
    if not (is_entry or is_first) and _ORPHAN.match(raw):
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


def _template(text: str) -> bytes:
    """A hash of the plain lower-case words: texts that differ by names and numbers only have the same."""
    return hashlib.blake2b(" ".join(_PLAIN_WORD.findall(text)).encode(), digest_size=12).digest()


def _fresh_paragraphs(docstring: str, seen: set[bytes]) -> list[str]:
    """``prose_paragraphs`` of the blocks that are not in ``seen``, which takes them in."""
    blocks = _Blocks()
    for indent, body in _visible_lines(inspect.cleandoc(docstring)):
        blocks.add(indent, body)
    blocks.flush()
    prose: dict[bool, list[str]] = {False: [], True: []}
    for position, (is_entry, text) in enumerate(blocks.done):
        if (block := _prose(text, is_entry, position == 0)) and (key := _template(block)) not in seen:
            seen.add(key)
            prose[is_entry].append(block)
    paragraphs = [*_pack(prose[False]), *_pack(prose[True])]
    return _pack(paragraphs) if sum(map(len, paragraphs)) < 2 * SHORT else paragraphs


def prose_paragraphs(docstring: str) -> list[str]:
    """The docstring's paragraphs of English prose: no code, signatures, tables, headings or markup."""
    return _fresh_paragraphs(docstring, set())


# ---- files to documents ----------------------------------------------------------------------------------


_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_HOLDER = (ast.Module, ast.ClassDef)


@functools.cache
def _roots() -> list[Path]:
    paths = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    return list(dict.fromkeys(paths))


def python_doc_files() -> list[Path]:
    """The Python files of the standard library, then of the installed packages; sorted, each once."""
    files: dict[Path, None] = {}
    for root in _roots():
        found = (path for path in root.rglob("*.py") if not _SKIPPED_DIRS.intersection(path.relative_to(root).parts))
        files.update(dict.fromkeys(sorted(found)))
    return list(files)


def _module_name(path: Path) -> str:
    """The dotted name, from the deepest root that holds the file, else from its ``__init__.py`` files."""
    holding = [root for root in _roots() if path.is_relative_to(root)]
    top = max(holding, key=lambda root: len(root.parts), default=path.parent)
    while not holding and (top / "__init__.py").exists():
        top = top.parent
    parts = path.relative_to(top).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _parse(path: Path) -> ast.Module | None:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        text = path.read_text("utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            return ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _docstrings(node: ast.AST, owner: ast.AST | None = None) -> Iterator[tuple[ast.AST | None, str]]:
    """(class or module that it is about, text) of the strings that stand as statements, in source order.

    Documentation of C functions is passed to a call at module level: long strings there count too.
    """
    about = owner if isinstance(node, _FUNCTION) else node if isinstance(node, _HOLDER) else owner
    for field in ("body", "handlers", "orelse", "finalbody"):
        for child in getattr(node, field, ()):
            if not isinstance(child, ast.Expr):
                yield from _docstrings(child, about)
            elif isinstance(child.value, ast.Constant) and isinstance(child.value.value, str):
                yield about, child.value.value
            elif isinstance(child.value, ast.Call) and isinstance(node, ast.Module):
                yield from ((child, text) for text in _long_strings(child))


def _long_strings(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and len(part.value) >= MIN_PASSED_STRING:
            yield part.value


def _topics(tree: ast.Module) -> dict[str, str]:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            return ast.literal_eval(node.value)
    return {}


def _paragraphs(docstrings: Iterable[tuple[object, str]], seen: set[bytes]) -> list[str]:
    """The docstrings' paragraphs; a one-liner joins its neighbour about the same class or module."""
    paragraphs: list[str] = []
    last_about: object = None
    for about, docstring in docstrings:
        fresh = _fresh_paragraphs(docstring, seen)
        if fresh and about and about is last_about and len(paragraphs[-1]) < SHORT and _one_line(fresh, paragraphs[-1:]):
            paragraphs[-1] += " " + fresh.pop(0)
        if fresh:
            last_about = about if len(fresh) == 1 else None
        paragraphs += fresh
    return paragraphs


def _one_line(*paragraphs: list[str]) -> bool:
    return any(len(few) == 1 and not _SENTENCE_END.search(few[0]) for few in paragraphs)


def _documents(path: Path, seen: set[bytes]) -> Iterator[Document]:
    tree = _parse(path)
    if tree is None:
        return
    name = _module_name(path)
    texts: dict[str, Iterable[tuple[object, str]]] = {name: _docstrings(tree)}
    if name == "pydoc_data.topics":
        texts = {f"{name}.{topic}": [(None, text)] for topic, text in sorted(_topics(tree).items())}
    for title, docstrings in texts.items():
        if paragraphs := _paragraphs(docstrings, seen):
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
