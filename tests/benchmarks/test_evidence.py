"""The evidence study: its recipe, what is left to do, its budget, and the page that results are told on."""

import json
import re

import numpy as np
import pytest
import yaml

from benchmarks.evidence import statistics
from benchmarks.evidence.findings import Evidence, compare_in_half_precision, format_figure
from benchmarks.evidence.harm import collect_omens, find_suspects, judge_suspects, list_omens, list_suspects
from benchmarks.evidence.page import write_page
from benchmarks.evidence.plan import FIT, RERUN, START, format_budget, make_budget, plan_jobs
from benchmarks.evidence.recipe import RECIPE, Recipe, hash_settings, read_recipe
from benchmarks.evidence.results import Store, invert_ranks, pack_figures, read_outcome, settle_choices, shorten
from benchmarks.evidence.tables import format_map, list_rows
from data_pipeline.errors import KinspanError
from finetune.studies.study_file import make_config
from pretrain.config import PretrainConfig
from pretrain.planning.checks import check

QUESTIONS = 80
PILOT = {
    "machine": "a processor",
    "startup_seconds": 10,
    "tokens_of_pair": {"48": 45.0, "64": 50.0, "128": 80.0},
    "sets": {name: {"train_positives": 1000} for name in ("wikiqa", "trecqa")},
    **{
        start: {
            "tokens_per_second": 5000,
            "sets": {
                name: {"seconds_of_update": 0.1, "seconds_of_validation": 2, "seconds_around": 9}
                for name in ("wikiqa", "trecqa")
            },
        }
        for start in "ab"
    },
    "electra": {"tokens_per_second": 3000},
}


@pytest.fixture(autouse=True)
def quick_tests(monkeypatch):
    """Fewer draws than the page has: no test here depends on the last digit of a p."""
    monkeypatch.setattr(statistics, "ASSIGNMENTS", 5000)
    monkeypatch.setattr(statistics, "DRAWS", 2000)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


@pytest.fixture(scope="module")
def recipe():
    return read_recipe()


def make_line(seed, value, random):
    """A line of results whose MAP is about ``value``."""
    ap = np.clip(random.normal(value, 0.1, QUESTIONS), 0.01, 1)
    made = {"steps": 10, "tokens": 5_000_000, "seconds": 60.0, "first_validation": {}, "last_validation": {}}
    tuned = {"steps": 100, "best_step": 50, "stopped": "early", "precision": "bf16", "wall_seconds": 30.0}
    return {
        "seed": seed,
        **pack_figures(ap, np.ones(QUESTIONS), ap),
        "dev_map": value,
        "dev_scores": "",
        "finetune": tuned,
        "start": "weights",
        "pretrain": made,
        "seconds": 40.0,
        "machine": "a processor",
    }


def settle(recipe, store):
    """Fills in the rows of all choices; the second value is the best one."""
    random = np.random.default_rng(0)
    for number in range(len(recipe.choices)):
        choice = settle_choices(recipe, store).choices[number]
        for place, rows in enumerate(choice.rows):
            for row in rows:
                store.add(row, make_line(choice.seed, 0.6 - 0.1 * (place != 1), random))
    return settle_choices(recipe, store)


def describe_sets(store):
    figures = pack_figures(np.full(QUESTIONS, 0.5), np.ones(QUESTIONS), np.ones(QUESTIONS))
    for name in ("wikiqa", "trecqa"):
        told = {"train": 100, "dev": 20, "test": QUESTIONS}
        totals = {"documents": 10, "paragraphs": 100, "tokens": 5_000_000}
        content = {"questions": told, "corpus": {"totals": totals}, "train_positives": 50}
        content |= {"contaminated": {"answer": [0, 5], "candidate": [0, 5, 7]}}
        store.write(name, content | {"baselines": {"BM25": figures, "cosine": figures}})


# The recipe ------------------------------------------------------------------------------------------------------


def test_rows_have_files_of_their_own(recipe):
    rows = [*recipe.rows, *(row for choice in recipe.choices for values in choice.rows for row in values)]
    assert len({shorten(row.name) for row in rows}) == len({row.name for row in rows})


def test_arms_of_a_start_have_equal_tokens_and_rates(recipe, store):
    """All that were not made to differ in it: the suspects, and the doses."""
    recipe = settle(recipe, store)
    for start in recipe.content["starts"]:
        rows = [row for row in recipe.rows if row.start == start and row.pretrain]
        rows = [row for row in rows if "quick" not in row.name and "tokens" not in row.name]
        alike = {tuple(row.pretrain[name] for name in ("max_tokens", "learning_rate", "max_length")) for row in rows}
        assert len(alike) == 1


