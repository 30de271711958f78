"""The dose study's recipe, and the page of a study with one primary comparison."""

import numpy as np
import pytest
import yaml

from benchmarks.evidence.findings import Evidence
from benchmarks.evidence.page import write_confirmation
from benchmarks.evidence.plan import plan_jobs
from benchmarks.evidence.recipe import RECIPE, Recipe, read_recipe
from benchmarks.evidence.results import Store, pack_figures

QUESTIONS = 80


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


def test_the_dose_study_begins_with_its_primary_comparison_seed_by_seed(store):
    recipe = read_recipe(RECIPE.with_name("dose.yaml"))
    names = recipe.content["primary"]
    jobs = plan_jobs(recipe, store)[:20]
    assert [(job.seed, job.rows[0].name) for job in jobs] == [(seed, name) for seed in range(1, 11) for name in names]
    (first, second) = (job.rows[0] for job in jobs[:2])
    assert (first.questions, second.questions) == (50, 50)
    assert (first.pretrain["max_steps"] * first.pretrain["global_batch_size"], second.pretrain) == (51_200, None)


def test_rows_of_a_start_share_the_pretraining_of_their_dose(store):
    """Labels and sets are no part of it, and every dose is trained once per seed."""
    jobs = plan_jobs(read_recipe(RECIPE.with_name("dose.yaml")), store)
    by_ssp = {job.pretraining for job in jobs if job.pretrain and all("/ssp" in row.name for row in job.rows)}
    assert len(by_ssp) == 10 + 5 + 3


def test_the_data_and_the_corpus_are_of_a_rows_settings():
    content = yaml.safe_load(RECIPE.with_name("dose.yaml").read_text())
    before = {row.name: row.fingerprint for row in Recipe(content).rows}
    for name, concerns in (("corpus", ("selqa", "wikiqa")), ("wikiqa", ("wikiqa",))):
        changed = content | {"fingerprints": content["fingerprints"] | {name: "another"}}
        after = Recipe(changed).rows
        assert {row.set for row in after if row.fingerprint != before[row.name]} == set(concerns)


def test_the_page_of_a_confirmation_tells_its_primary_comparison(store, tmp_path):
    recipe = read_recipe(RECIPE.with_name("dose.yaml"))
    page, random = tmp_path / "DOSE.md", np.random.default_rng(1)
    write_confirmation(Evidence(recipe, store), None, page)
    assert "not run yet" in page.read_text().split("\n\n")[1]
    figures = pack_figures(np.full(QUESTIONS, 0.5), np.ones(QUESTIONS), np.ones(QUESTIONS))
    store.write("selqa", {"baselines": {"BM25": figures, "cosine": figures}})
    for row in recipe.rows[:2]:
        for seed in row.seeds:
            ap = random.normal(0.6 + 0.1 * ("ssp" in row.name), 0.1, QUESTIONS).clip(0.01, 1)
            tuned = {"steps": 100, "best_step": 50, "precision": "bf16"}
            line = {"seed": seed, "dev_map": 0.6, "finetune": tuned, "pretrain": None, "start": "weights"}
            line["machine"] = "a processor"
            store.add(row, line | pack_figures(ap, np.ones(QUESTIONS), ap))
    write_confirmation(Evidence(recipe, store), None, page)
    assert "ranks better than" in page.read_text().split("\n\n")[1]
