"""Folds of questions for cross-validation: questions that are alike stay together."""

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import chain

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from data_pipeline.matching import CJK, list_words

from .answers import AnswerSet

SIMILAR = 0.8  # Jaccard index of the words of two questions from which they count as one
BLOCK = 1000  # questions that are compared with all others at a time
SEED = np.array([0, 2**33], dtype=np.uint64)  # of the random order in which groups are assigned to folds


def pair_similar(first: Sequence[str], second: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pairs of similar texts: their indices in ``first`` and in ``second``, ``[P]`` each.

    Texts are similar if their sets of words have a Jaccard index of ``SIMILAR`` or more, whatever their case,
    order and punctuation; a Chinese or Japanese character is a word. A text without a word is similar to none.
    """
    from sklearn.preprocessing import MultiLabelBinarizer  # takes a second

    spaced = (re.sub(f"[{CJK}]", r" \g<0> ", text) for text in (*first, *second))
    words = MultiLabelBinarizer(sparse_output=True).fit_transform([set(list_words(text)) for text in spaced])
    sizes, right = np.diff(words.indptr), words[len(first) :]  # [texts, words]: 1 where the text has the word
    rows, columns = [np.zeros(0, int)], [np.zeros(0, int)]
    for start in range(0, len(first), BLOCK):
        shared = coo_matrix(words[start : min(start + BLOCK, len(first))] @ right.T)
        all_words = sizes[shared.row + start] + sizes[len(first) :][shared.col]
        similar = shared.data >= SIMILAR * (all_words - shared.data)
        rows.append(shared.row[similar] + start)
        columns.append(shared.col[similar])
    return np.concatenate(rows), np.concatenate(columns)


def group_questions(data: AnswerSet, places: Sequence[Collection[str]] = ()) -> np.ndarray:
    """Returns the group of each question, ``[Q]``: those that share a right answer, a place or a similar wording.

    places: the documents or paragraphs that hold right answers to each question
    """
    right = np.flatnonzero(data.labels)
    names, place_of = np.unique(list(chain.from_iterable(places)), return_inverse=True)
    placed = np.array([question for question, held in enumerate(places) for _ in held], dtype=int)
    first, second = pair_similar(data.questions, data.questions)
    first_answer, first_place = data.num_questions, data.num_questions + len(data.distinct.rows)
    answered = [data.question_of[right], first_answer + data.distinct.which[right]]
    edges = np.concatenate([[first, second], answered, [placed, first_place + place_of]], axis=1)
    size = first_place + len(names)
    return connected_components(coo_matrix((np.ones(edges.shape[1]), edges), (size, size)))[1][: data.num_questions]


def assign_folds(groups: np.ndarray, num_folds: int, weights: np.ndarray | None = None) -> np.ndarray:
    """Returns the fold of each question, ``[Q]``: a group lies in one fold, and folds have about the same weight.

    There are fewer folds if there are fewer groups. ``weights``: of the questions, ``[Q]``, by default 1
    """
    names, group_of = np.unique(groups, return_inverse=True)
    sizes = np.bincount(group_of, weights)
    order = np.random.Generator(np.random.Philox(key=SEED)).permutation(len(names))
    fold_of, filled = np.empty(len(names), int), np.zeros(min(num_folds, len(names)))
    for group in order[np.argsort(-sizes[order], kind="stable")]:
        fold_of[group] = filled.argmin()
        filled[fold_of[group]] += sizes[group]
    return fold_of[group_of]


def iterate_folds(fold_of: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields which questions each fold trains on, and which it holds out, ``[Q]`` bool each."""
    for fold in range(fold_of.max() + 1):
        yield fold_of != fold, fold_of == fold
