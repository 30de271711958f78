"""Studies: what a file may say, the table, and rows that share what they can."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.metrics import METRICS, compute_means, compute_question_metrics
from finetune.reports.card import AS_STARTED, AS_TRANSFERRED
from finetune.reports.study_table import format_study
from finetune.studies.study import run_study
from finetune.studies.study_file import read_study
from finetune.training import train
from pretrain.engine.stop import listen_for_stop

FAST = {"seeds": 1, "epochs": 1, "batch_size": 8, "max_length": 32, "learning_rate": "2e-3", "precision": "fp32"}
SETTINGS = {**FAST, "transfer_epochs": 1}
RECIPES = Path(__file__).resolve().parents[3] / "launch/recipes"


@pytest.fixture
def study_file(tmp_path):
    def write(content):
        path = tmp_path / "study.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return write


@pytest.fixture
def refused(study_file, tmp_path, sets, model):
    """``refused(content)``: the message of the error, which no training comes before."""

    def run(content, specs=None, overrides=None, transfer=None):
        path, given = study_file(content), {"model": str(model), **(overrides or {})}
        arguments = (specs or [f"files={sets}"], tmp_path / "out", given, transfer, lambda _: None)
        with pytest.raises(KinspanError) as error:
            run_study(read_study(path), *arguments)
        assert not list(tmp_path.glob("out/**/run.json"))
        assert "\n" not in str(error.value)
        return str(error.value)

    return run


def row(name="one", **more):
    return {"name": name, **more}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "study.yaml cannot be read"),
        ("- a", "must have a title and a list of rows"),
        ({"title": "x"}, "must have a title and a list of rows"),
        ({"rows": {"a": 1}}, "must have a title and a list of rows"),
        ({"rows": 5}, "must have a title and a list of rows"),
        ({"rows": ["a"]}, "a row needs a name: a"),
        ({"rows": [row()], "sttings": {}}, "the study has 'sttings', did you mean settings?"),
        ({"rows": [row(setings={})]}, "row one has 'setings'"),
        ({"rows": [row()], "settings": [1]}, "settings must be lines of `name: value`"),
        ({"rows": [row()], "settings": {"epoch": 1}}, "settings has 'epoch', did you mean epochs?"),
        ({"rows": [row()], "settings": {"output_dir": "x"}}, "settings has 'output_dir'"),
        ({"rows": [row(settings={"transfer": "asnq=x"})]}, "row one has 'transfer'"),
        ({"rows": [row(tanda="sometimes")]}, "row one: tanda sometimes: must be true or false"),
        ({"rows": [row("a b"), row("A-B")]}, "row a b: its letters and digits must set it apart"),
        ({"rows": [row("+")]}, "row +: its letters and digits"),
        ({"rows": [row(paper=[0.5])]}, "row one: paper must be lines of `name: value`"),
        ({"rows": [row(paper={"wikiqa": 0.5})]}, "row one: paper: wikiqa must be lines of `name: value`"),
        ({"rows": [row(paper={"wikqa": {"map": 0.5}})]}, "paper has 'wikqa', did you mean wikiqa?"),
        ({"rows": [row(paper={"wikiqa": {"MAP": 0.5}})]}, "paper: wikiqa has 'MAP', which is none of"),
        ({"rows": [row(paper={"wikiqa": {"map": "high"}})]}, "paper: wikiqa: map high: must be from 0 to 1"),
        ({"rows": [row(paper={"wikiqa": {"map": 92.0}})]}, "paper: wikiqa: map 92.0: must be from 0 to 1"),
        ({"rows": [row(settings={"learning_rate": "fast"})]}, "one: learning_rate: fast: must be a number"),
        ({"rows": [row(settings={"learning_rate": -1})]}, "one: --learning_rate -1.0: must be above 0"),
        ({"rows": [row(settings={"learning_rate": ".nan"})]}, "learning_rate"),
        ({"rows": [row(settings={"seeds": 2.5})]}, "one: seeds: 2.5: must be a whole number"),
        ({"rows": [row(settings={"seeds": True})]}, "one: seeds: True: must be a whole number"),
        ({"rows": [row(settings={"seeds": None})]}, "one: seeds: None: must be a whole number"),
        ({"rows": [row(settings={"epochs": [1]})]}, "one: epochs: [1]: must be a whole number"),
        ({"rows": [row(settings={"fresh_head": "no!"})]}, "one: fresh_head: no!: must be true or false"),
        ({"rows": [row(settings={"loss": "hinge"})]}, "loss: hinge: must be one of pointwise, pairwise, listwise"),
        ({"rows": [row()], "settings": {"eval_filter": None}}, "eval_filter: None: must be one of raw"),
        ({"rows": [row(settings={"eval_filter": "raw"})]}, "row one sets eval_filter, but its rows are compared on"),
        ({"rows": [row()]}, "one: model: 5: must be text"),
        ({"rows": [row(settings={"search_batch_sizes": []})]}, "search_batch_sizes: []: must have a value"),
        ({"rows": [row(settings={"search_batch_sizes": [1.5]})]}, "search_batch_sizes: 1.5: must be a whole number"),
        ({"rows": [row(), row("two", settings={"negative_labels": [4]})]}, "two: --negative_labels [4]"),
        ({"rows": [row()], "zero_shot": "maybe"}, "zero_shot maybe: must be true or false"),
        ({"rows": [row()], "zero_shot": True}, "zero_shot needs a model that embeds texts, and "),
        ({"rows": [row(tanda=True)]}, "rows of TANDA need --transfer"),
        ({"rows": [row(stages={"pretrain": {}})]}, "row one: stages must be a list"),
        ({"rows": [row(stages=["pretrain"])]}, "row one: stage 1: must be one of pretrain and finetune"),
        ({"rows": [row(stages=[{"mlm": {}}])]}, "row one: stage 1: must be one of pretrain and finetune"),
        ({"rows": [row(stages=[{"pretrain": 3}])]}, "row one: stage 1: pretrain must be lines of `name: value`"),
        ({"rows": [row(stages=[{"finetune": {"epoch": 1}}])]}, "row one: stage 1 has 'epoch', did you mean epochs?"),
        ({"rows": [row(stages=[{"finetune": {"epochs": 1}}])]}, "row one: stage 1: finetune needs data"),
        ({"rows": [row(stages=[{"finetune": {"data": "$no"}}])]}, "one: $no is not known: give --where no=..."),
        ({"rows": [row(stages=[{"finetune": {"data": "a", "epochs": 0}}])]}, "one: stage 1: --epochs 0: must be above"),
        ({"rows": [row(stages=[{"pretrain": {}}], tanda=True)]}, "row one: stages say it all"),
        ({"rows": [row()], "where": ["corpus"]}, "where must be lines of `name: value`"),
        (
            {"rows": [row(), row("two", settings={"epochs": 2})]},
            "--set epochs: rows or their stages set it themselves (two): change a copy",
        ),
    ],
)
def test_mistakes_are_one_line_that_names_them(content, message, refused):
    overrides = {"one: model": {"model": 5}, "--set epoc": {"epochs": 1}}.get(message[:10])
    assert message in refused(content, overrides=overrides)


def test_mistakes_of_the_command(refused, sets):
    content = {"rows": [row(), row("two", tanda=True)]}
    assert "two of files=" in refused({"rows": [row()]}, specs=[f"files={sets}", "files=other"])
    assert "it is the target's own data set" in refused(content, transfer=f"files={sets}")
    assert "it is the target's own data set" in refused(content, ["wikiqa=a"], transfer="wikiqa=b")
    assert "has no row of TANDA" in refused({"rows": [row()]}, transfer="wikiqa=b")
    assert "seeds: many: must be a whole number" in refused({"rows": [row()]}, overrides={"seeds": "many"})


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(KinspanError, match=r"none.yaml cannot be read"):
        read_study(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    "path", [p for p in sorted(RECIPES.glob("*.yaml")) if "rows:" in p.read_text()], ids=lambda p: p.stem
)
def test_the_studies_that_are_here_can_be_read(path, tmp_path, monkeypatch):
    from finetune.studies import jobs

    seen = []

    def stop(config, *_, **__):
        seen.append(config)
        raise KinspanError("enough")

    monkeypatch.setattr(jobs, "run_experiment", stop)
    stages, where = {"pretrain": lambda settings, folder: None}, {"corpus": "c", "source": "askubuntu_qa=z"}
    study = read_study(path)
    transfer = "asnq=y" if any(row.tanda for row in study.rows) else None
    with pytest.raises(KinspanError, match="enough"):
        run_study(study, ["wikiqa=x"], tmp_path, {}, transfer, lambda _: None, stages, where)
    assert seen


@pytest.fixture
def noisy():
    """Fine-tuning and TANDA, with and without flipped labels; the paper's figures of two rows."""
    paper = [{"files": {"map": figure}} for figure in (0.8, 0.6)]
    return {
        "title": "Noise",
        "source": "a table",
        "settings": {**SETTINGS, "learning_rate": "1e-3"},
        "rows": [
            row("FT", paper=paper[0]),
            row("FT 20%", settings={"label_noise": 0.2}, paper=paper[1]),
            row("TANDA", tanda=True, settings={"learning_rate": "1e-4"}),
            row("TANDA 20%", tanda=True, settings={"learning_rate": "1e-4", "label_noise": 0.2}),
        ],
    }


