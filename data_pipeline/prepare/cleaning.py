"""Cleans documents, after Di Liello et al. (2022), appendix A.1, and splits their text into sentences.

Steps drop headers, titles, tables and HTML; then short paragraphs and documents are dropped. A file of ``--clean_with``
defines more ``STEPS``, see docs/corpora.md.
"""

import hashlib
import html
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import load_python
from data_pipeline.matching import count_chars, fold_characters

from .document import Document

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

LANGUAGE_CHARS = 1000  # from the middle of a document, used to detect its language
MAX_SAMPLES, SAMPLE_CHARS = 3, 200  # examples of dropped texts per rule, and the characters kept of each


@dataclass(frozen=True)
class Rules:
    """Decides which paragraphs and documents are kept, and how many documents are held out: flags of kinspan prepare.

    ``steps_hash`` is the hash of the files of ``clean_with``, since changed steps make another corpus.
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
        try:
            contents = b"".join(Path(name).read_bytes() for name in self.clean_with)
        except OSError as error:
            raise KinspanError(f"--clean_with {error.filename} cannot be read: {error.strerror}") from error
        if contents:
            object.__setattr__(self, "steps_hash", hashlib.sha256(contents).hexdigest()[:16])


@dataclass
class Tally:
    """Counts what was read, kept and dropped, and why. The tallies of chunks add up.

    ``samples`` has, by rule, the dropped texts with the smallest hashes, which do not depend on the cut into chunks.
    """

    counts: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.counts, self.sources = Counter(self.counts), Counter(self.sources)  # from JSON they come as dictionaries

    def add(self, more: "Tally") -> None:
        self.counts.update(more.counts)
        self.sources.update(more.sources)
        for name, texts in more.samples.items():
            for text in texts:
                self.add_sample(name, text)

    def add_sample(self, name: str, text: str) -> None:
        texts = {*self.samples.get(name, ()), text[:SAMPLE_CHARS]}
        ranked = sorted(texts, key=lambda text: (zlib.crc32(text.encode("utf-8", "surrogatepass")), text))
        self.samples[name] = ranked[:MAX_SAMPLES]


# Text ---------------------------------------------------------------------------------------------------

_SURROGATES = re.compile("[\ud800-\udfff]")
_WIDE = "[\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uff01-\uff60\U00020000-\U000323af]"  # Chinese and Japanese
LINE_END = re.compile(rf"(?<={_WIDE})[^\S\n]*+\n\s*+(?={_WIDE})")  # within a text without spaces
_STOP, _CLOSING = "[。！？｡…]", "」』）”’)\\]》】"
# Of Armenian, Arabic, Urdu, Indian languages, Amharic, Burmese, Khmer, Tibetan, Mongolian and Santali
_SPACED = "։؟۔।॥።፧။។៕།༎᠃᱾᱿"
STOPS = f"。！？｡{_SPACED}"
# blingfire splits only at European full stops, and before a closing bracket or a second stop. Wide stops have no space
# after them. A particle or a comma after a quotation goes on with its sentence: 「...。」と言った。
_HAS_NON_EUROPEAN_STOP, _TOO_EARLY = re.compile(f"[{STOPS}]|……"), re.compile(rf"\n(?=[{_CLOSING}。！？])")
_GERMAN_ORDINAL = re.compile(  # "am 3. Mai" is no end of a sentence
    r"(?<![\w.,])(\d{1,2}\.)\n(?=(?:Jan|Jän|Feb|März|April|Mai|Juni|Juli|Aug|Sept|Okt|Nov|Dez|Jahrhundert)\w*\b)"
)
_NON_EUROPEAN_STOPS = re.compile(
    rf"(?:(?<=[。！？｡])|(?<=……))(?!{_STOP}|[、，{_CLOSING}])|(?<={_STOP}[」』”’])(?!{_STOP}|[、，ぁ-ん{_CLOSING}])"
    rf"|(?<=[{_SPACED}])\s+"
)


def normalise(text: str) -> str:
    """Folds white space (none between Chinese lines), and replaces NULs and lone surrogates."""
    if "\x00" in text:
        text = text.replace("\x00", " ")
    if not text.isascii():
        text = _SURROGATES.sub("\ufffd", LINE_END.sub("", text) if "\n" in text else text)
    return " ".join(text.split())


def split_sentences(paragraph: str) -> list[str]:
    """Splits a paragraph into sentences, with blingfire and at the full stops of non-European scripts.

    Thai and Lao have no full stop, so a paragraph in them may be one sentence.
    """
    import blingfire  # not at the top: training and ranking import this module without blingfire

    text = _GERMAN_ORDINAL.sub(r"\1 ", blingfire.text_to_sentences(paragraph))
    if not paragraph.isascii() and _HAS_NON_EUROPEAN_STOP.search(paragraph):
        text = _NON_EUROPEAN_STOPS.sub("\n", _TOO_EARLY.sub("", text))
    return [s for s in map(str.strip, text.split("\n")) if s] or [paragraph]


# Steps --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A cleaning rule: ``apply`` returns the cleaned paragraphs of a document, and must not change the given list.

    ``for_posts``: whether the rule also applies to forum posts, which keep their form and length.
    """

    name: str
    does: str
    apply: Callable[[Document, list[str]], list[str]]
    for_posts: bool = False


