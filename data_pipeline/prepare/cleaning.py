"""Cleans documents, after Di Liello et al. (2022), appendix A.1.

Small steps drop headers, titles, tables and HTML; then short paragraphs and documents are dropped.

To add a step of your own, write a file that defines ``STEPS`` and name it: ``--clean_with my_steps.py``

    from data_pipeline.prepare.cleaning import Step

    def drop_shouting(document, paragraphs):
        return [p for p in paragraphs if not p.isupper()]

    STEPS = [Step("shouting", "drops paragraphs in capitals", drop_shouting)]
"""

import hashlib
import html
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import load_python

from .document import Document
from .tally import Tally
from .text import STOPS, normalise, split_sentences

__all__ = ["STEPS", "Rules", "Step", "Tally", "check_rules", "clean", "clean_or_drop", "normalise", "split_sentences"]

UNKNOWN = "unknown"  # language
LANGUAGE_CHARS = 1000  # of a document that its language is told by, from its middle


@dataclass(frozen=True)
class Rules:
    """Which paragraphs and documents are kept, and how many documents are held out for validation.

    The two lengths are those of Di Liello et al. (2022), appendix A.1.

    min_paragraph_chars: a shorter paragraph is dropped; characters are counted after white space was folded
    min_document_chars:  a document whose kept paragraphs are shorter together is dropped
    validation_share:    the share of documents that are held out, by a hash of their ids
    languages:           codes of ISO 639, such as en; a document in another language is dropped. Empty keeps all
    skip_steps:          names of the steps of ``steps.STEPS`` that are switched off
    clean_with:          Python files that define ``STEPS``, a list of more steps
    title_texts:         whether a title is kept as a text of its own, as a question's always is, for title_sentence
    steps_hash:          of the contents of those files, so that changed steps make another corpus; it is computed
    """

    min_paragraph_chars: int = 60
    min_document_chars: int = 200
    validation_share: float = 0.02
    languages: list[str] = field(default_factory=list)
    skip_steps: list[str] = field(default_factory=list)
    clean_with: list[str] = field(default_factory=list)
    title_texts: bool = False
    steps_hash: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if self.clean_with:
            contents = b"".join(_read_steps(name) for name in self.clean_with)
            object.__setattr__(self, "steps_hash", hashlib.sha256(contents).hexdigest()[:16])


def _read_steps(name: str) -> bytes:
    try:
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        raise KinspanError(f"--clean_with {name} cannot be read: {error.strerror}") from error


# Steps --------------------------------------------------------------------------------------------------


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
_ELEMENTS = (  # others, such as <command> or List<String>, are text
    "a|abbr|address|article|aside|audio|b|bdi|bdo|big|blockquote|body|br|button|canvas|caption|center|cite|code|col"
    "|colgroup|dd|del|details|dfn|dialog|div|dl|dt|em|embed|fieldset|figcaption|figure|font|footer|form|frame|frameset"
    "|h[1-6]|head|header|hr|html|i|iframe|img|input|ins|kbd|label|legend|li|link|main|mark|meta|nav|noscript|object|ol"
    "|optgroup|option|p|param|picture|pre|q|rp|rt|ruby|s|samp|script|section|select|small|source|span|strike|strong"
    "|style|sub|summary|sup|svg|table|tbody|td|template|textarea|tfoot|th|thead|time|title|tr|tt|u|ul|var|video|wbr"
)
_TAG = re.compile(rf"</?(?:{_ELEMENTS})(?:\s[^<>]{{0,500}})?/?>", re.I)
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
    """Repairs text that was decoded with the wrong encoding, as ftfy does it, where there are signs of that."""
    if not any(_needs_repair(p) for p in paragraphs):
        return paragraphs
    import ftfy

    return [ftfy.fix_encoding(p) if _needs_repair(p) else p for p in paragraphs]


def _needs_repair(paragraph: str) -> bool:
    return not paragraph.isascii() and _MOJIBAKE.search(paragraph) is not None


def strip_html(document: Document, paragraphs: list[str]) -> list[str]:
    """Takes tags and entities off that a source left in its text."""
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
    """Cuts out what stands from an opening mark to the next closing one of its kind.

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
    """Drops rows of cells, and lists of numbers."""
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
    """Drops paragraphs that repeat the document's title."""
    title = " ".join(document.title.split()).casefold().rstrip(".")
    if not title:
        return paragraphs
    size = len(title) + 10
    return [p for p in paragraphs if len(p) > size or " ".join(p.split()).casefold().rstrip(".") != title]


def drop_headers(document: Document, paragraphs: list[str]) -> list[str]:
    """Drops short paragraphs in which no sentence ends."""
    return [p for p in paragraphs if len(p) > MAX_HEADING or _SENTENCE_MARK.search(p)]


STEPS = [
    Step("unicode", "repairs text that was decoded with the wrong encoding", repair_unicode, for_posts=True),
    Step("html", "takes off tags and entities of HTML", strip_html),
    Step("tables", "drops rows of tables and lists of numbers", drop_tables),
    Step("titles", "drops paragraphs that are the document's title", drop_title),
    Step("headers", f"drops paragraphs of up to {MAX_HEADING} characters in which no sentence ends", drop_headers),
]


def find_steps(rules: Rules) -> list[Step]:
    """Finds the steps that the rules ask for, in their order. Raises KinspanError where one is not known."""
    return _find_steps(tuple(rules.skip_steps), tuple(rules.clean_with))


@cache
def _find_steps(skipped: tuple[str, ...], files: tuple[str, ...]) -> list[Step]:
    steps = [*STEPS, *(step for path in files for step in _load_steps(path))]
    names = [step.name for step in steps]
    if twice := [name for name in names if names.count(name) > 1]:
        raise KinspanError(f"--clean_with: two steps are called {twice[0]}")
    if wrong := [name for name in skipped if name not in names]:
        raise KinspanError(f"--skip_step {wrong[0]}: must be one of {', '.join(names)}")
    return [step for step in steps if step.name not in skipped]


