import html

import numpy as np
import pyarrow as pa
import pytest

from finetune.data.answers import AnswerSet
from finetune.evaluation.comparison import compare_systems
from finetune.evaluation.metrics import compute_question_metrics
from finetune.reports.comparison_page import render_comparison

QUESTIONS, CANDIDATES = 60, 8


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    labels = np.zeros((QUESTIONS, CANDIDATES), dtype=np.int8)
    labels[np.arange(QUESTIONS), rng.integers(CANDIDATES, size=QUESTIONS)] = 1
    count = labels.size
    return AnswerSet(
        name="made",
        split="test",
        question_ids=[f"q{n}" for n in range(QUESTIONS)],
        questions=[f"<b>Who & {n}?</b>" for n in range(QUESTIONS)],
        starts=np.arange(QUESTIONS + 1) * CANDIDATES,
        answer_ids=pa.array([f"d{n}" for n in range(count)], pa.large_string()),
        answers=pa.array([f"<script>{n}</script>" for n in range(count)], pa.large_string()),
        labels=labels.ravel(),
    )


@pytest.fixture
def scores(data):
    """A good system, a bad one, and the good one again."""
    noise = np.random.default_rng(1).normal(size=data.num_pairs)
    return {"good": data.labels + noise / 2, "bad": noise, "again": data.labels + noise / 2}


@pytest.fixture
def systems(data, scores):
    return {name: compute_question_metrics(data, values) for name, values in scores.items()}


def test_the_page_shows_where_they_differ_most(data, scores, systems):
    rows = compare_systems(systems)
    text = render_comparison("A <title>", data, scores, systems, rows, ["good", "bad"])
    assert "<script>" not in text
    assert "A &lt;title&gt;" in text
    spread = np.abs(systems["good"]["map"] - systems["bad"]["map"])
    order = [q for q in np.argsort(-spread, kind="stable")[:50] if spread[q] > 0]
    places = [text.index(f"<h3>{html.escape(data.questions[q])} ") for q in order]
    assert places == sorted(places)
    assert text.count("<h3>") == len(order) <= 50
    assert text.count('class="candidate right"') == 2 * len(order)  # the one right answer is always shown
    assert "0 questions" in render_comparison("t", data, scores, systems, rows, ["good", "again"])
