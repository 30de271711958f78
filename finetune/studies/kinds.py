"""Which questions of a set are of which kind: by what they ask for, and by the words that their answers repeat."""

import re
from itertools import pairwise

import numpy as np

from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import cut_words

ASKED = ("how many", "how much", "who", "when", "where", "why", "which", "what", "how")
OTHER = "other"
SHARES = (0.0, 0.34, 0.67, 1.01)  # of a question's distinct words, as BM25 compares them, that a right answer has


def find_kinds(data: AnswerSet) -> dict[str, dict[str, list[int]]]:
    """The numbers of the questions of each kind, by ``asked`` and by ``overlap``; a question is of one kind of each.

    asked:   the first of ASKED that stands in the question, else OTHER
    overlap: the greatest share of its words that one of its right answers repeats, function words included
    """
    asked: dict[str, list[int]] = {}
    for number, question in enumerate(data.questions):
        found = re.search(rf"\b({'|'.join(ASKED)})\b", question.lower())
        asked.setdefault(found[1] if found else OTHER, []).append(number)
    shares = measure_overlap(data)
    overlap = {
        f"{low:.0%} to {min(high, 1):.0%}": ((low <= shares) & (shares < high)).nonzero()[0].tolist()
        for low, high in pairwise(SHARES)
    }
    return {"asked": {kind: asked[kind] for kind in (*ASKED, OTHER) if kind in asked}, "overlap": overlap}


def measure_overlap(data: AnswerSet) -> np.ndarray:
    """``[Q]``: the greatest share of a question's distinct words that one of its right answers has."""
    shares = np.zeros(data.num_questions)
    words = cut_words(data.answers.to_pylist())
    for number, (asked, rows) in enumerate(
        zip(map(set, cut_words(data.questions)), data.question_slices(), strict=True)
    ):
        right = [len(asked & set(words[row])) for row in range(rows.start, rows.stop) if data.labels[row]]
        shares[number] = max(right, default=0) / max(1, len(asked))
    return shares