_MOJIBAKE = re.compile("[\x80-\x9f]|[ÂÃâäåæïðØÙÐÑ][\x80-\xff€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]")
_ELEMENTS = (  # anything else, such as <command> or List<String>, is text
    "a|abbr|address|article|aside|audio|b|bdi|bdo|big|blockquote|body|br|button|canvas|caption|center|cite|code|col"
    "|colgroup|dd|del|details|dfn|dialog|div|dl|dt|em|embed|fieldset|figcaption|figure|font|footer|form|frame|frameset"
    "|h[1-6]|head|header|hr|html|i|iframe|img|input|ins|kbd|label|legend|li|link|main|mark|meta|nav|noscript|object|ol"
    "|optgroup|option|p|param|picture|pre|q|rp|rt|ruby|s|samp|section|select|small|source|span|strike|strong"
    "|sub|summary|sup|svg|table|tbody|td|template|textarea|tfoot|th|thead|time|title|tr|tt|u|ul|var|video|wbr"
)
TAG = re.compile(rf"</?(?:{_ELEMENTS})(?:\s[^<>]{{0,500}})?/?>", re.I)
_HIDDEN = [  # (closing tag, whole element)
    (re.compile(rf"</{tag}\s*>", re.I), re.compile(rf"<{tag}\b[^<>]{{0,500}}>.*?</{tag}\s*>", re.I | re.S))
    for tag in ("script", "style")
] + [(re.compile("-->"), re.compile("<!--.*?-->", re.S))]
_CUT = "<\0>"  # replaces removed elements until tags are stripped: its "<" keeps TAG from matching across it
_CODE = re.compile(r"[{}=]|\w\(|\A\s*</")
MAX_HIDDEN = 50_000  # characters; a longer element is kept as text
_ENTITY = re.compile(r"&(?:[A-Za-z]{2,8}|#\d{2,6}|#x[0-9A-Fa-f]{2,5});")
_CELL_GAP = re.compile(r"\t| \| |\|\|| {3,}")
# Six words in a row. Possessive quantifiers (++) avoid quadratic time on text without spaces, such as Chinese.
_PROSE = re.compile(r"(?<![^\W\d_])(?:[^\W\d_]++[\s,;'’-]++){5}[^\W\d_]")
_SENTENCE_MARK = re.compile(f"[.!?…:;{STOPS}]|[\u0e01-\u0ede] +[\u0e01-\u0ede]")  # Thai and Lao have only spaces
MAX_HEADING = 120  # characters
MIN_GAPS = 3  # number of gaps between cells from which a paragraph may be a row of a table
MIN_LETTERS = 0.35  # share of letters and their marks among the characters that are not white space