def _load_steps(path: str) -> list[Step]:
    steps = getattr(load_python(path, f"--clean_with {path}"), "STEPS", None)
    if not isinstance(steps, list) or not all(isinstance(step, Step) for step in steps):
        raise KinspanError(f"--clean_with {path} defines no STEPS, which must be a list of Step")
    return steps


# Documents ----------------------------------------------------------------------------------------------


def check_rules(rules: Rules) -> None:
    """Raises KinspanError, before any work is done, where steps or languages are named that there are not."""
    find_steps(rules)
    check_languages(rules.languages)


def clean(document: Document, rules: Rules, tally: Tally) -> list[str]:
    """Cleans the paragraphs of a document and returns those that are kept; none where the document is dropped."""
    return clean_or_drop(document, rules, tally) or []


def clean_or_drop(document: Document, rules: Rules, tally: Tally) -> list[str] | None:
    """Cleans the paragraphs of a document and returns those that are kept, or None where the document is dropped.

    A question of a title and an accepted answer alone is kept without a paragraph. Every paragraph that is read is
    counted once more in ``tally``: as kept by the caller, as too short, as dropped by one step, or as a paragraph of a
    dropped document.
    """
    paragraphs = _keep_filled(document.paragraphs)
    tally.counts["documents read"] += 1
    tally.counts["characters read"] += sum(map(len, document.paragraphs))
    tally.counts["paragraphs read"] += len(paragraphs)
    for step in find_steps(rules):
        if step.for_posts or not document.is_post:
            paragraphs = _apply(step, document, paragraphs, tally)
    kept = _drop_short(document, [normalise(p) for p in paragraphs], rules, tally)
    if kept is None or not rules.languages:
        return kept
    texts = kept or [document.title, *document.answers]
    if (language := detect_language(texts)) not in rules.languages:
        tally.counts[f"documents in another language: {language}"] += 1
        tally.add_sample("documents in another language", texts[0])
        tally.counts["paragraphs of dropped documents"] += len(kept)
        return None
    return kept


def _apply(step: Step, document: Document, paragraphs: list[str], tally: Tally) -> list[str]:
    """Applies a step, and counts what it dropped or changed. A paragraph that it leaves empty is dropped."""
    try:
        result = step.apply(document, paragraphs)
        if isinstance(result, str) or not isinstance(result, Iterable):
            raise TypeError(f"it returned {type(result).__name__}, where a list of paragraphs is due")
    except Exception as error:
        raise KinspanError(f"--clean_with: step {step.name}, document {document.id}: {quote_error(error)}") from error
    if result is paragraphs or result == paragraphs:
        return paragraphs
    result = _keep_filled(result)
    gone, come = Counter(paragraphs) - Counter(result), Counter(result) - Counter(paragraphs)
    dropped, changed = f"paragraphs dropped: {step.name}", f"paragraphs changed: {step.name}"
    if num_dropped := len(paragraphs) - len(result):
        tally.counts[dropped] += num_dropped
    if come:
        tally.counts[changed] += gone.total() - num_dropped
    for paragraph in gone:
        is_changed = come and (not num_dropped or _keep_filled(step.apply(document, [paragraph])))
        tally.add_sample(changed if is_changed else dropped, normalise(paragraph))
    return result


def _keep_filled(paragraphs: list[str]) -> list[str]:
    return [p for p in paragraphs if p and not p.isspace()]


def _is_answered(document: Document) -> bool:
    """Tells whether a title with its accepted answer is to be trained on, even where there is no body."""
    if not document.title_is_text or document.accepted is None:
        return False
    return bool(normalise(document.title) and normalise(document.answers[document.accepted]))


def _drop_short(document: Document, paragraphs: list[str], rules: Rules, tally: Tally) -> list[str] | None:
    """Drops short paragraphs, and the document, for which None stands, where those that are left are too short."""
    shortest, least = (1, 1) if document.is_post else (rules.min_paragraph_chars, rules.min_document_chars)
    kept = []
    for paragraph in paragraphs:
        if paragraph and len(paragraph) >= shortest:
            kept.append(paragraph)
        else:
            tally.counts["paragraphs too short"] += 1
            tally.add_sample("paragraphs too short", paragraph)
    if not kept and _is_answered(document):
        return []
    if sum(map(len, kept)) < least or not kept:
        name = "documents too short" if kept else "documents without a long enough paragraph"
        tally.counts[name] += 1
        tally.counts["paragraphs of dropped documents"] += len(kept)
        if kept:
            tally.add_sample(name, kept[0])
        return None
    return kept


@cache
def _load_model() -> Any:
    """Loads the identifier, whose model is a part of its package: no network is needed."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise KinspanError("--languages needs py3langid: pip install 'kinspan[prepare]'") from error
    return LanguageIdentifier.from_model_file(MODEL_FILE)


def check_languages(languages: list[str]) -> None:
    """Raises KinspanError for a code that the identifier does not know."""
    known = set(_load_model().labels) if languages else set()
    if wrong := [code for code in languages if code not in known]:
        raise KinspanError(f"--languages {wrong[0]}: not a code of ISO 639 that is known here")


def detect_language(paragraphs: list[str]) -> str:
    """Names the language of a document by its code of ISO 639: two letters where there are two, else three."""
    text = " ".join(paragraphs[:50])
    begin = max(0, len(text) - LANGUAGE_CHARS) // 2
    text = text[begin : begin + LANGUAGE_CHARS]
    if not any(map(str.isalpha, text)):
        return UNKNOWN
    return str(_load_model().classify(text)[0])
