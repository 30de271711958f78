"""The page of a run shows its curves, and nothing of the corpus becomes HTML."""

import re
from html.parser import HTMLParser

import pytest

from pretrain.evaluation.page import FIGURES, MOST_POINTS, Progress, render_page, say_learned, thin
from pretrain.metrics import compute_figures
from pretrain.modeling.losses import PAIR_SUMS, PAPER_WEIGHTS
from pretrain.modeling.siamese.losses import CONTRASTIVE_SUMS

pytestmark = pytest.mark.usefixtures("plots")

EVERY = {"log_steps": 3, "eval_steps": 8, "probe_steps": 8}
FACTS = {"total_steps": 20, "settings": {"objective": "ssp", "max_tokens": None, "seed": 1, **EVERY}}
UNDER_WAY = Progress(20, 12_000, 2.5, "5 min", "2026-01-02 03:04:05", "2026-01-02 03:05:09", "runs/docs")
VOID = {"meta", "path", "use", "wbr"}


class Balance(HTMLParser):
    """Counts the elements that are open."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def test_a_page():
    lines = [
        {"step": step, "split": split, "loss": 2.0 - step / 20, "pair_auc": 0.5 + step / 100}
        for step in (0, 10, 20)
        for split in ("train", "validation")
        if step or split == "validation"
    ]
    place = {"objective": "ssp", "kind": "positive", "doc_id": "d<1>", "b_doc_id": "d2"}
    pair = place | {"a": "<script>alert(1)</script>", "b": "a & b", "logit": -1.0}
    history = [{"time": 0, "kind": "started", "step": step, "ranks": 2, "host": "<b>"} for step in (0, 10)]
    warnings = ["the figures rest on 2 held-out documents"]
    page = render_page(
        "MiniLM <b>", FACTS, lines, [pair], warnings, history, UNDER_WAY, {"seed": "Of all <random> choices."}
    )
    balance = Balance()
    balance.feed(page)
    assert not balance.open
    assert "script" not in balance.seen
    assert balance.seen.count("svg") == 2  # of what has values: the loss and the area
    assert "Warning: the figures rest on 2 held-out documents." in page
    assert f'>pair_<wbr>auc</th><td>0.5000</td><td>0.7000</td><td class="long">{FIGURES["pair_auc"]}</td>' in page
    assert "<dt>seed</dt><dd>1<small>Of all &lt;random&gt; choices.</small></dd>" in page
    assert not re.search(r"<(script|link|img|iframe)\b|url\((?!#)|@import", page)
    assert "Step 20 of 20; 12,000 tokens; 2.5 steps per second" in page
    assert "5 min left." in page
    assert "of step 20 (the last validation)" in page
    assert 'Score <b>0.269</b>: called negative, <span class="wrong">wrongly</span>.' in page
    assert "<td>10</td>" in page
    assert "resumed at step 10, with 2 rank(s), process ? on &lt;b&gt;" in page
    assert page.count("stroke-dasharray: 3.7") == 2  # where it was resumed, in both plots


def test_a_run_that_has_only_begun_has_a_page():
    page = render_page("new", FACTS, [], [])
    assert "Step 0 of 20" in page
    assert "there is none yet" in page


def test_a_curve_is_drawn_from_its_second_value_on():
    lines = [{"step": 0, "split": "validation", "loss": 1.0, "pair_auc": 0.5}]
    page = render_page("new", FACTS, lines, [])
    assert "<svg" not in page
    assert "Loss: drawn by step 8" in page
    assert "Has it learned" not in page  # before it was trained
    assert page.count(">step 0<") == 1
    lines += [{"step": step, "split": "train", "loss": 1.0, "learning_rate": 0.1} for step in (3, 6)]
    page = render_page("new", FACTS, lines[:2], [])
    assert "Loss: drawn by step 6" in page
    assert "Pairs told apart: drawn by step 8" in page
    page = render_page("new", FACTS, lines, [])
    assert page.count("<svg") == 2
    assert "Loss: drawn" not in page
    lines = [{"step": 18, "split": "train", "loss": 1.0}]
    assert "Loss: drawn by step 20" in render_page("new", FACTS, lines, [])  # the last line of the log


def test_a_page_says_how_fresh_it_is():
    page = render_page("a", FACTS, [], [], progress=UNDER_WAY)
    assert re.search(r"Written 2026-01-02 03:04:05 UTC.*next is due by 2026-01-02 03:05:09 UTC", page, re.DOTALL)
    assert "kinspan show run runs/docs" in page
    assert page.count('http-equiv="refresh"') == 1
    page = render_page("a", FACTS, [], [], progress=UNDER_WAY._replace(due=None))
    assert "this is its last page" in page
    assert "refresh" not in page


@pytest.mark.parametrize("of_pairs", [PAIR_SUMS, CONTRASTIVE_SUMS])
def test_every_figure_of_a_validation_is_explained(of_pairs):
    tokens = [f"mlm_{name}" for name in ("loss", "correct", "tokens")]
    tokens += [f"rtd_{name}" for name in ("loss", "tokens", "replaced", "called", "found")]
    sums = dict.fromkeys((*tokens, *(f"ssp/{name}" for name in of_pairs)), 1.0)
    assert compute_figures(sums, PAPER_WEIGHTS).keys() <= FIGURES.keys()


@pytest.mark.parametrize(("auc", "word"), [(0.56, "Not yet"), (0.65, "A little"), (0.8, "Yes")])
def test_it_begins_with_whether_the_run_has_learned(auc, word):
    first, last = ({"step": step, "split": "validation", "pair_auc": value} for step, value in ((0, 0.49), (20, auc)))
    facts = {**FACTS, "settings": {"pair_weight": 1.0, **EVERY}}
    page = render_page("a", facts, [first, last], [])
    assert (
        f"Has it learned? {word}:</b> the AUC of held-out pairs is {auc:.2f} (chance 0.50), at the start 0.49." in page
    )


def test_without_pairs_another_figure_says_whether_it_has_learned():
    first, last = {"pair_auc": 0.5, "mlm_loss": 10.0}, {"pair_auc": 0.5, "mlm_loss": 5.0}
    assert say_learned(first, last, {"pair_weight": 0.0}) == ("Yes", "the masked-LM loss is 5.00, at the start 10.00")
    assert say_learned(first, first, {"pair_weight": 0.0})[0] == "Not yet"
    assert say_learned({"pair_mrr": 0.2}, {"pair_mrr": 0.4}, {"pair_weight": 1.0})[0] == "Yes"
    assert say_learned({}, {}, {"pair_weight": 1.0}) is None
    assert say_learned({}, {"pair_auc": 0.9}, {"pair_weight": 1.0}) is None  # --eval_pairs was 1 at first


def test_curves_of_long_runs_are_thinned_and_keep_what_leaps():
    points = [(float(step), 1.0 / (step + 1)) for step in range(40_000)]
    points[12_345] = (12_345.0, 9.0)
    thinned = thin(points)
    assert len(thinned) <= MOST_POINTS
    assert points[12_345] in thinned
    assert points[0] in thinned
    assert thinned == sorted(thinned)
    assert thin(points[:20]) == points[:20]
