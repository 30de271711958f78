import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.core.errors import KinspanError
from finetune.data.filters import CLEAN, FILTERS, NO_ALL_NEGATIVE, RAW, filter_questions
from tests.finetune.data.rows import make_answers


def made(labels):
    """``labels``: of each question its candidates' labels"""
    sizes = [len(of_question) for of_question in labels]
    names = [f"a{q}.{k}" for q, n in enumerate(sizes) for k in range(n)]
    questions, texts = [f"question {q}" for q in range(len(labels))], [f"text of {name}" for name in names]
    flat = [label for of_question in labels for label in of_question]
    return make_answers(questions, sizes, texts, flat, names, "train")


def by_question(data):
    """Of each question its text, and its candidates' ids, texts and labels."""
    return {
        data.question_ids[q]: (
            data.questions[q],
            data.answer_ids[rows.start : rows.stop].to_pylist(),
            data.answers[rows.start : rows.stop].to_pylist(),
            data.labels[rows].tolist(),
        )
        for q, rows in enumerate(data.question_slices())
    }


label_lists = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=8)


@given(label_lists, st.randoms(use_true_random=False))
def test_taking_keeps_every_question_whole(labels, rng):
    data = made(labels)
    order = [q for q in range(len(labels)) if rng.random() < 0.6]
    rng.shuffle(order)
    taken = data.take(np.array(order, dtype=np.int64))
    before = by_question(data)
    assert list(taken.question_ids) == [f"q{q}" for q in order]
    assert by_question(taken) == {i: before[i] for i in taken.question_ids}


@given(label_lists, st.randoms(use_true_random=False))
def test_keeping_candidates_drops_the_rest_and_empty_questions(labels, rng):
    data = made(labels)
    mask = np.array([rng.random() < 0.5 for _ in range(data.num_pairs)])
    kept = data.keep(mask)
    names = [n for n, keep in zip(data.answer_ids.to_pylist(), mask, strict=True) if keep]
    assert kept.answer_ids.to_pylist() == names
    assert kept.labels.tolist() == data.labels[mask].tolist()
    assert [i for i, _ in sorted(by_question(kept).items())] == sorted({f"q{n[1:].split('.')[0]}" for n in names})
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
            kept = by_question(filter_questions(data, mode))
            assert [data_labels for *_, data_labels in kept.values()] == wanted[mode]
        else:
            with pytest.raises(KinspanError, match=f"made train: .*{mode}"):
                filter_questions(data, mode)
