"""Makes ASNQ from Natural Questions: labels every sentence of a question's page (Garg et al., 2020, section 4).

Natural Questions (Kwiatkowski et al., 2019) has for each question a Wikipedia page as tokens, which are words and HTML
tags. From each annotator it has a long answer, such as a paragraph, and short answers inside it, as ranges of tokens;
either may be missing. ASNQ labels a sentence by its position, with the numbers of table 1 of Garg et al.:

    label   in a long answer   with a short answer
    1       no                 no
    2       no                 yes: the short answer's words occur in it
    3       yes                no
    4       yes                yes: an annotated short answer is in it; the only positive label

The paper does not say how to handle some cases; here:

- A question is kept if enough annotators gave both a long answer and short answers: the only annotator of the training
  set, or two of the five of the development set. Natural Questions itself requires as much before it considers a
  question answered. The answers of all such annotators count. A bare "yes" or "no" is not a short answer, since it is
  not a text of the page. The paper keeps 57,242 training questions, fewer than have short answers, by a rule that it
  does not give.
- A sentence ends at a tag that opens or closes a block, and where a long answer begins or ends. Links, bold type and
  the like do not end one, nor do the cells of a table's row, which stay together. Between these ends, blingfire finds
  the sentences.
- A sentence end that is found inside an annotated short answer is ignored, since it belongs to an abbreviation.
- Outside the long answer, short answers match as whole words, and upper and lower case are distinguished.
- A question is left out if each of its short answers crosses the end of a block, since it has no positive then. A
  question whose text was there before is left out too, since ASNQ's file tells questions apart by their text.
"""

import json
import re
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from data_pipeline.prepare.document import Rejected
from data_pipeline.prepare.encode import normalise, split_sentences
from data_pipeline.prepare.readers.reader import Record, measure_content

NEITHER, SHORT_ONLY, LONG_ONLY, BOTH = LABELS = (1, 2, 3, 4)
KEPT, NO_LONG, YES_NO, NO_SHORT, NO_POSITIVE = OUTCOMES = (
    "kept",
    "no long answer",
    "answered by yes or no",
    "no short answer",
    "no sentence holds a whole short answer",
)
ANNOTATORS_NEEDED = 2  # of five, as Kwiatkowski et al., 2019, require; the training set has one

_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9]*)(?:[\s_/][^>]*)?>")  # the simplified form writes "_" for spaces in a tag
_STYLE = "a|abbr|acronym|b|bdi|bdo|big|cite|code|del|dfn|em|font|i|img|ins|kbd|mark|q|s|samp|small|span|strike|strong"
_IN_A_SENTENCE = frozenset(f"{_STYLE}|sub|sup|td|th|time|tt|u|var|wbr".split("|"))
_ODD = re.compile("[\x00\ufeff\ud800-\udfff]")  # characters that blingfire drops or refuses

Span = tuple[int, int]


@dataclass(frozen=True)
class Example:
    """A question and its page; answers are ranges ``[start, end)`` of tokens.

    tags: for each token, the tag's name in lower case ("" if it cannot be read), or None for a word
    """

    question: str
    tokens: list[str]
    tags: list[str | None]
    long_answers: list[Span]
    short_answers: list[Span]


