"""BM25, the baseline that compares words only (Robertson and Zaragoza, 2009), and its tokenisation."""

import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from threading import Lock

import bm25s
import numpy as np
import Stemmer

from data_pipeline.core.errors import KinspanError
from data_pipeline.matching import MARKS, POINTS, count_chars, fold_characters, write_bigrams
from data_pipeline.prepare.cleaning import LANGUAGE_CHARS, detect_language
from finetune.data.answers import AnswerSet

log = logging.getLogger(__name__)

BM25 = "BM25"
ABOUT = f"{BM25} compares all words, in lower case, by their Snowball stems"  # for tables
WORD = re.compile(rf"[\w{MARKS}]+")
MAX_WORD = 100  # characters of a word that are compared, so that stored stems cannot fill the memory
_OPTIONAL = re.compile(f"[{POINTS}\u0640]")  # stress, vowels and long lines of Arabic words; the dot of a lower-case İ
K1, B = 1.5, 0.75  # the defaults of bm25s
ENGLISH, UNSTEMMED = "en", "none"
SAMPLE, MIN_SAMPLE = 20, 100  # texts from which the language is guessed; with fewer characters it is English
_lock = Lock()  # threads must not use a stemmer at once


@cache
def load_stemmer(language: str) -> Stemmer.Stemmer | None:
    """Returns Snowball's stemmer of a language; None for UNSTEMMED. Raises KeyError if there is none."""
    return None if language == UNSTEMMED else Stemmer.Stemmer(language)


def choose_language(given: str | None, texts: Sequence[str]) -> str:
    """Returns the language whose stems BM25 compares: the given one, or that of the texts, which is logged."""
    sample = texts[:: max(1, len(texts) // SAMPLE)][:SAMPLE]
    sample = [text[: LANGUAGE_CHARS // len(sample)] for text in sample]
    language = given or (detect_language(sample) if sum(map(count_chars, sample)) >= MIN_SAMPLE else ENGLISH)
    try:
        load_stemmer(language)
    except KeyError:
        if given:
            raise KinspanError(f"--language {given}: must be {UNSTEMMED}, or of {Stemmer.algorithms()}") from None
        language = UNSTEMMED
    if not given:
        _note_language(language)
    return language


@cache
def _note_language(language: str) -> None:  # once, not for every collection of texts
    log.info("%s compares %s, guessed from the texts", BM25, name_words(language))


def name_words(language: str) -> str:
    """Returns which words of a language are compared, for messages."""
    return "whole words" if language == UNSTEMMED else f"stems of the language {language}"


def stem_word(word: str, language: str) -> str:
    """Returns the stem of a word, by which BM25 compares it; of a long word only the beginning counts."""
    return _stem(word[:MAX_WORD], language)


@lru_cache(100_000)
def _stem(word: str, language: str) -> str:
    word = _OPTIONAL.sub("", fold_characters(word).lower())
    if (stemmer := load_stemmer(language)) is not None:
        with _lock:
            word = stemmer.stemWord(word)
    return word.replace("ı", "i")  # Turkish, whose capital I became an i


def cut_words(texts: Iterable[str], language: str) -> list[list[str]]:
    """Returns the words of each text as BM25 compares them, see matching.write_bigrams."""
    words = (WORD.findall(write_bigrams(fold_characters(text)).lower()) for text in texts)
    return [[stem for word in words_of_text if (stem := stem_word(word, language))] for words_of_text in words]


def index_words(texts: Sequence[str], language: str) -> bm25s.BM25 | None:
    """Returns a BM25 index of these texts, with the defaults of bm25s, or None if no text has a word."""
    words = cut_words(texts, language)
    if not any(words):
        return None
    index = bm25s.BM25()
    index.index(words, show_progress=False)
    return index


def score_bm25(data: AnswerSet, language: str | None = None) -> np.ndarray:
    """Returns the scores ``[N]`` of the candidates by BM25, with the word counts of the distinct candidates."""
    return score_bm25_by(count_words(data.answers.unique().to_pylist(), language), data)


@dataclass(frozen=True)
class WordCounts:
    """The word counts of a collection, by which BM25 scores texts that need not be in it.

    frequency: number of texts with each word; a missing word counts as if it occurred in one text
    language:  see ``choose_language``
    """

    num_texts: int
    mean_words: float
    frequency: dict[str, int]
    language: str


def count_words(texts: Sequence[str], language: str | None = None) -> WordCounts:
    words = cut_words(texts, language := choose_language(language, texts))
    frequency = Counter(chain.from_iterable(map(set, words)))
    mean = sum(map(len, words)) / max(1, len(texts))
    return WordCounts(len(texts), mean, {word: n for word, n in frequency.items() if n > 1}, language)


def score_bm25_by(counts: WordCounts, data: AnswerSet) -> np.ndarray:
    """Returns the scores ``[N]`` by BM25 with the word counts of another collection; 0 if a pair shares no word."""
    distinct = data.answers.dictionary_encode()
    texts = cut_words(distinct.dictionary.to_pylist(), counts.language)
    term_counts = [Counter(words) for words in texts]
    norms = [K1 * (1 - B + B * len(words) / max(counts.mean_words, 1e-9)) for words in texts]
    scores = np.zeros(data.num_pairs)
    for words, rows in zip(cut_words(data.questions, counts.language), data.question_slices(), strict=True):
        weights = {  # with the inverse document frequency of Lucene and bm25s
            word: n * math.log(1 + (counts.num_texts - (f := counts.frequency.get(word, 1)) + 0.5) / (f + 0.5))
            for word, n in Counter(words).items()
        }
        for row, index in enumerate(distinct.indices[rows.start : rows.stop].to_pylist(), rows.start):
            tf, norm = term_counts[index], norms[index]
            scores[row] = sum(weight * tf[w] / (tf[w] + norm) for w, weight in weights.items() if w in tf)
    return scores
