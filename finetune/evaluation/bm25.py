"""BM25, the baseline that only compares words."""

import bm25s
import numpy as np

from finetune.data.answers import AnswerSet


def score_bm25(data: AnswerSet) -> np.ndarray:
    """Returns the scores ``[N]`` of the candidates by BM25, 0 where a candidate shares no word with its question.

    Word frequencies are those of the distinct candidates of ``data``. Words are in lower case, have two letters or
    more, and are no English stop words. k1 is 1.5, b is .75, and the inverse document frequency is Lucene's: the
    defaults of bm25s (Robertson and Zaragoza, 2009, "The probabilistic relevance framework: BM25 and beyond").
    """
    distinct = data.answers.dictionary_encode()
    document_of = distinct.indices.to_numpy()  # [N]
    documents = bm25s.tokenize(distinct.dictionary.to_pylist(), show_progress=False)
    questions = bm25s.tokenize(list(data.questions), return_ids=False, show_progress=False)
    scores = np.zeros(data.num_pairs)
    if not documents.vocab:
        return scores
    index = bm25s.BM25()
    index.index(documents, show_progress=False)
    for words, rows in zip(questions, data.rows(), strict=True):
        if words:
            scores[rows] = index.get_scores(words)[document_of[rows]]
    return scores
