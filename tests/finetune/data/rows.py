"""Makes small data sets, and what tests compare of them."""

import numpy as np
import pyarrow as pa

from finetune.data.answers import AnswerSet


def make_answers(questions, sizes, answers, labels, answer_ids=None, split="test"):
    """Questions q0, q1, ... with these numbers of candidates; without ids, these are a0, a1, ..."""
    ids = answer_ids or [f"a{n}" for n in range(len(answers))]
    texts = (pa.array(column, pa.large_string()) for column in (ids, answers))
    names, starts = [f"q{n}" for n in range(len(questions))], np.cumsum([0, *sizes])
    return AnswerSet("made", split, names, questions, starts, *texts, np.array(labels, dtype=np.int8))


def rows_of(data):
    """(question id, question, answer id, answer, label) of each row."""
    ids, texts = data.answer_ids.to_pylist(), data.answers.to_pylist()
    return [
        (data.question_ids[q], data.questions[q], ids[row], texts[row], int(data.labels[row]))
        for row, q in enumerate(data.question_of)
    ]
