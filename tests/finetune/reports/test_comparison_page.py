import html

import numpy as np

from finetune.evaluation.comparison import compare_systems
from finetune.reports.comparison_page import render_comparison


def test_the_page_shows_where_they_differ_most(data, scores, systems):
    rows = compare_systems(systems)
    text = render_comparison("A <title>", data, scores, rows, ["good", "bad"])
    assert "<script>" not in text
    assert "A &lt;title&gt;" in text
    spread = np.abs(systems["good"]["map"] - systems["bad"]["map"])
    order = [q for q in np.argsort(-spread, kind="stable")[:50] if spread[q] > 0]
    places = [text.index(f"<h3>{html.escape(data.questions[q])} ") for q in order]
    assert places == sorted(places)
    assert text.count("<h3>") == len(order) <= 50
    assert text.count('class="candidate right"') == 2 * len(order)  # the one right answer is always shown
    assert "0 questions" in render_comparison("t", data, scores, rows, ["good", "again"])
