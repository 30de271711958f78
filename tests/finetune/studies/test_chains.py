"""Rows of a study that begin with stages: each from the one before, shared where rows begin alike, and none twice."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from data_pipeline.core.errors import KinspanError
from finetune.reports import study_report
from finetune.reports.study_report import ZERO_SHOT
from finetune.reports.study_table import format_study
from finetune.studies.chains import fill_names
from finetune.studies.study import run_study
from finetune.studies.study_file import read_study
from finetune.training import train

SETTINGS = {"loss": "contrastive", "seeds": 1, "epochs": 1, "batch_size": 4, "max_length": 32, "precision": "fp32"}
SETTINGS |= {"learning_rate": "2e-3", "own_negatives": 1}


@pytest.fixture
def chain(tmp_path, sets, write_sets, make_model, monkeypatch):
    """``chain(rows)``: the results of a study of these rows, the models that its trainings began from, and those that
    its pre-trainings began from; a pre-training gives a model at once."""
    model, source = make_model(headless=True), write_sets(train=6, seed="general")
    for place in ("finetune.training.experiment", "finetune.studies.study"):
        monkeypatch.setattr(f"{place}.write_page", lambda *a: None)  # drawing takes longer than training
    began, pretrained = [], []
    loop = train._Run.loop
    monkeypatch.setattr(train._Run, "loop", lambda run, *a: (began.append(run.stage.model), loop(run, *a))[1])

    def prepare(settings, folder):
        if "wrong" in settings:
            raise KinspanError("'wrong' is not a setting")

        def run():
            if not (folder / "release").exists():
                pretrained.append(settings["model"])
                folder.mkdir(parents=True)
                (folder / "release").symlink_to(make_model(headless=True, hidden_size=16))

        return run

    def run(rows, zero_shot=False, repeat_stages=False, **flags):
        path = tmp_path / "study.yaml"
        path.write_text(
            yaml.safe_dump(
                {"title": "t", "settings": SETTINGS, "where": {"steps": 3}, "rows": rows, "zero_shot": zero_shot}
            )
        )
        given = {"model": str(model), **flags}
        arguments = [f"files={sets}"], tmp_path / "out", given, None, lambda _: None, {"pretrain": prepare}
        study = replace(read_study(path), repeat_stages=repeat_stages)
        return run_study(study, *arguments, {"source": f"files={source}"}), began, pretrained

    run.model, run.out = str(model), tmp_path / "out"
    return run


MLM, SOURCE = {"pretrain": {"max_steps": "$steps"}}, {"finetune": {"data": "$source", "epochs": 2}}
ROWS = [
    {"name": "M1"},
    {"name": "M2", "stages": [MLM]},
    {"name": "M3", "stages": [SOURCE]},
    {"name": "M4", "stages": [MLM, SOURCE]},
    {"name": "M4 again", "stages": [MLM, SOURCE], "settings": {"temperature": 1}},
]


def test_stages_begin_from_the_one_before_and_are_shared(chain):
    results, began, pretrained = chain(ROWS)
    assert pretrained == [chain.model]  # once for three rows
    mlm = [str(path) for path in chain.out.glob("stages/pretrain-*/release")]
    best = {str(path.parent.parent) for path in chain.out.glob("stages/finetune-*/seed-1/best")}
    assert len(mlm) == 1
    assert len(best) == 2
    after = [start.removesuffix("/seed-1/best") for start in began]
    source, both = after[3], after[5]
    assert after[:3] == [chain.model, *mlm, chain.model]  # M1, M2, and the source for M3
    assert after[3:] == [source, *mlm, both, both]  # M3, the source for M4, M4 and "M4 again"
    assert {source, both} == best

    table = results["tables"][0]
    assert table["metrics"] == ["mrr", "r@1", "r@5", "r@10"]
    assert [line["name"] for line in table["rows"]] == ["BM25", *(row["name"] for row in ROWS)]
    assert all(line["interval"][0] <= line["mrr"]["mean"] <= line["interval"][1] for line in table["rows"])
    assert "95% intervals of MRR over questions: BM25 " in format_study(results)

    count = len(began)
    again, began, pretrained = chain(ROWS)
    assert again == results
    assert (len(began), len(pretrained)) == (count, 1)  # nothing runs twice
    _, began, pretrained = chain([ROWS[2]], seeds=2)  # another seed of the row, and no other stage
    assert began[count:] == [f"{source}/seed-1/best"]


def test_mistakes_are_found_before_anything_runs(chain):
    with pytest.raises(KinspanError, match=r"^t: M: stage 2: 'wrong' is not a setting"):
        chain([{"name": "first"}, {"name": "M", "stages": [SOURCE, {"pretrain": {"wrong": 1}}]}])
    assert not chain.out.exists()
    with pytest.raises(
        KinspanError, match=r"^--set epochs: rows or their stages set it themselves \(M3, M4, M4 again\)"
    ):
        chain(ROWS, epochs=1)


def test_without_any_training_means_before_the_first_stage(chain):
    results, _, _ = chain(ROWS[1:2], zero_shot=True)
    alone, _, _ = chain(ROWS[:1], zero_shot=True)
    of_first, of_alone = (table["tables"][0]["rows"][1] for table in (results, alone))
    assert of_first["name"] == of_alone["name"] == ZERO_SHOT
    assert of_first["mrr"] == of_alone["mrr"]


def test_names_in_texts_are_filled():
    values = {"corpus": ["$corpus=3", "other"], "max_steps": "$steps", "whole": 4}
    assert fill_names(values, {"corpus": "c", "steps": "5"}) == {
        "corpus": ["c=3", "other"],
        "max_steps": "5",
        "whole": 4,
    }
    assert json.dumps(values).count("$") == 2


def test_figures_without_the_answers_that_training_has(chain, sets, answer_set, tmp_path):
    train_set, test_set = answer_set(sets, "train"), answer_set(sets, "test")
    known = next(text for text, label in zip(train_set.answers.to_pylist(), train_set.labels, strict=True) if label)
    lines = [json.loads(line) for line in (sets / "test.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line["label"])
    shared = tmp_path / "shared"
    shared.mkdir()
    for split in ("train", "dev"):
        (shared / f"{split}.jsonl").write_text((sets / f"{split}.jsonl").read_text())
    first["answer"] = known.upper()
    (shared / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = tmp_path / "one.yaml"
    path.write_text(yaml.safe_dump({"settings": {**SETTINGS, "seeds": 1}, "rows": [{"name": "M1"}]}))
    study = read_study(path)
    results = run_study(study, [f"files={shared}"], tmp_path / "o", {"model": chain.model}, None, lambda _: None)
    table = results["tables"][0]
    assert (table["questions"], table["unseen_questions"]) == (test_set.num_questions, test_set.num_questions - 1)
    assert set(table["rows"][1]["unseen"]) == {"map", "mrr", "r@1", "r@5", "r@10"}
    text = format_study(results)
    assert "without the 1 questions that share a right answer with train or dev (5 are left):" in text


def test_what_a_stage_was_trained_on_has_been_seen(chain, sets, answer_set, tmp_path):
    test_set = answer_set(sets, "test")
    known = test_set.answers.to_pylist()[int(test_set.labels.argmax())]
    source = tmp_path / "source"
    source.mkdir()
    texts = [known, *(f"an answer to question {number}" for number in range(3))]
    lines = [
        {"question_id": f"s{n}", "question": f"asked elsewhere, {n}?", "answer_id": "1", "answer": text, "label": 1}
        for n, text in enumerate(texts)
    ]
    (source / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    results, _, _ = chain([{"name": "M1"}])
    before = results["tables"][0]["unseen_questions"]
    rows = [{"name": "M1"}, {"name": "M3", "stages": [{"finetune": {"data": f"files={source}"}}]}]
    results, _, _ = chain(rows)
    assert results["tables"][0]["unseen_questions"] == before - 1


BEFORE = [
    {"name": "alone"},
    {"name": "chained", "stages": [SOURCE]},
    {"name": "pretrained", "pretrain": {"max_steps": 2}},
]
NOTE = "what came before fine-tuning ran once for all seeds"


def test_stages_that_ran_once_for_all_seeds_are_said(chain):
    results, _, pretrained = chain(BEFORE, seeds=2)
    said = [line.partition(":")[0] for line in format_study(results).splitlines() if NOTE in line]
    assert said == ["chained", "pretrained"]
    assert len(pretrained) == 1


def test_stages_can_run_once_for_each_seed(chain):
    results, began, pretrained = chain(BEFORE, seeds=2, repeat_stages=True)
    assert NOTE not in format_study(results)
    assert len(pretrained) == 2
    assert began[:4] == [chain.model] * 2 + [chain.model, str(next(chain.out.glob("stages/*/seed-1/best")))]
    assert began.count(chain.model) == 4  # "alone" with two seeds, and the source of each seed
    assert len(set(began)) == 1 + 2 + 2
    assert [row["seeds"] for row in results["tables"][0]["rows"][1:]] == [2, 2, 2]
    assert all(row["map"]["sd"] is not None for row in results["tables"][0]["rows"][2:])


def test_the_page_of_repeated_stages_has_every_seed(chain, monkeypatch):
    """Each seed ran as an experiment of its own; the page reads the runs of all, and no row lacks its star for that."""
    monkeypatch.setattr("finetune.studies.study.write_page", study_report.write_page)
    results, _, _ = chain([BEFORE[0], BEFORE[2]], seeds=2, repeat_stages=True)
    page = Path(results["tables"][0]["report"]).read_text()
    assert NOTE not in page
    for name in ("alone", "pretrained"):
        row = rf'scope="row">{name}</th>\s*(<td class="long">.*?</td>)?\s*<td>\d+, \d+</td>'
        assert re.search(row, page), name  # the updates of both seeds
    chain([BEFORE[0], BEFORE[2]], seeds=2)
    assert NOTE in Path(results["tables"][0]["report"]).read_text()
