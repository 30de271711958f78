"""BM25, the baseline that only compares words, and how it cuts texts into words."""

from collections.abc import Sequence
from typing import Any

import bm25s
import numpy as np
import Stemmer

from finetune.data.answers import AnswerSet

BM25 = "BM25"
WORDS = "all words, in lower case, stemmed by Snowball's English stemmer"  # what ``cut_words`` keeps
ABOUT = f"{BM25} compares {WORDS}"  # for tables
WORD = r"\b\w+\b"


def stem_words(words: list[str]) -> list[str]:
    """Returns the stems of words in lower case, by which BM25 compares them."""
    return Stemmer.Stemmer("english").stemWords(words)  # a new one each time: threads must not share one


def cut_words(texts: Sequence[str], *, return_ids: bool = False) -> Any:
    """Returns the words of each text as BM25 compares them, see ``WORDS``; function words and single letters count.

    return_ids: return the ids and the vocabulary that bm25s makes an index of
    """
    options = {"token_pattern": WORD, "stopwords": None, "stemmer": stem_words}
    return bm25s.tokenize(list(texts), return_ids=return_ids, show_progress=False, **options)


def index_words(texts: Sequence[str]) -> bm25s.BM25 | None:
    """Returns BM25 over these texts, and None where none of them has a word.

    k1 is 1.5, b is .75, and the inverse document frequency is Lucene's: the defaults of bm25s (Robertson and Zaragoza,
    2009, "The probabilistic relevance framework: BM25 and beyond").
    """
    words = cut_words(texts, return_ids=True)
    if not words.vocab:
        return None
    index = bm25s.BM25()
    index.index(words, show_progress=False)
    return index


def score_bm25(data: AnswerSet) -> np.ndarray:
    """Returns the scores ``[N]`` of the candidates by BM25, 0 where a candidate shares no word with its question.

    Word frequencies are those of the distinct candidates of ``data``.
    """
    distinct = data.answers.dictionary_encode()
    document_of = distinct.indices.to_numpy()  # [N]
    scores = np.zeros(data.num_pairs)
    index = index_words(distinct.dictionary.to_pylist())
    if index is None:
        return scores
    for words, rows in zip(cut_words(data.questions), data.rows(), strict=True):
        if words:
            scores[rows] = index.get_scores(words)[document_of[rows]]
    return scores