def test_a_study(noisy, study_file, tmp_path, sets, write_sets, model, monkeypatch):
    trained, said = [], []
    loop = train._Run.loop
    monkeypatch.setattr(train._Run, "loop", lambda run, *a: (trained.append(run.stage), loop(run, *a))[1])
    transfer = f"files={write_sets(train=6, seed='general')}"
    arguments = (read_study(study_file(noisy)), [f"files={sets}"], tmp_path / "out", {"model": str(model)}, transfer)
    results = run_study(*arguments, said.append)
    assert [stage.what for stage in trained] == ["fine-tuning"] * 2 + ["transfer", "adaptation", "adaptation"]
    [table] = results["tables"]
    assert [line["name"] for line in table["rows"]] == ["BM25", "FT", "FT 20%", "TANDA", "TANDA 20%"]
    assert (table["questions"], table["pairs"]) == (6, 30)
    for line in table["rows"]:
        assert all(0 <= line[m]["mean"] <= 1 for m in METRICS)
    assert [line["p"] is None for line in table["rows"]] == [False, True, False, False, False]
    assert [line.get("clean") for line in table["rows"]] == [None, None, "FT", None, "TANDA"]
    assert json.loads((tmp_path / "out/study.json").read_text()) == results
    assert Path(table["report"]).read_text().startswith("<!")

    text = format_study(results)
    assert said[-1] == text
    ours = {line["name"]: line["map"]["mean"] for line in table["rows"]}
    drop = 100 * (1 - ours["FT 20%"] / ours["FT"])
    assert f"FT 20%: MAP drops by {drop:.2f}% (paper: 25.00%)" in text
    assert f"TANDA 20%: MAP drops by {100 * (1 - ours['TANDA 20%'] / ours['TANDA']):.2f}%\n" in text
    assert [line.split()[1:] for line in text.splitlines() if line.startswith("  paper")] == [["0.800"], ["0.600"]]

    summary = tmp_path / "out/files/tanda/seed-1/summary.json"
    kept = json.loads(summary.read_text())["best_step"] == 0
    assert (f"TANDA: 1 of 1 seeds: {AS_TRANSFERRED}" in text) == kept
    results["tables"][0]["rows"][3]["as_transferred"] = 1 - kept
    assert (f"TANDA: 1 of 1 seeds: {AS_TRANSFERRED}" in format_study(results)) != kept
    results["tables"][0]["rows"][3]["as_transferred"] = int(kept)
    kept = json.loads((tmp_path / "out/files/ft/seed-1/summary.json").read_text())["best_step"] == 0
    assert (f"FT: 1 of 1 seeds: {AS_STARTED}" in text) == kept
    results["tables"][0]["rows"][1]["as_started"] = 1 - kept
    assert (f"FT: 1 of 1 seeds: {AS_STARTED}" in format_study(results)) != kept
    results["tables"][0]["rows"][1]["as_started"] = int(kept)

    again = run_study(*arguments, lambda _: None)
    assert again == results
    assert len(trained) == 5