def test_a_comparison_of_a_row_that_is_none_is_refused(tmp_path):
    content = yaml.safe_load(RECIPE.read_text())
    content["comparisons"].append(["a/ssp/wikiqa", "a/spp/wikiqa"])
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(KinspanError, match="a/spp/wikiqa is the name of no row"):
        read_recipe(path)


@pytest.mark.parametrize("file", ["recipe.yaml", "dose.yaml"])
def test_every_recipe_has_groups_sets_and_settings_that_both_trainings_take(file, store):
    recipe = settle(read_recipe(RECIPE.with_name(file)), store)
    assert not [row.name for row in recipe.rows if row.fingerprint is None]
    for row in recipe.rows:
        make_config({**row.finetune, "data": f"{row.set}=FOLDER"})
        if row.pretrain is not None:
            check(PretrainConfig(**row.pretrain))


# What is left to do ----------------------------------------------------------------------------------------------


def test_the_headline_comes_first_and_seed_by_seed(recipe, store):
    jobs = plan_jobs(recipe, store)
    assert jobs[0].kind == START
    headline = [job for job in jobs if job.group == "headline"]
    assert [(job.seed, job.rows[0].name.split("/")[1]) for job in headline[:5]] == [
        *((1, arm) for arm in ("none", "mlm", "ssp", "all")),
        (2, "none"),
    ]
    assert headline[-1].kind == RERUN


def test_what_has_run_is_skipped_until_its_settings_change(recipe, store):
    recipe = settle(recipe, store)
    row = next(row for row in recipe.rows if row.name == "a/ssp/wikiqa")
    store.add(row, make_line(1, 0.6, np.random.default_rng(0)))

    def is_done(recipe):
        jobs = [job for job in plan_jobs(recipe, store) if job.kind == FIT and job.group == "headline"]
        return next(job.is_done for job in jobs if job.rows[0].name == row.name and job.seed == 1)

    assert is_done(recipe)
    content = json.loads(json.dumps(recipe.content))
    content["pretrain"]["global_batch_size"] = 64
    assert not is_done(Recipe(content, recipe.chosen))


def test_a_choice_takes_the_best_value_and_waits_for_those_before_it(recipe, store):
    first, second, *_ = recipe.choices
    assert first.rows[0][0].fingerprint is not None
    assert second.rows[0][0].fingerprint is None  # its fine-tuning rate is the first one's to settle
    chosen = settle(recipe, store).chosen
    assert list(chosen.values()) == [choice.values[1] for choice in recipe.choices]


def test_rows_are_cut_from_the_end(recipe, store):
    whole = make_budget(recipe, store, PILOT, hours=1000)
    assert whole.kept == len(whole.groups)
    hours = [cost for *_, cost in whole.groups]
    cut = make_budget(recipe, store, PILOT, hours=sum(hours[:5]) + 1e-6)
    assert cut.kept == 5
    assert format_budget(cut).count("cut: over the budget") == len(hours) - 5


def test_a_seed_of_two_groups_is_counted_once(recipe):
    """The ten seeds of the calibration: five are those of the headline, and comparisons take these alone."""
    row = next(row for row in recipe.rows if row.name == recipe.content["calibration"]["row"])
    assert len(row.seeds) == 10
    assert row.compared == (1, 2, 3, 4, 5)


def test_hours_go_by_what_has_run(recipe, store):
    recipe = settle(recipe, store)
    before = make_budget(recipe, store, PILOT).groups
    row = next(row for row in recipe.rows if row.name == "a/none/wikiqa")
    store.add(row, {**make_line(1, 0.6, np.random.default_rng(0)), "seconds": 1000.0})
    after = make_budget(recipe, store, PILOT).groups
    (hours_before,) = (hours for name, _, _, hours in before if name == "headline")
    ((done, hours_after),) = ((done, hours) for name, _, done, hours in after if name == "headline")
    assert done == 1
    assert hours_after > hours_before + 1 / recipe.content["workers"]
    elsewhere = {"seconds": 9000.0, "machine": "a slower processor"}
    store.add(row, {**make_line(1, 0.6, np.random.default_rng(0)), **elsewhere})
    assert [hours for *_, hours in make_budget(recipe, store, PILOT).groups] == [hours for *_, hours in before]


