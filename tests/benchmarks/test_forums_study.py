"""The study of transfer from forums: its rows, what tells results of other settings, and its page."""

import copy
import shutil
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification

from benchmarks.evidence import statistics
from benchmarks.evidence.results import Store
from benchmarks.forums.study.findings import Findings
from benchmarks.forums.study.materials import drop_pair_head, expect_ap
from benchmarks.forums.study.page import write_page
from benchmarks.forums.study.recipe import COSINE, FUSION, MEAN, MULTI, UNTRAINED, Recipe, read_recipe
from benchmarks.forums.study.runner import PILOT, estimate_seconds, format_hours
from data_pipeline.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer
from finetune.evaluation import significance
from pretrain.modeling.default_model import default_model
from pretrain.modeling.pair_model import load_model

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
QUESTIONS = 20  # so many that a test by random signs can find something after correction


@pytest.fixture(scope="module")
def recipe():
    return read_recipe()


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch):
    """What is tested shows with few."""
    for module in (statistics, significance):
        monkeypatch.setattr(module, "DRAWS", 1000)


def make_figures(recipe, low, high, seed):
    """Figures of every target, drawn between two bounds."""
    rng = np.random.default_rng(seed)
    ap = {name: rng.uniform(low, high, QUESTIONS).round(6).tolist() for name in recipe.targets}
    return {name: {"ap": values, "rank": [1 if v > 0.5 else 2 for v in values]} for name, values in ap.items()}


def fill(store, recipe, seeds):
    """Materials, and lines of start (a), of which the one model of all is far above the others."""
    names = [*recipe.all_forums, MULTI, FUSION]
    store.write(
        "materials",
        {
            "sizes": dict.fromkeys(recipe.all_forums, 100),
            "targets": {t: {"questions": QUESTIONS, "metric": "map"} for t in recipe.targets},
            "chance": {t: [0.05] * QUESTIONS for t in recipe.targets},
            "baselines": {name: make_figures(recipe, 0.2, 0.3, 0) for name in ("BM25", "TF-IDF")},
        },
    )
    store.write("similarity", {name: [0.5] * len(recipe.targets) for name in names})
    for number, row in enumerate(recipe.list_rows("a")):
        for seed in seeds if row.arm != COSINE else [1]:
            low = {MULTI: 0.8, UNTRAINED: 0.0}.get(row.arm, 0.25)
            figures = make_figures(recipe, low, low + 0.1, 10 * number + seed)
            weights = {t: [[0.2] * 5] * 4 for t in recipe.targets} if row.arm == FUSION and seed == 1 else None
            line = {"seed": seed, "targets": figures, "weights": weights, "processor_seconds": 36.0}
            line["training"] = row.settings and {"held_out_auc": [0.5, 0.7]}
            store.add(row, {**line, "machine": "a machine"})


def test_a_seed_trains_the_adapters_before_their_fusion(recipe):
    rows = recipe.list_rows("a")
    assert [row.arm for row in rows] == [COSINE, UNTRAINED, *recipe.forums, MULTI, FUSION]
    assert len(recipe.forums) == 5
    assert set(rows[-2].forums) == set(recipe.forums) | {"conlang.meta"}
    jobs = recipe.list_jobs()
    assert list(dict.fromkeys((row.start, seed) for row, seed in jobs)) == list(map(tuple, recipe.content["order"]))
    assert [(row.start, seed) for row, seed in jobs if row.arm == COSINE] == [("a", 1), ("b", 1)]


def test_a_line_counts_as_long_as_all_that_it_depends_on_is_the_same(recipe):
    def fingerprint(arm, change):
        content = copy.deepcopy(recipe.content)
        change(content)
        return next(row.fingerprint for row in Recipe(content).list_rows("a") if row.arm == arm)

    rate = lambda content: content["starts"]["a"]["arms"]["single"].update(learning_rate=1.0)  # noqa: E731
    size = lambda content: content["targets"].update(candidates=3)  # noqa: E731
    order = lambda content: content.update(order=[["a", 9]])  # noqa: E731
    same = lambda content: None  # noqa: E731
    for arm, change, is_other in [
        ("beer", rate, True),
        (FUSION, rate, True),  # of adapters that were trained otherwise
        (MULTI, rate, False),
        (UNTRAINED, size, True),
        (MULTI, order, False),
    ]:
        assert (fingerprint(arm, change) != fingerprint(arm, same)) == is_other


def test_the_page_says_what_has_run_and_what_is_shown(recipe, tmp_path):
    store, page = Store(tmp_path / "results"), tmp_path / "FORUMS.md"
    write_page(recipe, store, page)
    assert f"0 of {len(recipe.list_jobs())} rows have run" in page.read_text()
    fill(store, recipe, range(1, 6))
    write_page(recipe, store, page)
    text = page.read_text()
    assert f"41 of {len(recipe.list_jobs())} rows have run" in text
    findings = Findings(recipe, store).findings
    assert len(findings) == 4 * len(recipe.content["comparisons"])
    for finding in findings:
        assert finding.contrast is not None
        assert finding.contrast.is_shown or finding.names not in [("multi", "best"), ("multi", "untrained")]
    assert "| one model of all forums | 5 | .700 | .8" in text
    assert (page.parent / "forums/study/figures/matrix-a.html").stat().st_size > 10_000
    assert "| (b) |" not in text


