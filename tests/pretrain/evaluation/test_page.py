"""The page of a run shows its curves, and nothing of the corpus becomes HTML."""

from html.parser import HTMLParser

from pretrain.evaluation.page import draw_curves, render_page

FACTS = {"total_steps": 20, "settings": {"objective": "ssp", "max_tokens": None, "seed": 1}}
VOID = {"meta", "line", "polyline", "circle"}


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
    pair = place | {"a": "<script>alert(1)</script>", "b": "a & b"}
    page = render_page("MiniLM <b>", FACTS, lines, [pair], ["the figures rest on 2 held-out documents"])
    balance = Balance()
    balance.feed(page)
    assert not balance.open
    assert "script" not in balance.seen
    assert balance.seen.count("svg") == 2  # of what has values: the loss and the area
    assert page.count("<polyline") == 4
    assert "Mind that the figures rest on 2 held-out documents." in page
    assert "<th>pair_auc</th><td>0.5000</td><td>0.7000</td>" in page
    assert "http" not in page


def test_a_run_that_has_only_begun_has_a_page():
    assert "Step 0 of 20" in render_page("new", FACTS, [], [])
    assert "<circle" in draw_curves({"train": [(0, 1.0)]}, "one point")