def test_a_study_shows_what_doing_nothing_comes_to(study_file, tmp_path, sets, make_model, answer_set, monkeypatch):
    encoder = str(make_model())
    monkeypatch.setattr("finetune.studies.study.is_bi_encoder", lambda model: model == encoder)
    seen = []

    def score_by_length(model, data):  # at the encoder's own length
        seen.append(model)
        return np.array([float(len(text)) for text in data.answers.to_pylist()])

    monkeypatch.setattr("finetune.studies.study.score_answers", score_by_length)
    content = {"zero_shot": True, "about": "One seed shows nothing.", "settings": SETTINGS, "rows": [row("FT")]}
    results = run_study(
        read_study(study_file(content)), [f"files={sets}"], tmp_path, {"model": encoder}, None, lambda _: None
    )
    assert seen == [encoder]
    _, cosine, tuned = results["tables"][0]["rows"]
    data = answer_set(sets, "test")
    lengths = np.array([float(len(text)) for text in data.answers.to_pylist()])
    assert cosine["name"] == "zero-shot cosine"
    assert cosine["map"] == {"mean": compute_means(compute_question_metrics(data, lengths))["map"], "sd": None}
    assert cosine["p"]["difference"] == pytest.approx(cosine["map"]["mean"] - tuned["map"]["mean"])
    assert "over_seeds" not in cosine["p"]  # it has none
    assert format_study(results).endswith("One seed shows nothing.")
    assert "zero-shot cosine" in Path(results["tables"][0]["report"]).read_text()