# Results ---------------------------------------------------------------------------------------------------------


def test_figures_come_back_from_their_file(recipe, store):
    recipe = settle(recipe, store)
    row = recipe.rows[0]
    random = np.random.default_rng(1)
    ranks = random.integers(1, 20, QUESTIONS)
    ap = random.random(QUESTIONS)
    line = make_line(2, 0.5, random) | pack_figures(ap, 1 / ranks, ap)
    store.add(row, line)
    found = read_outcome(store, row)
    assert np.abs(found.ap[0] - ap).max() < 1e-6
    assert np.array_equal(found.rr[0], invert_ranks(ranks))
    store.add(row, line)  # again: in the place of the first one
    assert len(store.read_lines(row)) == 1


# The page --------------------------------------------------------------------------------------------------------


@pytest.fixture
def short(recipe):
    """The recipe with its first groups and comparisons alone."""
    content = json.loads(json.dumps(recipe.content))
    content["groups"] = [g for g in content["groups"] if g["name"] in ("headline", "permuted control", "power")]
    names = {row.name for row in Recipe(content).rows}
    content["comparisons"] = [rows for rows in content["comparisons"] if set(rows) <= names]
    return Recipe(content)


def write(evidence, tmp_path):
    page = tmp_path / "EVIDENCE.md"
    write_page(evidence, None, page, tmp_path / "figures")
    return page.read_text()


def test_a_page_of_nothing_says_so(short, store, tmp_path):
    text = write(Evidence(short, store), tmp_path)
    assert "SSP with MLM less MLM alone: not run yet." in text
    assert "headline (0 of 4)" in text


@pytest.mark.parametrize(("gain", "verdict"), [(0.1, "ranks better than"), (-0.1, "ranks worse than"), (0.0, None)])
def test_the_headline_follows_from_the_results(short, store, tmp_path, gain, verdict):
    recipe, random = settle(short, store), np.random.default_rng(1)
    describe_sets(store)
    for row in recipe.rows:
        for seed in row.seeds:
            store.add(row, make_line(seed, 0.6 + gain * ("ssp" in row.name), random))
    text = write(Evidence(recipe, store), tmp_path)
    first = text.split("\n\n")[1]
    assert (verdict or "is not shown to rank better or worse than") in first
    assert "All rows of the recipe have run." in text
    for link in re.findall(r"!\[[^]]*\]\(([^)]*)\)", text):
        assert (tmp_path / link).read_bytes().startswith(b"\x89PNG")


def test_nothing_is_shown_by_a_row_that_lacks_a_seed(short, store, tmp_path):
    recipe, random = settle(short, store), np.random.default_rng(1)
    describe_sets(store)
    for row in recipe.rows:
        for seed in row.seeds[: {"a/ssp/wikiqa": 4, "a/all/wikiqa": 1}.get(row.name, 5)]:
            store.add(row, make_line(seed, 0.6 + 0.1 * ("ssp" in row.name), random))
    evidence = Evidence(recipe, store)
    finding = evidence.find("a/ssp/wikiqa", "a/mlm/wikiqa")
    assert (finding.contrast, finding.seeds) == (None, (4, 5))
    assert finding.partial.difference > 0.05
    assert evidence.find("a/all/wikiqa", "a/mlm/wikiqa").partial is None
    assert not any(found.contrast.is_shown for found in evidence.findings if found.contrast)
    text = write(evidence, tmp_path)
    assert "(not all seeds yet)" in text
    assert "SSP with MLM less MLM alone: so far 4 and 5 of 5 seeds: +.1" in text
    assert re.search(r"\*\(so far 4 and 5 of 5 seeds\)\* \| \+.*\|  \|$", text, re.MULTILINE)


def test_the_start_and_its_settings_are_named_by_hash(recipe, store):
    scratch = recipe.content["starts"]["a"]["scratch"]
    assert not plan_jobs(recipe, store)[0].is_done
    store.write("start-a", {"fingerprint": hash_settings(scratch), "seconds": 5.0})
    assert plan_jobs(recipe, store)[0].is_done


# What harms, and in which precision --------------------------------------------------------------------------------