def parse_example(line: bytes) -> Example | str:
    """Returns the example in a line, original or simplified; or one of OUTCOMES, if it excludes the question."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"not JSON: {error}") from error
    try:
        question = normalise(record["question_text"])
        longs, shorts, outcome = _select_answers(record["annotations"])
        if outcome != KEPT:
            return outcome
        if "document_tokens" in record:
            tokens = [token["token"] for token in record["document_tokens"]]
            tags = [_find_tag(t["token"]) or "" if t["html_token"] else None for t in record["document_tokens"]]
        else:
            tokens = record["document_text"].split(" ")
            tags = [_find_tag(token) if token.startswith("<") else None for token in tokens]
        in_range = all(0 <= first < end <= len(tokens) for first, end in longs + shorts)
        if _ODD.search(" ".join(tokens)):
            tokens = [_ODD.sub("\ufffd", token) for token in tokens]
    except (KeyError, TypeError, AttributeError) as error:
        raise Rejected(f"not in the form of Natural Questions ({type(error).__name__}: {error})") from error
    if not question:
        raise Rejected("the question is empty")
    if not in_range:
        raise Rejected(f"an answer is not within the page's {len(tokens)} tokens")
    return Example(question, tokens, tags, longs, shorts)


def _find_tag(token: str) -> str | None:
    match = _TAG.fullmatch(token)
    return match[1].lower() if match else None


def _select_answers(annotations: list[dict[str, Any]]) -> tuple[list[Span], list[Span], str]:
    """Returns the long and the short answers of the annotators who gave both, and KEPT or the reason to drop it."""
    with_long = [a for a in annotations if a["long_answer"]["start_token"] >= 0]
    with_both = [a for a in with_long if a["short_answers"]]
    needed = min(ANNOTATORS_NEEDED, len(annotations))
    if not annotations or len(with_long) < needed:
        return [], [], NO_LONG
    if len(with_both) < needed:
        answered = [a for a in with_long if a["short_answers"] or a["yes_no_answer"] != "NONE"]
        return [], [], YES_NO if len(answered) >= needed else NO_SHORT
    longs = [_get_span(a["long_answer"]) for a in with_both]
    return longs, [_get_span(s) for a in with_both for s in a["short_answers"]], KEPT


def _get_span(answer: dict[str, int]) -> Span:
    return answer["start_token"], answer["end_token"]


def label_sentences(example: Example) -> list[tuple[str, int]]:
    """Returns every sentence of the page, in order, with its label."""
    words = [
        " ".join(t for t, tag in zip(example.tokens[a:b], example.tags[a:b], strict=True) if tag is None)
        for a, b in example.short_answers
    ]
    strings = {f" {normalise(w)} " for w in words if w.strip()}
    out = []
    for block in _split_blocks(example):
        in_long = any(a <= block[0] < b for a, b in example.long_answers)
        for sentence in _split_sentences(block, example):
            text = normalise(" ".join(example.tokens[i] for i in sentence))
            if in_long:
                holds = any(sentence[0] <= a and b - 1 <= sentence[-1] for a, b in example.short_answers)
            else:
                holds = any(s in f" {text} " for s in strings)
            if text:
                out.append((text, (LONG_ONLY if in_long else NEITHER) + holds))
    return out


def _split_blocks(example: Example) -> list[list[int]]:
    """Returns the words between two ends of blocks or of long answers, as token indices."""
    edges = {edge for span in example.long_answers for edge in span}
    blocks: list[list[int]] = [[]]
    for i, tag in enumerate(example.tags):
        if i in edges or (tag is not None and tag not in _IN_A_SENTENCE):
            blocks.append([])
        if tag is None:
            blocks[-1].append(i)
    return [block for block in blocks if block]


def _split_sentences(block: list[int], example: Example) -> list[list[int]]:
    """Cuts the block into sentences. Offsets do not count white space, which blingfire may change."""
    tokens = ["".join(example.tokens[i].split()) for i in block]
    token_ends = list(accumulate(map(len, tokens)))
    sentences = split_sentences(" ".join(tokens))
    out: list[list[int]] = []
    first = 0
    for end in accumulate(len("".join(sentence.split())) for sentence in sentences):
        following = bisect_left(token_ends, end) + 1  # the first token after the sentence
        cuts_an_answer = following < len(block) and any(a < block[following] < b for a, b in example.short_answers)
        if following > first and not cuts_an_answer:
            out.append(block[first:following])
            first = following
    if first < len(block):
        out.append(block[first:])
    return out


class BuiltQuestion(NamedTuple):
    """Holds the outcome of line ``number`` of an input file, of ``size`` bytes.

    outcome: one of OUTCOMES, or why the line is not in the form of Natural Questions
    lines:   the question's lines for ASNQ's file, if it is kept
    counts:  the number of sentences with each of LABELS
    """

    file: str
    number: int
    size: int
    outcome: str
    question: str = ""
    lines: bytes = b""
    counts: tuple[int, ...] = ()


def build_chunk(records: list[Record]) -> list[BuiltQuestion]:
    """Builds each record, a line of a file, into ASNQ's lines ``question \\t sentence \\t label``."""
    return [_build_question(record) for record in records]


def _build_question(record: Record) -> BuiltQuestion:
    built = BuiltQuestion(record.file, record.line, measure_content(record.content), NO_POSITIVE)
    try:
        if isinstance(record.content, Rejected):
            raise record.content
        example = parse_example(record.content)
    except Rejected as reason:
        return built._replace(outcome=str(reason))
    if isinstance(example, str):
        return built._replace(outcome=example)
    sentences = label_sentences(example)
    counts = Counter(label for _, label in sentences)
    if not counts[BOTH]:
        return built
    lines = "".join(f"{example.question}\t{text}\t{label}\n" for text, label in sentences).encode()
    return BuiltQuestion(*built[:3], KEPT, example.question, lines, tuple(counts[label] for label in LABELS))