def repair_unicode(document: Document, paragraphs: list[str]) -> list[str]:
    """Repairs, with ftfy, text that looks as if it was decoded with the wrong encoding."""
    return [_repair(p) if not p.isascii() and _MOJIBAKE.search(p) else p for p in paragraphs]


def _repair(paragraph: str) -> str:
    import ftfy

    return ftfy.fix_encoding(paragraph)


def fold_unicode(document: Document, paragraphs: list[str]) -> list[str]:
    """Composes characters, writes ligatures and wide letters as usual ones, and removes invisible characters."""
    return list(map(fold_characters, paragraphs))


def strip_html(document: Document, paragraphs: list[str]) -> list[str]:
    """Removes HTML tags and entities that the source left in its text, unless the reader has parsed them."""
    return paragraphs if document.is_parsed else [_strip_html(p) if "<" in p or "&" in p else p for p in paragraphs]


def _strip_html(text: str) -> str:
    stripped = _strip_tags(text)
    unescaped = fold_characters(html.unescape(stripped)) if _ENTITY.search(stripped) else stripped
    return unescaped if stripped != text else _strip_tags(unescaped)  # beside tags, "&lt;b&gt;" is text


def _strip_tags(text: str) -> str:
    for closing, element in _HIDDEN if "<" in text else ():
        if ends := list(closing.finditer(text)):  # up to the last closing tag every element ends: linear time
            last = ends[-1].end()
            text = element.sub(_hide, text[:last]) + text[last:]
    return TAG.sub(" ", text).replace(_CUT, " ")


def _hide(element: re.Match[str]) -> str:
    """Cuts out a comment, or a script or style with code; words between mentions of their tags are text."""
    is_code = element[0][1] == "!" or _CODE.search(element[0].partition(">")[2])
    return _CUT if is_code and len(element[0]) <= MAX_HIDDEN else element[0]


def drop_tables(document: Document, paragraphs: list[str]) -> list[str]:
    """Drops rows of tables and lists of numbers."""
    return [p for p in paragraphs if not _is_table(p)]


def _is_table(paragraph: str) -> bool:
    if "\t" in paragraph or " | " in paragraph or "||" in paragraph or "   " in paragraph:
        num_gaps = len(_CELL_GAP.findall(re.sub(r"\n\s+", "\n", paragraph.strip())))  # but for indentation
        if num_gaps >= MIN_GAPS and num_gaps >= 2 * len(_SENTENCE_MARK.findall(paragraph)):
            return True
    if _PROSE.search(paragraph):
        return False
    text = "".join(paragraph.split())
    return sum(unicodedata.category(c)[0] in "LM" for c in text) < MIN_LETTERS * len(text)


def drop_title(document: Document, paragraphs: list[str]) -> list[str]:
    """Drops paragraphs that repeat the document's title."""
    title = " ".join(document.title.split()).casefold().rstrip(".")
    if not title:
        return paragraphs
    size = len(title) + 10
    return [p for p in paragraphs if len(p) > size or " ".join(p.split()).casefold().rstrip(".") != title]


def drop_headers(document: Document, paragraphs: list[str]) -> list[str]:
    """Drops short paragraphs in which no sentence ends."""
    return [p for p in paragraphs if _SENTENCE_MARK.search(p) or count_chars(p) > MAX_HEADING]


STEPS = [
    Step("unicode", "repairs text that was decoded with the wrong encoding", repair_unicode, for_posts=True),
    Step("characters", "composes letters, and removes invisible characters", fold_unicode, for_posts=True),
    Step("html", "takes off tags and entities of HTML", strip_html),
    Step("tables", "drops rows of tables and lists of numbers", drop_tables),
    Step("titles", "drops paragraphs that are the document's title", drop_title),
    Step("headers", f"drops paragraphs of up to {MAX_HEADING} characters in which no sentence ends", drop_headers),
]