def test_of_one_seed_nothing_is_shown_and_no_row_is_called_best_before_all_have_run(recipe, tmp_path):
    store = Store(tmp_path)
    fill(store, recipe, [1])
    assert not any(finding.contrast.is_shown for finding in Findings(recipe, store).findings)
    (tmp_path / "a-beer.jsonl").unlink()
    found = Findings(recipe, store)
    assert {f.names for f in found.findings if f.contrast} == {
        ("fusion", "multi"),
        ("multi", "untrained"),
        ("fusion", "untrained"),
    }


def test_hours_are_those_of_the_pilot_until_a_row_has_run(recipe, tmp_path):
    store = Store(tmp_path)
    with pytest.raises(KinspanError, match="missing: --pilot"):
        format_hours(recipe, store)
    known = {"ranking": 100, "single": 1, "single_around": 10, "multi": 1, "multi_around": 10}
    known |= {"fusion": 1, "fusion_around": 10}
    pilot = {"starts": dict.fromkeys("ab", known)}
    store.write(PILOT, pilot)
    rows = {row.arm: row for row in recipe.list_rows("a")}
    assert estimate_seconds(rows[UNTRAINED], pilot, store) == 100
    assert estimate_seconds(rows["beer"], pilot, store) == 110 + rows["beer"].settings["max_steps"]
    assert "a, 1" in format_hours(recipe, store)
    fill(store, recipe, [1])
    assert estimate_seconds(rows["beer"], pilot, store) == 36


def test_equal_rows_are_not_told_apart(recipe, tmp_path):
    store = Store(tmp_path)
    fill(store, recipe, range(1, 6))
    for row in recipe.list_rows("a"):
        for seed in range(1, 6) if row.arm != COSINE else [1]:
            figures = make_figures(recipe, 0.2, 0.4, 1000 + 10 * seed + len(row.arm))
            line = {"seed": seed, "targets": figures, "weights": None, "training": None, "processor_seconds": 1.0}
            store.add(row, {**line, "machine": "a machine"})
    found = Findings(recipe, store).findings
    assert not any(finding.contrast.is_shown for finding in found)
    means = {finding.group: finding for finding in found if finding.names == (MEAN, UNTRAINED)}
    of_adapters = [store.read_lines(row) for row in recipe.list_rows("a") if row.arm in recipe.forums]
    group = recipe.groups["title_body"]
    values = [line["targets"][t]["ap"] for lines in of_adapters for line in lines.values() for t in group]
    untrained = store.read_lines(recipe.list_rows("a")[1])
    others = [line["targets"][t]["ap"] for line in untrained.values() for t in group]
    assert means["title_body"].contrast.difference == pytest.approx(np.mean(values) - np.mean(others))


def test_random_order_is_what_shuffling_comes_to():
    labels, sizes = np.array([1, 0, 0, 1, 0, 1, 0, 1]), [0, 5, 8]
    data = SimpleNamespace(labels=labels, rows=lambda: [slice(*ends) for ends in pairwise(sizes)])
    random = np.random.default_rng(1)
    for expected, rows in zip(expect_ap(data), data.rows(), strict=True):
        right = (random.permuted(np.tile(labels[rows], (20_000, 1)), axis=1)).astype(float)
        precision = right.cumsum(axis=1) / np.arange(1, right.shape[1] + 1)
        assert expected == pytest.approx(((precision * right).sum(axis=1) / right.sum(axis=1)).mean(), abs=0.01)


def test_every_seed_draws_a_pair_head_of_its_own(tmp_path):
    tokenizer = load_tokenizer(default_model())
    config = AutoConfig.for_model("bert", vocab_size=len(tokenizer), num_labels=1, **SMALL)
    for auto in (AutoModelForMaskedLM, AutoModelForSequenceClassification):
        auto.from_config(config).save_pretrained(tmp_path / auto.__name__)
    release = tmp_path / "release"
    shutil.copytree(tmp_path / "AutoModelForSequenceClassification", release)
    tensors = load_file(release / "model.safetensors") | load_file(tmp_path / "AutoModelForMaskedLM/model.safetensors")
    save_file(tensors, release / "model.safetensors", {"format": "pt"})

    def read(folder, seed):
        model, _ = load_model(str(folder), seed)
        state = model.state_dict()
        return {name: state[name] for name in state if name.endswith("weight")}

    drop_pair_head(release, tmp_path / "start")
    for folder, differ in ((release, False), (tmp_path / "start", True)):
        one, two = read(folder, 1), read(folder, 2)
        of_head = {name for name in one if ".pooler." in name or "classifier.classifier" in name}
        assert len(of_head) == 2
        assert {name for name in one if (one[name] != two[name]).any()} == (of_head if differ else set())
