"""Where a text has the words of a question."""

import re

import bm25s

WORD = re.compile(r"\b\w\w+\b")  # as bm25s cuts texts, whose words this module marks; a test compares the two


def find_words(question: str) -> set[str]:
    """The question's words as BM25 reads them: in lower case, of two letters or more, and no English stop words."""
    return set(bm25s.tokenize(question, return_ids=False, show_progress=False)[0])


def mark_words(text: str, words: set[str]) -> list[tuple[int, int]]:
    """The first character of each of the words in the text, and the one after its last."""
    if not words:
        return []
    return [match.span() for match in WORD.finditer(text) if match.group().lower() in words]
