"""TREC-QA as Jacana distributes it (Yao et al., 2013): files that look like XML and are not, since nothing is escaped.

Every tag has a line of its own::

    <QApairs id='1.4'>
    <question>
    What<TAB>ethnic<TAB>group ...      the tokens; below them lines of parts of speech, dependencies and entities
    </question>
    <negative>                         or <positive>; there may be none of either
    Prison<TAB>gangs<TAB>have ...
    </negative>
    </QApairs>
"""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from .collect import Row
from .tables import text_lines

PAIRS, QUESTION, POSITIVE, NEGATIVE = "QApairs", "question", "positive", "negative"
OPENING = {f"<{kind}>": kind for kind in (QUESTION, POSITIVE, NEGATIVE)}


def jacana_rows(path: Path) -> Iterator[Row]:
    """Questions and candidates, tokens joined by spaces. Raises KinspanError with the line of a tag out of place."""
    question_id = question = None
    for line, kind, text in _elements(path):
        if kind == PAIRS:
            question_id, question = text, None
            continue
        if question_id is None or (question is None) != (kind == QUESTION):
            due = "<question>" if question_id is not None and question is None else "<QApairs id='...'>"
            raise KinspanError(f"{path} line {line}: <{kind}> where {due} should stand")
        if kind == QUESTION:
            question = text
        yield line, question_id, question or "", None, None if kind == QUESTION else text, int(kind == POSITIVE)


def _elements(path: Path) -> Iterator[tuple[int, str, str]]:
    """Of each element the line of its tag, its kind and its tokens; of <QApairs> the id."""
    kind = text = None
    since = 0
    for number, line in text_lines(path):
        tag = line.strip()
        if kind is None:
            if tag.startswith(f"<{PAIRS}"):
                yield number, PAIRS, tag.partition("=")[2].strip(" >\"'")
            elif tag in OPENING:
                kind, text, since = OPENING[tag], None, number
        elif tag == f"</{kind}>":
            yield since, kind, text or ""
            kind = None
        elif tag in OPENING or tag.startswith((f"<{PAIRS}", f"</{PAIRS}")):
            raise KinspanError(f"{path} line {number}: {tag} before the </{kind}> of line {since}")
        elif text is None:
            text = normalise(line)
    if kind is not None:
        raise KinspanError(f"{path} line {since}: the file ends before </{kind}>")
