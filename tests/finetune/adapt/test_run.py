"""An adaptation end to end, with tiny models: what it tells and leaves, and that it goes on wherever it was killed."""

import json
import shutil

import pytest

from data_pipeline.errors import KinspanError
from finetune.adapt import run, ways
from finetune.adapt.budget import parse_budget
from finetune.adapt.run import Runners, Settings, adapt
from finetune.data.registry import load_split
from finetune.measure import measure_models


@pytest.fixture(scope="module")
def folder(write_sets):
    return write_sets(train=20, dev=12, test=12, candidates=5)


@pytest.fixture(scope="module")
def start(make_model):
    return make_model(headless=True)


@pytest.fixture
def runners(make_model, folder, monkeypatch):
    """A preparation and a pre-training that take no time; ``runners.calls`` lists what was done."""
    monkeypatch.setattr(ways, "FEWEST_UPDATES", 4)
    monkeypatch.setattr(ways, "SHARE", 0.0)
    pretrained, calls = make_model(initializer_range=0.2), []

    def prepare(documents, model, corpus):
        calls.append("prepare")
        return {"documents": 3, "paragraphs": 9, "tokens": 99}

    def pretrain(settings, place):
        calls.append(f"pretrain {settings['max_steps']}")
        if not (place / "release").exists():
            shutil.copytree(pretrained, place / "release")
            (place / "release" / "kinspan.json").write_text("{}")
        steps, figures = settings["max_steps"], {"pair_auc": 0.5}
        validations = {"first_validation": figures, "last_validation": {"pair_auc": 0.75}}
        return {"steps": steps, "pairs": 32 * steps, "wall_seconds": 60.0, **validations}

    def hold_out(corpus, objective):
        return load_split(f"files={folder}", "dev")[0]

    made = Runners(prepare, lambda corpus: "ssp", pretrain, hold_out)
    object.__setattr__(made, "calls", calls)
    return made


@pytest.fixture
def settings(start, folder, tmp_path):
    def make(**given):
        values = {"documents": ["docs"], "questions": str(folder), "columns": None, "model": str(start)}
        return Settings(**{**values, "budget": parse_budget("3200pairs"), "output": tmp_path / "adapted", **given})

    return make


def test_labels_lead_to_a_verdict_that_evaluate_confirms(settings, runners, folder, capsys):
    said, given = [], settings()
    result = adapt(given, runners, said.append)
    text = "\n".join(said)
    assert capsys.readouterr().out == ""  # what the steps say is in the log
    assert "seed 1" in (given.output / "log.txt").read_text()
    assert len(text.splitlines()) <= 32
    assert result["verdict"] in text
    names = [row["name"] for row in result["ways"]]
    assert len(names) == 7
    tested = {row["name"]: row["test"] for row in result["ways"] if row["test"] is not None}
    assert result["chosen"] in tested
    assert len(tested) <= 2
    page = (given.output / "report.html").read_text()
    assert "Questions side by side" in page
    measured = result["release"] or given.model
    test = f"files={given.output / 'test' / 'test.jsonl'}"
    measure_models([measured], test, split="test", eval_filter="clean", as_json=True)
    systems = json.loads(capsys.readouterr().out.splitlines()[-1])["systems"]
    assert systems[0]["map"] == pytest.approx(tested[result["chosen"]], abs=1e-6)


@pytest.mark.parametrize(
    "step", ["settle_questions", "train_for", "list_untrained", "train_ways", "fuse_ways", "judge"]
)
def test_killed_and_run_again_it_comes_to_the_same(settings, runners, monkeypatch, step, tmp_path_factory):
    given = settings()
    whole = adapt(settings(output=tmp_path_factory.mktemp("whole") / "adapted"), runners, lambda line: None)
    before = getattr(run, step)

    def die(*arguments, **named):
        before(*arguments, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run, step, die)
        with pytest.raises(KeyboardInterrupt):
            adapt(given, runners, lambda line: None)
    again = adapt(given, runners, lambda line: None)
    assert {**again, "release": None} == {**whole, "release": None}


@pytest.mark.parametrize(
    "name", ["BM25", "as it is", "pre-trained model", "bi-encoder", "the fine-tuned cross-encoder", "the fusion"]
)
def test_whatever_is_chosen_is_released(settings, runners, monkeypatch, name, capsys):
    """Each way in turn is made to be the best; the folder ranks the test questions as the table says."""

    def prefer(every, start, dev, test, scorer):
        best = next(way for way in every if name in way.name)
        right = ways.Way(best.name, best.model, dev.labels.astype(float), best.parts, best.fitted)
        return judge(
            [right if way is best else way for way in every], right if best is start else start, dev, test, scorer
        )

    judge = run.judge
    monkeypatch.setattr(run, "judge", prefer)
    given = settings()
    result = adapt(given, runners, lambda line: None)
    verdict = result["figures"]
    if name == "as it is" or verdict["chosen"] <= verdict["start"]:
        assert result["release"] is None
        assert "Keep" in result["verdict"]
        return
    test = f"files={given.output / 'test' / 'test.jsonl'}"
    measure_models([result["release"]], test, split="test", eval_filter="clean", as_json=True, no_bm25=True)
    systems = json.loads(capsys.readouterr().out.splitlines()[-1])["systems"]
    assert systems[0]["map"] == pytest.approx(verdict["chosen"], abs=1e-6)


def test_without_labels_there_is_no_verdict(settings, runners):
    said, given = [], settings(questions=None)
    result = adapt(given, runners, said.append)
    assert result["verdict"].startswith("No verdict")
    assert result["chosen"] is None
    assert {path.name for path in (given.output / "release").iterdir()} >= {"config.json", "kinspan.json"}
    assert result["ways"][0]["name"] == "BM25"
    assert "AUC of 0.75" in "\n".join(said)
    assert "side by side" not in (given.output / "report.html").read_text()


def test_labels_that_come_later_go_on_from_there(settings, runners):
    adapt(settings(questions=None), runners, lambda line: None)
    result = adapt(settings(), runners, lambda line: None)
    assert result["chosen"]


def test_a_folder_of_something_else_is_refused(settings, runners):
    given = settings()
    given.output.mkdir()
    (given.output / "mine.txt").write_text("")
    with pytest.raises(KinspanError, match="is not empty and holds no adaptation"):
        adapt(given, runners, lambda line: None)
    assert not runners.calls
