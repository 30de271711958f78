"""The steps of cleaning, after Di Liello et al. (2022), appendix A.1: no headers, titles, tables or HTML.

To add a step of your own, write a file that defines ``STEPS`` and name it: ``--clean_with my_steps.py``

    from data_pipeline.prepare.cleaning import Step

    def drop_shouting(document, paragraphs):
        return [p for p in paragraphs if not p.isupper()]

    STEPS = [Step("shouting", "drops paragraphs in capitals", drop_shouting)]
"""

import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import load_python
from data_pipeline.prepare.document import Document

from .rules import Rules
from .text import STOPS


@dataclass(frozen=True)
class Step:
    """One rule of cleaning.

    name:      is what --skip_step switches off, and what it is counted by
    does:      says what it does, for people
    apply:     makes paragraphs of the paragraphs of a document; it must not change the list that it is given
    for_posts: whether it also cleans what a person posted, which keeps its form and length
    """

    name: str
    does: str
    apply: Callable[[Document, list[str]], list[str]]
    for_posts: bool = False


_MOJIBAKE = re.compile("[\x80-\x9f]|[ÂÃâäåæïðØÙÐÑ][\x80-\xff€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]")
_TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9]*(?:\s[^<>]{0,500})?/?>")
_COMMENT = re.compile("<!--|-->")
_HIDDEN = re.compile(r"<(?:(script|style)\b[^<>]{0,500}|/(script|style)\s*)>", re.I)
_CUT = "<\0>"  # stands for what is cut out until tags are off: no tag can go on behind it
MAX_COMMENT, MAX_HIDDEN = 5000, 50000  # characters; more than that between two tags is text
_ENTITY = re.compile(r"&(?:[A-Za-z]{2,8}|#\d{2,6}|#x[0-9A-Fa-f]{2,5});")
_CELLS = re.compile(r"\t| \| |\|\|| {3,}")
# Six words in a row. It is looked for where words begin, and a word is taken whole: else a text without spaces, such
# as a Chinese one, would take a time that grows with the square of its length.
_PROSE = re.compile(r"(?<![^\W\d_])(?:[^\W\d_]++[\s,;'’-]++){5}[^\W\d_]")
_SENTENCE_MARK = re.compile(f"[.!?…:;{STOPS}]")
MAX_HEADING = 120  # characters
MIN_CELLS = 3  # gaps between cells in a line that has no sentence
MIN_LETTERS = 0.35  # share of letters in what is not white space


def repair_unicode(document: Document, paragraphs: list[str]) -> list[str]:
    """Repair text that was decoded with the wrong encoding, as ftfy does it, where there are signs of that."""
    if not any(_needs_repair(p) for p in paragraphs):
        return paragraphs
    import ftfy

    return [ftfy.fix_encoding(p) if _needs_repair(p) else p for p in paragraphs]


def _needs_repair(paragraph: str) -> bool:
    return not paragraph.isascii() and _MOJIBAKE.search(paragraph) is not None


def strip_html(document: Document, paragraphs: list[str]) -> list[str]:
    """Take tags and entities off that a source left in its text."""
    if not any("<" in p or "&" in p for p in paragraphs):
        return paragraphs
    return [_strip_tags(p) if "<" in p or "&" in p else p for p in paragraphs]


def _strip_tags(text: str) -> str:
    text = html.unescape(text) if _ENTITY.search(text) else text
    if "<" not in text:
        return text
    text = _cut_out(text, [(m, m[1] or m[2], bool(m[1])) for m in _HIDDEN.finditer(text)], MAX_HIDDEN)
    text = _cut_out(text, [(m, "", m[0] == "<!--") for m in _COMMENT.finditer(text)], MAX_COMMENT)
    return _TAG.sub(" ", text).replace(_CUT, " ")


def _cut_out(text: str, marks: list[tuple[re.Match[str], str, bool]], most: int) -> str:
    """Cut out what stands from an opening mark to the next closing one of its kind.

    In a time that grows with the text's length alone, where a pattern would try each opening mark against all that
    follows.

    marks: in their order, with their kinds and whether they open
    most:  characters between two marks; where there are more, the text stays
    """
    closing: dict[str, re.Match[str]] = {}  # the next one of each kind
    pairs: list[tuple[int, int]] = []
    for match, kind, opens in reversed(marks):
        if not opens:
            closing[kind.lower()] = match
        elif (end := closing.get(kind.lower())) and end.start() - match.end() <= most:
            pairs.append((match.start(), end.end()))
    parts, at = [], 0
    for start, stop in reversed(pairs):
        if start >= at:
            parts.append(text[at:start])
            at = stop
    return _CUT.join([*parts, text[at:]])


def drop_tables(document: Document, paragraphs: list[str]) -> list[str]:
    """Drop rows of cells, and lists of numbers."""
    return [p for p in paragraphs if not _is_table(p)]


def _is_table(paragraph: str) -> bool:
    if "\t" in paragraph or " | " in paragraph or "||" in paragraph or "   " in paragraph:
        cells = len(_CELLS.findall(paragraph.strip()))
        if cells >= MIN_CELLS and cells >= 2 * len(_SENTENCE_MARK.findall(paragraph)):
            return True
    if _PROSE.search(paragraph):
        return False
    text = "".join(paragraph.split())
    letters = sum(character.isalpha() or character.isidentifier() for character in text)  # vowel signs are no letters
    return letters < MIN_LETTERS * len(text)


def drop_title(document: Document, paragraphs: list[str]) -> list[str]:
    """Drop a paragraph that is the document's title once more."""
    title = " ".join(document.title.split()).casefold().rstrip(".")
    if not title:
        return paragraphs
    size = len(title) + 10
    return [p for p in paragraphs if len(p) > size or " ".join(p.split()).casefold().rstrip(".") != title]


def drop_headers(document: Document, paragraphs: list[str]) -> list[str]:
    """Drop short paragraphs in which no sentence ends."""
    return [p for p in paragraphs if len(p) > MAX_HEADING or _SENTENCE_MARK.search(p)]


STEPS = [
    Step("unicode", "repairs text that was decoded with the wrong encoding", repair_unicode, for_posts=True),
    Step("html", "takes off tags and entities of HTML", strip_html),
    Step("tables", "drops rows of tables and lists of numbers", drop_tables),
    Step("titles", "drops paragraphs that are the document's title", drop_title),
    Step("headers", f"drops paragraphs of up to {MAX_HEADING} characters in which no sentence ends", drop_headers),
]


def find_steps(rules: Rules) -> list[Step]:
    """Find the steps that the rules ask for, in their order. Raises KinspanError where one is not known."""
    return _find_steps(tuple(rules.skip_steps), tuple(rules.clean_with))


@cache
def _find_steps(skipped: tuple[str, ...], files: tuple[str, ...]) -> list[Step]:
    steps = [*STEPS, *(step for path in files for step in _load_steps(path))]
    names = [step.name for step in steps]
    if twice := [name for name in names if names.count(name) > 1]:
        raise KinspanError(f"--clean_with: there is more than one step of the name {twice[0]}; rename one")
    if wrong := [name for name in skipped if name not in names]:
        raise KinspanError(f"--skip_step {wrong[0]}: there is no such step; there are {', '.join(names)}")
    return [step for step in steps if step.name not in skipped]


def _load_steps(path: str) -> list[Step]:
    steps = getattr(load_python(path, f"--clean_with {path}"), "STEPS", None)
    if not isinstance(steps, list) or not all(isinstance(step, Step) for step in steps):
        raise KinspanError(f"--clean_with {path} defines no STEPS, which must be a list of Step")
    return steps
