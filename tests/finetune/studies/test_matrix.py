"""Studies of arms by starts and sets: their rows, their lines, and the tables of their pages."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import yaml

from data_pipeline.core.errors import KinspanError
from finetune.evaluation import contrasts
from finetune.evaluation.bm25 import score_bm25
from finetune.studies import figures
from finetune.studies.findings import Findings
from finetune.studies.lines import ResultStore, invert_ranks, pack_figures, read_outcome, shorten
from finetune.studies.matrix import make_matrix
from finetune.studies.measure import load_test, summarize
from finetune.studies.page import PLACE, write_page
from finetune.studies.rows import FINETUNE
from finetune.studies.study_file import make_config, read_study
from finetune.studies.tables import (
    list_contrasts,
    list_groups,
    list_kinds,
    list_pretrainings,
    list_rows,
)
from pretrain.config import PretrainConfig
from pretrain.planning.checks import check

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
EVIDENCE, DOSE = BENCHMARKS / "evidence/recipe.yaml", BENCHMARKS / "evidence/dose.yaml"
FORUMS = BENCHMARKS / "forums/study/recipe.yaml"
QUESTIONS = 80
CONTENT = {
    "threads": 1,
    "precision": "bf16",
    "starts": {"a": {"title": "(a)", "pretrain": {"max_tokens": 100}, "finetune": {"learning_rate": 1e-4}}},
    "pretrain": {"objective": "ssp"},
    "finetune": {"patience": 2},
    "sets": {"wikiqa": {"epochs": 5}, "trecqa": {}},
    "arms": {
        "none": {"title": "nothing", "finetune": {"fresh_head": True}},
        "mlm": {"title": "MLM", "pretrain": {"pair_weight": 0.0}},
        "ssp": {"title": "SSP", "pretrain": {}},
        "both": {"title": "MLM and SSP", "mean_of": ["mlm", "ssp"]},
    },
    "groups": [
        {"name": "first", "start": "a", "arms": ["none", "mlm", "ssp", "both"], "seeds": 5, "sets": ["wikiqa"]},
        {"name": "zero-shot", "start": "a", "arms": ["ssp"], "seeds": 5, "sets": ["wikiqa"], "measures": ["cosine"]},
        {"name": "more", "start": "a", "arms": ["none"], "seeds": [6, 7, 8, 9, 10], "sets": ["wikiqa"]},
        {"name": "few", "start": "a", "arms": ["ssp"], "seeds": 2, "sets": ["trecqa"], "questions": [50]},
    ],
    "comparisons": [["a/ssp/wikiqa", "a/mlm/wikiqa"], ["a/both/wikiqa", "a/none/wikiqa"]],
    "primary": ["a/ssp/wikiqa", "a/none/wikiqa"],
    "untrained": {"BM25": "BM25"},
}


@pytest.fixture(autouse=True)
def quick_tests(monkeypatch):
    """Fewer draws than a page has: no test here depends on the last digit of a p."""
    monkeypatch.setattr(contrasts, "ASSIGNMENTS", 2000)
    monkeypatch.setattr(contrasts, "DRAWS", 1000)


@pytest.fixture
def study():
    return make_matrix(Path("study.yaml"), json.loads(json.dumps(CONTENT)))


@pytest.fixture
def store(tmp_path):
    return ResultStore(tmp_path / "results")


def make_line(seed, value, random, **more):
    """A line of results whose MAP is about ``value``."""
    ap = np.clip(random.normal(value, 0.1, QUESTIONS), 0.01, 1)
    made = {"steps": 10, "tokens": 5_000_000, "seconds": 60.0, "first_validation": {}, "last_validation": {}}
    tuned = {"steps": 100, "best_step": 50, "stopped": "early", "precision": "bf16", "wall_seconds": 30.0}
    line = {"seed": seed, **pack_figures(ap, np.ones(QUESTIONS), ap), "dev_map": value, "finetune": tuned}
    return line | {"start": "weights", "pretrain": made, "seconds": 36.0, "machine": "a processor", **more}


def fill(study, store, gain, seeds=None):
    """Lines of all rows, those of SSP better by ``gain``; ``seeds``: how many of a row, by its name."""
    random = np.random.default_rng(1)
    figures = pack_figures(np.full(QUESTIONS, 0.5), np.ones(QUESTIONS), np.ones(QUESTIONS))
    for name in study.matrix["sets"]:
        store.write(name, {"contaminated": {"answer": [0]}, "baselines": {"BM25": figures}})
    for row in study.rows:
        for seed in row.seeds[: (seeds or {}).get(row.name, 99)]:
            if not row.mean_of:
                store.add(row, make_line(seed, 0.6 + gain * ("ssp" in row.name), random))
    return Findings(study, store)


# Rows ---------------------------------------------------------------------------------------------------------------


def test_a_row_has_all_settings_and_a_file_of_its_own(study):
    rows = {row.name: row for row in study.rows}
    assert rows["a/ssp/wikiqa"].pretrain == {"precision": "bf16", "objective": "ssp", "max_tokens": 100}
    told = {"precision": "bf16", "patience": 2, "learning_rate": 1e-4, "epochs": 5, "fresh_head": True}
    assert rows["a/none/wikiqa"].settings == told
    assert rows["a/none/wikiqa"].stages == ()
    (stage,) = rows["a/mlm/wikiqa"].stages
    assert stage.repeats
    assert stage.settings == rows["a/mlm/wikiqa"].pretrain | {"corpus": "$corpus", "precision": "auto"}
    assert rows["a/both/wikiqa"].mean_of == ("a/mlm/wikiqa", "a/ssp/wikiqa")
    assert rows["a/ssp, 50 questions/trecqa"].questions == 50
    assert len({shorten(name) for name in rows}) == len(rows)


def test_a_seed_of_two_groups_is_counted_once(study):
    """The ten seeds of the row that the error rate is taken of: comparisons take the first five alone."""
    row = next(row for row in study.rows if row.name == "a/none/wikiqa")
    assert len(row.seeds) == 10
    assert row.compared == (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"comparisons": [["a/ssp/wikiqa", "a/spp/wikiqa"]]}, "a/spp/wikiqa is the name of no row"),
        ({"workers": 2}, "has 'workers', which is none of"),
        (
            {"groups": [*CONTENT["groups"], {**CONTENT["groups"][0], "finetune": {"epochs": 1}}]},
            "stands in two groups with different settings",
        ),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(change, message):
    with pytest.raises(KinspanError, match=message):
        make_matrix(Path("study.yaml"), CONTENT | change)


@pytest.mark.parametrize(
    ("content", "told"), [({**CONTENT, "groups": 5}, "TypeError"), ({"groups": CONTENT["groups"]}, "KeyError: 'arms'")]
)
def test_groups_that_lack_what_they_name_are_one_line(content, told, tmp_path):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(KinspanError, match=f"study.yaml: its groups cannot be read .{told}.*: write them as in"):
        read_study(tmp_path / "study.yaml")


def test_the_data_and_the_corpus_are_of_a_rows_settings():
    content = yaml.safe_load(DOSE.read_text())
    before = {row.name: row.fingerprint for row in make_matrix(DOSE, content).rows}
    for name, concerns in (("corpus", content["sets"]), ("wikiqa", ("wikiqa",))):
        changed = content | {"fingerprints": content["fingerprints"] | {name: "another"}}
        after = make_matrix(DOSE, changed).rows
        assert {row.set for row in after if row.fingerprint != before[row.name]} == set(concerns)


@pytest.mark.parametrize("path", [EVIDENCE, DOSE], ids=lambda path: path.stem)
def test_every_row_of_a_benchmark_has_settings_that_both_trainings_take(path):
    for row in read_study(path).rows:
        make_config({**row.settings, "data": f"{row.set}=FOLDER"})
        if row.pretrain is not None:
            check(PretrainConfig(**row.pretrain))


def test_stored_lines_are_of_the_rows_of_their_study():
    """A line whose settings the file no longer gives would run again, and leave the tables."""
    stored = ((EVIDENCE, "evidence/results"), (DOSE, "evidence/results-dose"), (FORUMS, "forums/study/results"))
    for path, results in stored:
        store = ResultStore(BENCHMARKS / results)
        rows = [row for row in read_study(path).rows if not row.mean_of]
        found = {(row.lines_of, seed) for row in rows for seed in store.read_lines(row)}
        assert len(found) == sum(len(file.read_text().splitlines()) for file in store.folder.glob("*.jsonl"))


# Lines --------------------------------------------------------------------------------------------------------------


def test_figures_come_back_from_their_file(study, store):
    row, random = study.rows[0], np.random.default_rng(1)
    ranks, ap = random.integers(1, 20, QUESTIONS), random.random(QUESTIONS)
    line = make_line(2, 0.5, random) | pack_figures(ap, 1 / ranks, ap)
    store.add(row, line)
    found = read_outcome(store, row)
    assert np.abs(found.ap[0] - ap).max() < 1e-6
    assert np.array_equal(found.rr[0], invert_ranks(ranks))
    store.add(row, line)  # again: in the place of the first one
    assert len(store.read_lines(row)) == 1


def test_seeds_that_end_at_the_same_moment_are_all_kept(study, store):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: store.add(study.rows[0], {"seed": seed}), range(40)))
    assert sorted(store.read_lines(study.rows[0])) == list(range(40))


def test_a_line_of_other_settings_does_not_count(study, store):
    store.add(study.rows[0], {"seed": 1})
    other = make_matrix(Path("study.yaml"), CONTENT | {"finetune": {"patience": 9}})
    assert store.find_missing(study.rows[0], (1, 2)) == [2]
    assert store.find_missing(other.rows[0], (1, 2)) == [1, 2]


# Tables and pages ---------------------------------------------------------------------------------------------------


def test_a_comparison_is_shown_or_not_by_its_lines(study, store):
    text = list_contrasts(fill(study, store, 0.1))
    assert re.search(r"\| \(a\) SSP less MLM \| \+\.\d+ \| .* \| \*\*<?\.?[\d.]+\*\* \|", text)
    assert "**" not in list_contrasts(fill(study, store, 0.0))
    assert "(a) SSP less nothing" in list_contrasts(fill(study, store, 0.1), which="primary")


def test_nothing_is_shown_by_a_row_that_lacks_a_seed(study, store):
    found = fill(study, store, 0.1, {"a/ssp/wikiqa": 4})
    finding = found.find("a/ssp/wikiqa", "a/mlm/wikiqa")
    assert (finding.contrast, finding.seeds) == (None, (4, 5))
    assert finding.partial.difference > 0.05
    assert re.search(r"\*\(so far 4 and 5 of 5 seeds\)\* \| \+.*\|  \|  \|  \|$", list_contrasts(found), re.MULTILINE)
    assert "| SSP | 4 of 5 |" in list_rows(found, "a/*/wikiqa")


def test_hours_of_groups_have_each_pre_training_once(study, store):
    text = list_groups(fill(study, store, 0.1, {"a/ssp/wikiqa": 4}))
    hours = {line.split(" | ")[0]: line.split(" | ")[-3:] for line in text.splitlines()}
    assert hours["| first"] == ["2", "14", f"{14 * (36 + 60) / 3600:.2f} |"]
    assert hours["| zero-shot"] == ["1", "5", f"{(5 * 36 + 60) / 3600:.2f} |"]  # four of its models were there


def test_a_pre_training_is_named_without_the_questions_that_follow(study, store):
    found = fill(study, store, 0.1)
    assert "| (a) SSP |" in list_pretrainings(found, "a/ssp, 50 questions/trecqa;a/ssp, zero-shot*")


def test_kinds_of_questions_have_the_map_of_theirs(study, store):
    found = fill(study, store, 0.1)
    kinds = {"asked": {"who": [0, 3], "other": [n for n in range(QUESTIONS) if n not in (0, 3)]}}
    store.write("wikiqa", store.read("wikiqa") | {"kinds": kinds})
    ap = found.outcomes["a/ssp/wikiqa"].ap
    _, _, who, other = list_kinds(found, "wikiqa", "asked", "BM25/wikiqa;a/ssp/wikiqa").splitlines()
    assert who.startswith("| who | 2 | ")
    assert who.endswith(f" | {ap[:, [0, 3]].mean():.3f} |".replace("0.", "."))
    assert other.startswith(f"| other | {QUESTIONS - 2} |")


def test_a_mean_of_rows_is_that_of_their_questions(study, store):
    found = fill(study, store, 0.1)
    both, mlm, ssp = (found.outcomes[f"a/{arm}/wikiqa"].ap for arm in ("both", "mlm", "ssp"))
    assert np.allclose(both, (mlm + ssp) / 2)


def test_a_mean_is_of_the_seeds_that_all_of_its_rows_have(study, store):
    fill(study, store, 0.1)
    rows = {row.name: row for row in study.rows}
    path = store.folder / f"{shorten('a/mlm/wikiqa')}.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))  # its first seed has not run yet
    found = Findings(study, store)
    both, mlm, ssp = (found.outcomes[f"a/{arm}/wikiqa"].ap for arm in ("both", "mlm", "ssp"))
    assert np.allclose(both, (mlm + ssp[1:]) / 2)
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    first = store.folder / f"{shorten('a/ssp/wikiqa')}.jsonl"
    first.write_text(first.read_text().splitlines(keepends=True)[0])
    assert rows["a/both/wikiqa"].name not in Findings(study, store).outcomes


def test_rows_are_listed_by_patterns_with_what_needs_no_training_first(study, store):
    found = fill(study, store, 0.1)
    lines = list_rows(found, "BM25/wikiqa;a/*/wikiqa", "seeds map", but="*zero-shot*;a/both*").splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| BM25", "| nothing", "| MLM", "| SSP"]
    assert lines[2] == "| BM25 |  | .500 |"
    assert lines[-1].startswith("| SSP | 5 | .")
    with pytest.raises(KinspanError, match="has the column maps: known are seeds, map"):
        list_rows(found, "a/*", "maps")


def test_a_column_may_be_that_of_the_same_arm_on_another_set(study, store):
    found = fill(study, store, 0.1, {"a/ssp, 50 questions/trecqa": 1})
    (line,) = list_rows(found, "a/ssp, 50 questions/trecqa", "seeds:trecqa map:wikiqa").splitlines()[2:]
    assert line == "| SSP, 50 questions | 1 of 2 |  |"  # no row of 50 questions on WikiQA
    quarter = pack_figures(np.full(QUESTIONS, 0.25), np.ones(QUESTIONS), np.ones(QUESTIONS))
    store.write("trecqa", store.read("trecqa") | {"baselines": {"BM25": quarter}})
    columns = "map map:trecqa updates:trecqa"
    header, _, bm25 = list_rows(Findings(study, store), "BM25/wikiqa", columns).splitlines()
    assert header == "|  | MAP (sd) | trecqa | updates, trecqa |"
    assert bm25 == "| BM25 | .500 | .250 |  |"


def test_curves_have_a_dot_for_each_seed_and_a_line_through_the_means(study, store, tmp_path, monkeypatch):
    group = study.matrix["groups"][-1] | {"questions": [50, 100]}
    free = group | {"questions": [None], "measures": ["head"], "name": "free"}
    study = make_matrix(Path("study.yaml"), {**study.matrix, "groups": [*study.matrix["groups"], group, free]})
    drawn = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: drawn.append(figure))
    rows = "a/ssp, * questions/trecqa;a/ssp, zero-shot by the pair head/trecqa"
    figures.draw_curves(fill(study, store, 0.1), tmp_path / "labels.png", rows, "BM25/trecqa")
    (axes,) = drawn[0].axes
    curve, *dots, level = axes.lines
    assert list(curve.get_xdata()) == [25, 50, 100]
    assert [len(seeds.get_xdata()) for seeds in dots] == [2, 2, 2]
    assert np.allclose(curve.get_ydata(), [seeds.get_ydata().mean() for seeds in dots])
    assert set(level.get_ydata()) == {0.5}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["none", "50", "100"]
    levels = "a/none/wikiqa;a/mlm/wikiqa;a/ssp/wikiqa;a/both/wikiqa"  # more than there are styles
    figures.draw_curves(Findings(study, store), tmp_path / "labels.png", rows, levels)
    assert len(drawn[1].axes[0].lines) == len(axes.lines) + 3


def test_a_page_keeps_its_prose_and_has_its_tables_made_anew(study, store, tmp_path):
    page = tmp_path / "page.md"
    places = '<!-- rows rows="a/*/wikiqa" columns=map -->\nold\n<!-- end -->', "<!-- contrasts -->\n<!-- end -->"
    figure = "<!-- forest file=forest.png -->\n<!-- end -->\n![all](forest.png)"
    page.write_text("\n\n".join(["# Title", *places, "<!-- a note -->", figure, "The end."]))
    write_page(Findings(study, store), page)
    assert "(a) SSP less MLM | not run yet" in page.read_text()
    assert "columns=map -->\n\nNothing of this has run yet.\n\n<!-- end" in page.read_text()
    write_page(fill(study, store, 0.1), page)
    text = page.read_text()
    assert "old" not in text
    assert re.search(r"\| nothing \| \.(59|60)", text)
    assert text.startswith("# Title\n\n<!-- rows")
    assert text.endswith("The end.")
    assert "<!-- a note -->" in text
    assert (tmp_path / "forest.png").read_bytes().startswith(b"\x89PNG")
    write_page(Findings(study, store), page)
    assert page.read_text() == text


@pytest.mark.parametrize("call", ["row rows=a", "rows", "rows lines=a", "rows rows='a"])
def test_a_place_that_cannot_be_meant_is_named(study, store, tmp_path, call):
    page = tmp_path / "page.md"
    page.write_text(f"<!-- {call} -->\n<!-- end -->")
    with pytest.raises(KinspanError, match=f"page.md: <!-- {call} -->"):
        write_page(fill(study, store, 0.0), page)


@pytest.mark.parametrize(
    ("page", "path", "results"), [("EVIDENCE", EVIDENCE, "results"), ("FORUMS", FORUMS, "results")]
)
def test_the_tables_of_rows_on_a_page_are_those_of_its_lines(page, path, results, tmp_path):
    """The comparisons are left out: their draws take minutes."""
    found, count = Findings(read_study(path), ResultStore(path.parent / results)), 0
    text = (BENCHMARKS / f"{page}.md").read_text()
    for place in PLACE.finditer(text):
        if re.match(r"rows|pretrainings|groups", place["call"]):
            count += 1
            alone = tmp_path / "alone.md"
            alone.write_text(place[0])
            write_page(found, alone)
            assert alone.read_text() == place[0]
    assert count == 2


def test_forums_are_read_by_groups_of_targets():
    """A line has all targets; a group of five forums has their questions one after another."""
    found = Findings(read_study(FORUMS), ResultStore(FORUMS.parent / "results"))
    whole = found.outcomes["a/multi/title_body"].ap
    parts = [found.outcomes[f"a/multi/{forum}-title_body"].ap for forum in found.content["arms"]["mean"]["mean_of"]]
    assert np.array_equal(whole, np.concatenate(parts, axis=1))
    assert not any(row.fingerprint for row in found.study.rows)


def test_measures_other_than_fine_tuning_keep_the_head_alone(study):
    row = next(row for row in study.rows if row.measure != FINETUNE)
    assert row.name == "a/ssp, zero-shot by the cosine/wikiqa"
    assert row.settings == {}


@pytest.mark.parametrize("results", ["evidence/results", "evidence/results-dose"])
def test_the_stored_bm25_is_todays(results, shared):
    """A study that began before BM25 was improved would compare with a weaker baseline."""
    store = ResultStore(BENCHMARKS / results)
    for name in ("selqa", "wikiqa", "trecqa"):  # InsuranceQA's candidates are made for the study
        if known := store.read(name):
            test = load_test(f"{name}={shared / 'data/as2' / name}").test
            assert known["baselines"]["BM25"]["ap"] == summarize(test, score_bm25(test))["ap"]
