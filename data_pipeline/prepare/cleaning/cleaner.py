"""A document through all steps of cleaning, each of which is counted, and the language that it is in."""

from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.prepare.document import Document

from .rules import Rules
from .steps import Step, find_steps
from .tally import Tally
from .text import normalise

MAX_CHARS = 1000  # of a document that are looked at, from its middle
UNKNOWN = "unknown"


def check_rules(rules: Rules) -> None:
    """Raise KinspanError, before any work is done, where steps or languages are named that there are not."""
    find_steps(rules)
    check_languages(rules.languages)


def clean(document: Document, rules: Rules, tally: Tally) -> list[str]:
    """Clean the paragraphs of a document and return those that are kept; none where the document is dropped."""
    return clean_or_drop(document, rules, tally) or []


def clean_or_drop(document: Document, rules: Rules, tally: Tally) -> list[str] | None:
    """Clean the paragraphs of a document and return those that are kept, or None where the document is dropped.

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
    """Apply a step, and count what it dropped or changed. A paragraph that it leaves empty is dropped."""
    try:
        found = step.apply(document, paragraphs)
        if isinstance(found, str) or not isinstance(found, Iterable):
            raise TypeError(f"it returned {type(found).__name__}, where a list of paragraphs is due")
    except Exception as error:
        reason = f"{type(error).__name__}: {quote_error(error)}"
        raise KinspanError(f"the cleaning step {step.name} failed on document {document.id}: {reason}") from error
    if found is paragraphs or found == paragraphs:
        return paragraphs
    found = _keep_filled(found)
    gone, come = Counter(paragraphs) - Counter(found), Counter(found) - Counter(paragraphs)
    dropped, changed = f"paragraphs dropped: {step.name}", f"paragraphs changed: {step.name}"
    if num_dropped := len(paragraphs) - len(found):
        tally.counts[dropped] += num_dropped
    if come:
        tally.counts[changed] += gone.total() - num_dropped
    for paragraph in gone:
        is_changed = come and (not num_dropped or _keep_filled(step.apply(document, [paragraph])))
        tally.add_sample(changed if is_changed else dropped, normalise(paragraph))
    return found


def _keep_filled(paragraphs: list[str]) -> list[str]:
    return [p for p in paragraphs if p and not p.isspace()]


def _is_answered(document: Document) -> bool:
    """Whether a title with its accepted answer is to be trained on, even where there is no body."""
    if not document.title_is_text or document.accepted is None:
        return False
    return bool(normalise(document.title) and normalise(document.answers[document.accepted]))


def _drop_short(document: Document, paragraphs: list[str], rules: Rules, tally: Tally) -> list[str] | None:
    """Drop short paragraphs, and the document, for which None stands, where those that are left are too short."""
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
    """Load the identifier, whose model is a part of its package: no network is needed."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise KinspanError("--languages needs py3langid: pip install 'kinspan[web]'") from error
    return LanguageIdentifier.from_model_file(MODEL_FILE)


def check_languages(languages: list[str]) -> None:
    """Raise KinspanError for a code that the identifier does not know."""
    known = set(_load_model().labels) if languages else set()
    if wrong := [code for code in languages if code not in known]:
        raise KinspanError(
            f"--languages {wrong[0]}: not a known code (ISO 639, such as en); known are {' '.join(sorted(known))}"
        )


def detect_language(paragraphs: list[str]) -> str:
    """Name the language of a document by its code of ISO 639: two letters where there are two, else three."""
    text = " ".join(paragraphs[:50])
    begin = max(0, len(text) - MAX_CHARS) // 2
    text = text[begin : begin + MAX_CHARS]
    if not any(map(str.isalpha, text)):
        return UNKNOWN
    return str(_load_model().classify(text)[0])