def test_settings_over_the_studys_and_several_data_sets(study_file, tmp_path, sets, model, monkeypatch):
    from finetune.studies import jobs

    seen = []

    def stop(config, *_, **__):
        seen.append(config)
        raise KinspanError("enough")

    monkeypatch.setattr(jobs, "run_experiment", stop)
    content = {"settings": {"epochs": 7, "seeds": 3, "transfer_epochs": "1e1"}, "rows": [row(settings={"epochs": 5})]}
    with pytest.raises(KinspanError, match="enough"):
        run_study(read_study(study_file(content)), [f"files={sets}"], tmp_path, {"seeds": 2}, None, lambda _: None)
    [config] = seen
    assert (config.epochs, config.seeds, config.transfer_epochs, config.transfer) == (5, 2, 10, None)
    assert type(config.transfer_epochs) is int
    assert config.output_dir == str(tmp_path / "files/one")
    assert config.transfer_dir == str(tmp_path / "transfers")


def test_a_stop_is_listened_for_from_the_first_pre_training_on(study_file, tmp_path, sets, model):
    """A signal between two stages would otherwise end the process, and the hours would count from fine-tuning on."""

    def pretrain():
        with listen_for_stop(9) as request:
            raise KinspanError(f"{request.max_hours} hours")

    study = read_study(study_file({"title": "s", "settings": FAST, "rows": [row(pretrain={"max_hours": "5"})]}))
    arguments = ([f"files={sets}"], tmp_path / "out", {"model": str(model), "max_hours": 7}, None, lambda _: None)
    with pytest.raises(KinspanError, match=r"^5.0 hours$"):
        run_study(study, *arguments, {"pretrain": lambda settings, folder: pretrain})
