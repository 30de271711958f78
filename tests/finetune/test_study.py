"""Studies: what a file may say, the table, rows that share what they can, and stages that are not run twice."""

import json
import shutil

import numpy as np
import pytest
import yaml

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.metrics import METRICS, compute_means, compute_question_metrics
from finetune.study import ZERO_SHOT, StudyContext, format_study, read_study, run_study
from finetune.training.card import AS_STARTED, AS_TRANSFERRED

FAST = {"seeds": 1, "epochs": 1, "batch_size": 8, "max_length": 32, "learning_rate": "2e-3", "precision": "fp32"}
CONTRASTIVE = {**FAST, "loss": "contrastive", "batch_size": 4, "own_negatives": 1}


@pytest.fixture
def study(tmp_path):
    """``study(content)``: the study of a file with this content."""

    def read(content):
        path = tmp_path / "study.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return read_study(path)

    return read


def row(name="one", **more):
    return {"name": name, **more}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        *[("[", "study.yaml"), ("- a", "study.yaml"), ({"title": "x"}, "rows")],
        *[({"rows": [row()], "sttings": {}}, "sttings"), ({"rows": [row(setings={})]}, "row one has 'setings'")],
        ({"rows": [row()], "settings": {"epoch": 1}}, "'epoch'"),
        ({"rows": [row(settings={"transfer": "asnq=x"})]}, "row one has 'transfer'"),
        *[({"rows": [row(tanda="sometimes")]}, "row one: tanda"), ({"rows": [row("a b"), row("A-B")]}, "row a b")],
        *[({"rows": [row(paper=[0.5])]}, "row one: paper"), ({"rows": [row(paper={"wikqa": {"map": 0.5}})]}, "wikqa")],
        ({"rows": [row(paper={"wikiqa": {"MAP": 0.5}})]}, "'MAP'"),
        ({"rows": [row(paper={"wikiqa": {"map": 92.0}})]}, "map 92.0"),
        ({"rows": [row(settings={"eval_filter": "raw"})]}, "row one has 'eval_filter'"),
        ({"rows": [row()], "zero_shot": "maybe"}, "zero_shot"),
        ({"rows": [row(stages={"pretrain": {}})]}, "row one: stages"),
        ({"rows": [row(stages=[{"mlm": {}}])]}, "row one: stages"),
        ({"rows": [row(stages=[{"finetune": {"epoch": 1}}])]}, "row one: stages: finetune has 'epoch'"),
        ({"rows": [row(stages=[{"finetune": {"epochs": 1}}])]}, "row one: stages: finetune needs data"),
        ({"rows": [row()], "where": ["corpus"]}, "where"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(content, named, study):
    with pytest.raises(KinspanError, match=rf"(?s)^--study .*{named}"):
        study(content)


@pytest.mark.parametrize(
    ("content", "changed", "named"),
    [
        ({"rows": [row(settings={"learning_rate": "fast"})]}, {}, "one: --learning_rate"),
        ({"rows": [row(), row("two", settings={"negative_labels": [4]})]}, {}, "two: --negative_labels"),
        *[({"rows": [row()], "zero_shot": True}, {}, "zero_shot"), ({"rows": [row(tanda=True)]}, {}, "--transfer")],
        ({"rows": [row()]}, {"transfer": "wikiqa=b"}, "--transfer"),
        ({"rows": [row(tanda=True)]}, {"transfer": "files=SETS"}, "--transfer"),
        ({"rows": [row()]}, {"specs": ["files=a", "files=b"]}, "--data"),
        ({"rows": [row()]}, {"overrides": {"seeds": "many"}}, "one: --seeds"),
        ({"rows": [row("two", settings={"epochs": 2})]}, {"overrides": {"epochs": 1}}, "--set epochs"),
        ({"rows": [row(stages=[{"finetune": {"data": "$no"}}])]}, {}, r"one: \$no .*--where no"),
        ({"rows": [row(stages=[{"finetune": {"data": "a", "epochs": 0}}])]}, {}, "one: --epochs"),
        ({"rows": [row(stages=[{"pretrain": {}}])]}, {}, "one: stages"),
        ({"rows": [row(), row("two", settings={"loss": "contrastive"})]}, {}, "loss"),
        ({"rows": [row(), row("two", settings={"train_data": "files=nowhere"})]}, {}, "two: files=nowhere"),
        ({"rows": [row(stages=[{"finetune": {"data": "files=nowhere"}}])]}, {}, "one: files=nowhere"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(content, changed, named, study, tmp_path, sets, model):
    given = {"specs": [f"files={sets}"], "overrides": {"model": str(model)}, **changed}
    if given.get("transfer") == "files=SETS":
        given["transfer"] = f"files={sets}"
    with pytest.raises(KinspanError, match=named):
        run_study(StudyContext(study(content), output=tmp_path / "out", **given))
    assert not (tmp_path / "out").exists()


def test_a_table_of_noise_and_tanda(study, tmp_path, sets, write_sets, model, trained):
    """Fine-tuning and TANDA, with and without flipped labels; the paper's figures of two rows."""
    paper = [{"files": {"map": figure}} for figure in (0.8, 0.6)]
    rows = [
        *[row("FT", paper=paper[0]), row("FT 20%", settings={"label_noise": 0.2}, paper=paper[1])],
        row("TANDA", tanda=True, settings={"learning_rate": "1e-4"}),
        row("TANDA 20%", tanda=True, settings={"learning_rate": "1e-4", "label_noise": 0.2}),
    ]
    settings = {**FAST, "transfer_epochs": 1, "learning_rate": "1e-3"}
    content = {"title": "Noise", "about": "One seed shows nothing.", "settings": settings, "rows": rows}
    transfer = f"files={write_sets(train=6, seed='general')}"
    context = StudyContext(study(content), [f"files={sets}"], tmp_path / "out", {"model": str(model)}, transfer)
    results = run_study(context)
    assert [stage.what for stage in trained] == ["fine-tuning"] * 2 + ["transfer", "adaptation", "adaptation"]
    [table] = results["tables"]
    assert [line["name"] for line in table["rows"]] == ["BM25", "FT", "FT 20%", "TANDA", "TANDA 20%"]
    assert (table["questions"], table["pairs"]) == (6, 30)
    for line in table["rows"]:
        assert all(0 <= line[m]["mean"] <= 1 for m in METRICS)
    assert [line["p"] is None for line in table["rows"]] == [False, True, False, False, False]
    assert [line.get("clean") for line in table["rows"]] == [None, None, "FT", None, "TANDA"]
    assert json.loads((tmp_path / "out/study.json").read_text()) == results

    text = format_study(results)
    ours = {line["name"]: line["map"]["mean"] for line in table["rows"]}
    drop = 100 * (1 - ours["FT 20%"] / ours["FT"])
    assert f"FT 20%: MAP drops by {drop:.2f}% (paper: 25.00%)" in text
    assert f"TANDA 20%: MAP drops by {100 * (1 - ours['TANDA 20%'] / ours['TANDA']):.2f}%\n" in text
    assert [line.split()[1:] for line in text.splitlines() if line.startswith("  paper")] == [["0.800"], ["0.600"]]
    assert text.endswith("One seed shows nothing.")
    assert text.count(": one seed:") == 4
    for name, reason in (("FT", AS_STARTED), ("TANDA", AS_TRANSFERRED)):
        (line,) = [line for line in table["rows"] if line["name"] == name]
        for count in (0, 1):
            line["unimproved"] = count
            assert (f"{name}: 1 of 1 seeds: {reason}" in format_study(results)) == bool(count)

    assert len(run_study(context)["tables"]) == 1
    assert len(trained) == 5


# Stages -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def chain(study, tmp_path, sets, write_sets, make_model, trained):
    """``chain(rows)``: the results of a study of these rows, the models that its trainings began from, and those that
    its pre-trainings began from; a pre-training gives a model at once."""
    model, source = make_model(headless=True), write_sets(train=6, seed="general")
    pretrained = []

    def prepare(settings, folder):
        def run():
            if not (folder / "release").exists():
                pretrained.append(settings["model"])
                folder.mkdir(parents=True)
                (folder / "release").symlink_to(make_model(headless=True, hidden_size=16))

        return run

    def run(rows, zero_shot=False, **overrides):
        read = study({"settings": CONTRASTIVE, "where": {"steps": 3}, "rows": rows, "zero_shot": zero_shot})
        overrides, names = {"model": str(model), **overrides}, {"source": f"files={source}"}
        context = StudyContext(read, [f"files={sets}"], run.out, overrides, None, prepare, names)
        return run_study(context), [stage.model for stage in trained], pretrained

    run.model, run.out = str(model), tmp_path / "out"
    return run


MLM, SOURCE = {"pretrain": {"max_steps": "$steps"}}, {"finetune": {"data": "$source", "epochs": 2}}
ROWS = [
    row("M1"),
    row("M2", stages=[MLM]),
    row("M3", stages=[SOURCE]),
    row("M4", stages=[MLM, SOURCE]),
    row("M4 again", stages=[MLM, SOURCE], settings={"temperature": 1}),
]


def test_no_stage_runs_again_where_the_installed_model_has_moved(chain, monkeypatch, tmp_path):
    for place in (chain.model, str(shutil.copytree(chain.model, tmp_path / "moved"))):
        monkeypatch.setattr("data_pipeline.core.default_model._find_package", lambda place=place: place)
        chain([ROWS[1], ROWS[2]], model=place)
    assert len([*chain.out.glob("stages/*")]) == 2


def test_stages_begin_from_the_one_before_and_are_shared(chain):
    results, began, pretrained = chain(ROWS)
    assert pretrained == [chain.model]  # once for three rows
    mlm = [str(path) for path in chain.out.glob("stages/pretrain-*/release")]
    best = {str(path.parent.parent) for path in chain.out.glob("stages/finetune-*/seed-1/best")}
    assert len(best) == 2
    after = [start.removesuffix("/seed-1/best") for start in began]
    source, both = after[3], after[5]
    assert after[:3] == [chain.model, *mlm, chain.model]  # M1, M2, and the source for M3
    assert after[3:] == [source, *mlm, both, both]  # M3, the source for M4, M4 and "M4 again"
    assert {source, both} == best

    table = results["tables"][0]
    assert table["metrics"] == ["mrr", "r@1", "r@5", "r@10"]
    assert all(line["interval"][0] <= line["mrr"]["mean"] <= line["interval"][1] for line in table["rows"])
    assert "95% intervals of MRR over questions: BM25 " in format_study(results)

    count = len(began)
    again, began, pretrained = chain(ROWS)
    assert again == results
    assert (len(began), len(pretrained)) == (count, 1)  # nothing runs twice
    results, began, _ = chain([ROWS[2]], seeds=2)  # another seed of the row, and no other stage
    assert began[count:] == [f"{source}/seed-1/best"]
    assert "M3: what came before fine-tuning ran once for all seeds" in format_study(results)


def test_without_any_training_means_before_the_first_stage(chain, sets, answer_set, monkeypatch):
    seen = []

    def score_by_length(model, data):  # at the encoder's own length
        seen.append(model)
        return np.array([float(len(text)) for text in data.answers.to_pylist()])

    monkeypatch.setattr("finetune.study.score_answers", score_by_length)
    results, _, _ = chain(ROWS[1:2], zero_shot=True)
    assert seen == [chain.model]
    _, cosine, tuned = results["tables"][0]["rows"]
    data = answer_set(sets, "test")
    means = compute_means(compute_question_metrics(data, score_by_length("", data)))
    assert (cosine["name"], cosine["map"]) == (ZERO_SHOT, {"mean": means["map"], "sd": None})
    assert cosine["p"]["difference"] == pytest.approx(cosine["mrr"]["mean"] - tuned["mrr"]["mean"])
