"""BM25, the baseline that reads words alone."""

import bm25s
import numpy as np

from finetune.data.answers import AnswerSet


def score_bm25(data: AnswerSet) -> np.ndarray:
    """The scores ``[N]`` of the candidates by BM25, 0 where a candidate shares no word with its question.

    The collection, from which word frequencies are taken, is the distinct candidates of ``data``. Words are lower-case
    and of two letters or more, without English stop words; k1 is 1.5, b .75 and the idf Lucene's (bm25s' defaults;
    Robertson and Zaragoza, 2009, "The probabilistic relevance framework: BM25 and beyond").
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
