import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.core.errors import KinspanError
from finetune.data.filters import CLEAN, FILTERS, NO_ALL_NEGATIVE, RAW, filter_questions
from tests.finetune.data.rows import make_answers, rows_of


def made(labels):
    """``labels``: of each question its candidates' labels"""
    sizes = [len(of_question) for of_question in labels]
    names = [f"a{q}.{k}" for q, n in enumerate(sizes) for k in range(n)]
    questions, texts = [f"question {q}" for q in range(len(labels))], [f"text of {name}" for name in names]
    flat = [label for of_question in labels for label in of_question]
    return make_answers(questions, sizes, texts, flat, names, "train")


label_lists = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=8)


@given(label_lists, st.randoms(use_true_random=False))
def test_taking_keeps_every_question_whole(labels, rng):
    data = made(labels)
    order = [q for q in range(len(labels)) if rng.random() < 0.6]
    rng.shuffle(order)
    taken = data.take(np.array(order, dtype=np.int64))
    assert list(taken.question_ids) == [f"q{q}" for q in order]
    assert rows_of(taken) == [row for q in order for row in rows_of(data) if row[0] == f"q{q}"]


@given(label_lists, st.randoms(use_true_random=False))
def test_keeping_candidates_drops_the_rest_and_empty_questions(labels, rng):
    data = made(labels)
    mask = np.array([rng.random() < 0.5 for _ in range(data.num_pairs)])
    kept = data.keep(mask)
    names = [n for n, keep in zip(data.answer_ids.to_pylist(), mask, strict=True) if keep]
    assert rows_of(kept) == [row for row, keep in zip(rows_of(data), mask, strict=True) if keep]
    assert sorted(kept.question_ids) == sorted({f"q{n[1:].split('.')[0]}" for n in names})
    assert (np.diff(kept.starts) > 0).all()


@given(label_lists)
def test_filters_leave_what_the_table_says(labels):
    data = made(labels)
    wanted = {
        RAW: labels,
        NO_ALL_NEGATIVE: [of_question for of_question in labels if any(of_question)],
        CLEAN: [of_question for of_question in labels if 0 < sum(of_question) < len(of_question)],
    }
    for mode in FILTERS:
        if wanted[mode]:
            kept = filter_questions(data, mode)
            assert [kept.labels[rows].tolist() for rows in kept.question_slices()] == wanted[mode]
        else:
            with pytest.raises(KinspanError, match=f"made train: .*{mode}"):
                filter_questions(data, mode)