@cache
def find_steps(skipped: tuple[str, ...], files: tuple[str, ...]) -> list[Step]:
    """Returns the steps of a run, in order. Raises KinspanError for an unknown or a repeated name."""
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
    """Raises KinspanError for unknown steps or languages, before any work is done."""
    find_steps(tuple(rules.skip_steps), tuple(rules.clean_with))
    codes = set(_load_model().labels) if rules.languages else set()
    if wrong := [code for code in rules.languages if code not in codes]:
        raise KinspanError(f"--languages {wrong[0]}: not one of the codes that py3langid detects")


def clean(document: Document, rules: Rules, tally: Tally) -> list[str] | None:
    """Returns the kept paragraphs of a document, or None if it is dropped.

    A question with only a title and an accepted answer is kept, with an empty list. ``tally`` counts each lost
    paragraph once: too short, dropped by a step, or in a dropped document; the caller counts the kept ones.
    """
    paragraphs = _keep_filled(document.paragraphs)
    tally.counts["documents read"] += 1
    tally.counts["characters read"] += sum(map(len, document.paragraphs))
    tally.counts["paragraphs read"] += len(paragraphs)
    for step in find_steps(tuple(rules.skip_steps), tuple(rules.clean_with)):
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
            raise TypeError(f"it returned {type(result).__name__}, instead of a list of paragraphs")
    except Exception as error:
        raise KinspanError(f"--clean_with: step {step.name}, document {document.id}: {quote_error(error)}") from error
    if result == paragraphs:
        return paragraphs
    result = _keep_filled(result)
    removed, added = Counter(paragraphs) - Counter(result), Counter(result) - Counter(paragraphs)
    dropped, changed = f"paragraphs dropped: {step.name}", f"paragraphs changed: {step.name}"
    if num_dropped := len(paragraphs) - len(result):
        tally.counts[dropped] += num_dropped
    if added:
        tally.counts[changed] += removed.total() - num_dropped
    for paragraph in removed:
        is_changed = added and (not num_dropped or _keep_filled(step.apply(document, [paragraph])))
        tally.add_sample(changed if is_changed else dropped, normalise(paragraph))
    return result


def _keep_filled(paragraphs: list[str]) -> list[str]:
    return [p for p in paragraphs if p and not p.isspace()]


def _drop_short(document: Document, paragraphs: list[str], rules: Rules, tally: Tally) -> list[str] | None:
    """Returns the paragraphs that are not too short; None if they are too short for a document."""
    min_chars, min_total = (1, 1) if document.is_post else (rules.min_paragraph_chars, rules.min_document_chars)
    kept = []
    for paragraph in paragraphs:
        if paragraph and count_chars(paragraph) >= min_chars:
            kept.append(paragraph)
        else:
            tally.counts["paragraphs too short"] += 1
            tally.add_sample("paragraphs too short", paragraph)
    if not kept and document.title_is_text and document.accepted is not None:
        needed = (document.title, document.answers[document.accepted])
        if all(map(normalise, needed)):
            return []
    if sum(map(count_chars, kept)) < min_total or not kept:
        name = "documents too short" if kept else "documents without a long enough paragraph"
        tally.counts[name] += 1
        tally.counts["paragraphs of dropped documents"] += len(kept)
        if kept:
            tally.add_sample(name, kept[0])
        return None
    return kept


@cache
def _load_model() -> "LanguageIdentifier":
    """Loads py3langid's identifier; its model is part of the package, so no network is needed."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)


def detect_language(paragraphs: list[str]) -> str:
    """Returns the ISO 639 code of a document's language, of two letters if there is such a code, else of three."""
    text = " ".join(paragraphs[:50])
    begin = max(0, len(text) - LANGUAGE_CHARS) // 2
    text = text[begin : begin + LANGUAGE_CHARS]
    return str(_load_model().classify(text)[0]) if any(map(str.isalpha, text)) else "unknown"
