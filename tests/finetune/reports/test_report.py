import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data_pipeline.core.plots import STYLE
from finetune.data.answers import AnswerSet
from finetune.evaluation.metrics import METRICS
from finetune.reports import plots, study_report
from finetune.reports.plots import plot_histograms
from finetune.reports.study_report import (
    Entry,
    Noise,
    ResultRow,
    RowSettings,
    _part_settings,
    count_split,
    pick_examples,
    read_curve,
    render_report,
)
from finetune.training.config import FinetuneConfig

pytestmark = pytest.mark.usefixtures("plots")

HOSTILE = 'a <b>"bold"</b> & $x^$ {{ 7 * 7 }} \u65e5'
VOID = {"meta", "br", "path", "use", "rect"}


class Elements(HTMLParser):
    """Reads a page, and sees to it that every element is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def made_set() -> AnswerSet:
    answers = ["one", "two words", HOSTILE, "four", "five", "six", "seven", "right"]
    return AnswerSet(
        "made",
        "test",
        ["q0", "q1"],
        [HOSTILE, "who was it ?"],
        np.array([0, 1, 8]),
        pa.array([f"a{k}" for k in range(8)], pa.large_string()),
        pa.array(answers, pa.large_string()),
        np.array([1, 0, 0, 0, 0, 0, 0, 1], dtype=np.int8),
    )


def runs(mean: float, seeds: int) -> dict[str, np.ndarray]:
    return {metric: mean + 0.01 * np.arange(seeds) for metric in METRICS}


@pytest.fixture(scope="module")
def whole() -> dict:
    data = made_set()
    maps = [np.linspace(0.5, 0.8, 4), np.linspace(0.4, 0.7, 6)]  # the first stopped early
    by_epoch = [(10 * np.arange(1, len(values) + 1), values) for values in maps]
    names = "training loss", "MAP on dev", "MAP on test"
    return {
        "title": HOSTILE,
        "notes": ["a note", HOSTILE],
        "splits": [count_split(data, "raw", 1234, None), count_split(data, "clean")],
        "rows": [
            ResultRow("first " + HOSTILE, runs(0.5, 5), paper={"map": (0.858, 0.013), "p@1": (0.783, None)}),
            ResultRow("second", runs(0.6, 1), p={"map": 0.00004, "mrr": 0.0501}, starred=["map"]),
        ],
        "curves": {HOSTILE: dict.fromkeys(names, by_epoch), "no test": dict.fromkeys(names[:2], by_epoch)},
        "noise": [
            Noise("plain", [0, 0.2], [np.array([0.8, 0.8]), np.array([0.6, 0.6])]),
            Noise("tanda", [0], [np.array([0.9])]),
        ],
        "examples": pick_examples(data, np.arange(8.0)[::-1], [0, 1], top=3),
    }


@pytest.fixture(scope="module")
def html(whole: dict) -> str:
    return render_report(**whole)


def test_the_page_is_whole_and_loads_nothing(html: str) -> None:
    read = Elements(html)
    assert read.seen.count("svg") == 4
    assert not {"script", "link", "img", "image", "iframe", "object"} & set(read.seen)
    assert set(re.findall(r'http[^"\s]*', html)) == {
        "http://www.w3.org/1999/xlink",
        "http://www.w3.org/2000/svg",
    }  # names
    assert not re.search(r"@import|src=|url\((?!#)", html)
    assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', html))


def test_plots_take_the_colour_and_the_font_of_the_page(html: str) -> None:
    ink = STYLE["text.color"]
    assert ink not in html
    assert html.count("currentColor") > 100
    assert "svg text { font-family: system-ui, sans-serif !important }" in html


def test_texts_are_escaped(html: str) -> None:
    assert "<b>" not in html.replace("<b>*</b>", "")
    assert "{{ 7 * 7 }}" in html
    assert "".join(Elements(html).texts).count('a <b>"bold"</b> & $x^$ {{ 7 * 7 }} \u65e5') >= 6


def test_ids_that_plots_share_name_the_same_things(html: str) -> None:
    marks = re.findall(r'<(?:path|clipPath) id="(\w+)"(.*?)(?:/>|</clipPath>)', html, re.DOTALL)
    assert marks
    contents: dict[str, set[str]] = {}
    for name, content in marks:
        contents.setdefault(name, set()).add(content)
    assert all(len(content) == 1 for content in contents.values())
    assert set(re.findall(r"#([mp][0-9a-f]{10})", html)) <= set(contents)


def test_figures_stand_in_the_table(html: str) -> None:
    text = " ".join("".join(Elements(html).texts).split())
    assert "0.520 ± 0.016" in text  # .50 to .54: the sample's deviation
    assert "paper 0.858 ± 0.013" in text
    assert "paper 0.783" in text
    assert "p < 0.001 *" in text
    assert "p 0.050" in text
    assert "p 0.050 *" not in text  # .0501 is not below .05
    assert "paper 1,234" in text
    assert "25.0%" in text  # noise of 20%: from .8 to .6


def test_the_same_report_gives_the_same_page(whole: dict, html: str) -> None:
    assert render_report(**whole) == html


def test_what_is_empty_is_left_out() -> None:
    text = render_report("Nothing yet")
    assert not {"svg", "table", "h2", "ul"} & set(Elements(text).seen)


def test_split_figures() -> None:
    figures = count_split(made_set(), "raw")
    assert figures.positives == 2
    assert figures.candidates.tolist() == [1, 7]
    assert figures.question_words.tolist() == [len(HOSTILE.split()), 4]
    assert figures.answer_words.tolist() == [1, 2, len(HOSTILE.split()), 1, 1, 1, 1, 1]


def test_examples_have_the_first_candidates_and_the_best_right_one() -> None:
    data, scores = made_set(), np.arange(8.0)[::-1]
    first, second = pick_examples(data, scores, [0, 1], top=3)
    assert [(c.rank, c.right) for c in first.candidates] == [(1, True)]
    assert [(c.rank, c.text) for c in second.candidates] == [(1, "two words"), (2, HOSTILE), (3, "four"), (7, "right")]
    assert [c.right for c in second.candidates] == [False, False, False, True]
    assert [c.rank for c in pick_examples(data, -scores, [1], top=3)[0].candidates] == [
        1,
        2,
        3,
    ]  # the right one is first


def test_histograms_hold_all_values() -> None:
    """However long the tail."""
    for values in (np.array([3, 3, 3]), np.arange(2000), np.array([1] * 99 + [10_000])):
        assert plot_histograms({"words": {"train": values, "test": values[:2]}}).count("<svg") == 1


def test_an_axis_of_map_is_never_narrower_than_a_tenth() -> None:
    assert plots._widen(0.7, 0.702) == pytest.approx((0.651, 0.751))
    assert plots._widen(0.2, 0.7) == pytest.approx((0.2, 0.7))
    assert plots._widen(0.99, 1.0) == pytest.approx((0.945, 1.02))


def test_the_page_says_what_rows_set_and_whose_ranking_the_examples_are() -> None:
    settings = [RowSettings("plain", {"positive_weight": 1.0}, [30, 33], [15, 12], [0.13, 12.6], "")]
    example = pick_examples(made_set(), np.arange(8.0), [1])
    page = render_report(
        "t",
        settings=settings,
        shared_settings={"epochs": 3},
        examples=example,
        examples_are="The ranking is that of x.",
    )
    text = " ".join(" ".join(Elements(page).texts).split())
    assert "plain positive_weight 1.0 30, 33 15, 12 0.1, 13" in text
    assert "epochs 3" in text
    assert "The ranking is that of x." in text


def test_settings_are_parted_into_those_of_rows_and_those_of_all() -> None:
    plain = FinetuneConfig("files=x", seeds=2, output_dir="a")
    entries = [Entry("one", plain, [], {}), Entry("two", replace(plain, positive_weight=4.0, output_dir="b"), [], {})]
    own, shared = _part_settings(entries)
    assert own == [{"positive_weight": "1.0"}, {"positive_weight": "4.0"}]
    assert shared["seeds"] == "2"
    assert shared["learning_rate"] == "1e-05"  # shown even where it is the default
    assert not {"positive_weight", "output_dir", "list_size"} & shared.keys()


def test_a_curve_begins_at_the_start(tmp_path: Path) -> None:
    lines = [{"step": 9 * epoch, "split": "dev", "epoch": epoch, "map": 0.2 + 0.3 * epoch} for epoch in (0, 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [part.tolist() for part in read_curve(tmp_path, "dev", "map")] == [[0, 9], [0.2, 0.5]]
    assert read_curve(tmp_path, "test", "map")[0].tolist() == []


def test_a_row_whose_stages_ran_once_for_all_seeds_has_no_star(monkeypatch, tmp_path, data):
    shown = []
    monkeypatch.setattr(study_report, "render_report", lambda **report: shown.append(report) or "")
    for name in ("_read_curves", "_read_settings", "_pick_examples"):
        monkeypatch.setattr(study_report, name, lambda *_: ([], ""))
    config, random = FinetuneConfig(data="files=x"), np.random.default_rng(0)
    first = [{m: 0.2 + 0.1 * random.random(data.num_questions) for m in METRICS} for _ in range(3)]
    better = [{m: values + 0.5 + 0.01 * random.random() for m, values in seed.items()} for seed in first]
    monkeypatch.setattr(study_report, "is_established", lambda test: True)
    for shares in (False, True):
        entries = [Entry("first", config, first, {}), Entry("better", config, better, {}, shares=shares)]
        study_report.write_page(tmp_path / "page.html", "t", [], [(data, "clean")], entries, {})
    plain, shared = shown
    assert list(plain["rows"][1].starred) == ["map"]
    assert list(shared["rows"][1].starred) == []
    assert any("better: what came before fine-tuning ran once for all seeds" in note for note in shared["notes"])
