"""BM25, the baseline that compares words only, and its tokenisation."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from threading import Lock

import bm25s
import numpy as np
import Stemmer

from data_pipeline.matching import MARKS, write_bigrams
from finetune.data.answers import AnswerSet

BM25 = "BM25"
WORDS = "all words, in lower case, stemmed by Snowball's English stemmer"  # what ``cut_words`` keeps
ABOUT = f"{BM25} compares {WORDS}"  # for tables
WORD = re.compile(rf"[\w{MARKS}]+")
K1, B = 1.5, 0.75  # the defaults of bm25s
_stemmer, _lock = Stemmer.Stemmer("english"), Lock()  # threads must not use it at once


@lru_cache(100_000)
def stem_word(word: str) -> str:
    """Returns the stem of a word in lower case, by which BM25 compares it."""
    with _lock:
        return _stemmer.stemWord(word)


def cut_words(texts: Iterable[str]) -> list[list[str]]:
    """Returns the words of each text as BM25 compares them, see ``WORDS`` and matching.write_bigrams."""
    return [list(map(stem_word, WORD.findall(write_bigrams(text).lower()))) for text in texts]


def index_words(texts: Sequence[str]) -> bm25s.BM25 | None:
    """Returns a BM25 index of these texts, or None if no text has a word.

    k1 is 1.5, b is .75, and the inverse document frequency is Lucene's: the defaults of bm25s (Robertson and Zaragoza,
    2009, "The probabilistic relevance framework: BM25 and beyond").
    """
    words = cut_words(texts)
    if not any(words):
        return None
    index = bm25s.BM25()
    index.index(words, show_progress=False)
    return index


def score_bm25(data: AnswerSet) -> np.ndarray:
    """Returns the scores ``[N]`` of the candidates by BM25; 0 if a candidate shares no word with its question.

    Word frequencies are those of the distinct candidates of ``data``.
    """
    distinct = data.answers.dictionary_encode()
    document_of = distinct.indices.to_numpy()  # [N]
    scores = np.zeros(data.num_pairs)
    index = index_words(distinct.dictionary.to_pylist())
    if index is None:
        return scores
    for words, rows in zip(cut_words(data.questions), data.question_slices(), strict=True):
        if words:
            scores[rows] = index.get_scores(words)[document_of[rows]]
    return scores


@dataclass(frozen=True)
class WordCounts:
    """The word counts of a collection, by which BM25 scores texts that need not be in it.

    frequency: number of texts with each word; a missing word counts as if it occurred in one text
    """

    num_texts: int
    mean_words: float
    frequency: dict[str, int]


def count_words(texts: Sequence[str]) -> WordCounts:
    words = cut_words(texts)
    frequency = Counter(chain.from_iterable(map(set, words)))
    mean = sum(map(len, words)) / max(1, len(texts))
    return WordCounts(len(texts), mean, {word: n for word, n in frequency.items() if n > 1})


def score_bm25_by(counts: WordCounts, data: AnswerSet) -> np.ndarray:
    """Returns the scores ``[N]`` of the candidates by BM25 with the word counts of another collection.

    A candidate's score then depends only on its question and its text, not on the other candidates. With the counts of
    ``data`` itself, the scores are those of ``score_bm25``.
    """
    distinct = data.answers.dictionary_encode()
    texts = cut_words(distinct.dictionary.to_pylist())
    term_counts = [Counter(words) for words in texts]
    norms = [K1 * (1 - B + B * len(words) / max(counts.mean_words, 1e-9)) for words in texts]
    scores = np.zeros(data.num_pairs)
    for words, rows in zip(cut_words(data.questions), data.question_slices(), strict=True):
        weights = {word: n * _compute_idf(counts, word) for word, n in Counter(words).items()}
        for row, index in enumerate(distinct.indices[rows.start : rows.stop].to_pylist(), rows.start):
            tf, norm = term_counts[index], norms[index]
            scores[row] = sum(weight * tf[w] / (tf[w] + norm) for w, weight in weights.items() if w in tf)
    return scores


def _compute_idf(counts: WordCounts, word: str) -> float:
    """Returns the inverse document frequency, as Lucene and bm25s compute it."""
    frequency = counts.frequency.get(word, 1)
    return math.log(1 + (counts.num_texts - frequency + 0.5) / (frequency + 0.5))
