"""Where a text has the words of a question."""

import re

from bm25s.stopwords import STOPWORDS_EN

from finetune.evaluation.bm25 import WORD, stem_words


def find_words(question: str) -> set[str]:
    """The question's words by their stems, as BM25 compares them; English function words would mark every line."""
    words = [match.group().lower() for match in re.finditer(WORD, question)]
    return set(stem_words([word for word in words if word not in STOPWORDS_EN]))


def mark_words(text: str, words: set[str]) -> list[tuple[int, int]]:
    """The first character of each of the words in the text, and the one after its last."""
    found = list(re.finditer(WORD, text))
    stems = stem_words([match.group().lower() for match in found])
    return [match.span() for match, stem in zip(found, stems, strict=True) if stem in words]