@pytest.fixture
def suspects(recipe):
    """The recipe with the suspects' rows and the start's that they are compared with."""
    content = json.loads(json.dumps(recipe.content))
    content["groups"] = [g for g in content["groups"] if g["start"] == "b" and "head" not in g.get("measures", [])]
    names = {row.name for row in Recipe(content).rows}
    content["comparisons"] = [rows for rows in content["comparisons"] if set(rows) <= names]
    return Recipe(content)


def fill_suspects(recipe, store, quick_gain):
    """Rows whose MAP rises with the AUC of their pairs; the cosine's falls with it."""
    recipe, random = settle(recipe, store), np.random.default_rng(1)
    describe_sets(store)
    for place, row in enumerate(recipe.rows):
        for seed in row.seeds:
            gain = quick_gain if row.name == "b/quick/wikiqa" else 0.01 * (place % 7)
            line = make_line(seed, 0.6 + (-gain if "cosine" in row.name else gain), random)
            line["pretrain"]["last_validation"] = {"pair_auc": 0.6 + gain, "mlm_loss": 6.0 - gain / 2}
            store.add(row, line)
    return Evidence(recipe, store)


def test_harm_that_recurs_is_not_called_gone(suspects, store):
    told = judge_suspects(fill_suspects(suspects, store, quick_gain=-0.2))
    assert re.search(r"Of these 9 differences [1-9] are shown to be harm", told)
    assert "did not recur" not in told


def test_where_no_harm_is_shown_no_cause_is_named(suspects, store):
    told = judge_suspects(fill_suspects(suspects, store, quick_gain=0.0))
    assert "0 are shown to be harm" in told
    assert "did not recur" in told


def test_each_suspect_stands_with_its_worst_seed_and_its_cosine(suspects, store):
    evidence = fill_suspects(suspects, store, quick_gain=0.0)
    lines = list_suspects(evidence).splitlines()
    assert sum("quickstart" in line for line in lines) == len(find_suspects(evidence)) > 5
    outcome = evidence.outcomes["b/quick/wikiqa"]
    cosine = evidence.outcomes["b/quick, zero-shot by the cosine/wikiqa"]
    (line,) = [line for line in lines if line.startswith(f"| (b) {outcome.row.title} |")]
    assert f"| {format_figure(outcome.maps.min())} |" in line
    assert line.endswith(f"| {format_map(cosine)} |")


def test_what_foretells_the_map_is_found(suspects, store):
    """A variant of an arm has its pre-training, and is no run of its own."""
    evidence = fill_suspects(suspects, store, quick_gain=0.0)
    omens = collect_omens(evidence, "b")
    assert "quick, head redrawn" not in omens["AUC of held-out pairs"]
    assert all(arm.startswith("quick") for arm in omens["MAP of the cosine, without fine-tuning"])
    told = list_omens(evidence)
    assert re.search(r"AUC of held-out pairs \| \d+ \| \+\.[5-9]", told)


def test_seeds_in_bf16_are_compared_by_themselves(short, store):
    """Those in fp32 are much better here, and only one row has them."""
    recipe, random = settle(short, store), np.random.default_rng(1)
    describe_sets(store)
    for row in recipe.rows:
        for seed in row.seeds:
            is_other = row.name == "a/ssp/wikiqa" and seed < 3
            line = make_line(seed, 0.9 if is_other else 0.6, random)
            line["finetune"] = {**line["finetune"], "precision": "fp32" if is_other else "bf16"}
            store.add(row, line)
    evidence = Evidence(recipe, store)
    mixed, pure = (evidence.find(f"a/{arm}/wikiqa", "a/mlm/wikiqa") for arm in ("ssp", "all"))
    assert mixed.contrast.difference > 0.1
    half = compare_in_half_precision(evidence, mixed)
    assert abs(half.difference) < 0.02
    assert half.parts.num_seeds == (3, 5)
    assert compare_in_half_precision(evidence, pure) is None
    assert "| 2 fp32, 3 bf16 |" in list_rows(evidence, "a", "wikiqa")


def test_a_rerun_of_another_seed_is_left_to_do(recipe, store):
    recipe = settle(recipe, store)
    (job,) = [job for job in plan_jobs(recipe, store) if job.kind == RERUN]
    for seed, is_done in ((job.seed, True), (job.seed + 1, False)):
        store.write("rerun", {"fingerprint": job.rows[0].fingerprint, "seed": seed})
        (again,) = [again for again in plan_jobs(recipe, store) if again.kind == RERUN]
        assert again.is_done == is_done
