"""An adaptation end to end, with tiny models: what it tells and leaves, and that it goes on wherever it was killed."""

import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.adapt import run, ways
from finetune.adapt.budget import parse_budget
from finetune.adapt.page import list_commands
from finetune.adapt.questions import load_questions
from finetune.adapt.run import Runners, Settings, adapt
from finetune.adapt.sample import NOT_LEARNED, measure_sample
from finetune.adapt.ways import name_model
from finetune.data.registry import load_split
from finetune.evaluation.bm25 import BM25
from finetune.measure import measure_models
from pretrain.modeling.default_model import default_model


@pytest.fixture(scope="module")
def folder(write_sets):
    return write_sets(train=20, dev=12, test=12, candidates=5)


@pytest.fixture(scope="module")
def start(make_model):
    return make_model(headless=True)


@pytest.fixture(scope="module")
def runners(make_model, folder):
    """A preparation and a pre-training that take no time."""
    pretrained = make_model(initializer_range=0.2)

    def prepare(documents, model, corpus, but):
        return {"documents": 3, "paragraphs": 9, "tokens": 99}

    def pretrain(settings, place):
        if not (place / "release").exists():
            shutil.copytree(pretrained, place / "release")
            (place / "release" / "kinspan.json").write_text("{}")
            (place / "release" / "README.md").write_text("# A release")
        steps = settings["max_steps"]
        validations = {"first_validation": {"pair_auc": 0.5}, "last_validation": {"pair_auc": 0.75}}
        return {"steps": steps, "pairs": 32 * steps, "wall_seconds": 60.0, **validations}

    return Runners(
        prepare, lambda corpus: "ssp", pretrain, lambda corpus, name: load_split(f"files={folder}", "dev")[0]
    )


@pytest.fixture(scope="module")
def settings(start, folder, tmp_path_factory):
    """``settings(**given)``: what the command was given, with an output folder that is not there yet."""

    def make(**given):
        values = {"documents": ["docs"], "questions": str(folder), "columns": None, "model": str(start)}
        values |= {"budget": parse_budget("3200pairs"), "output": tmp_path_factory.mktemp("run") / "adapted"}
        return Settings(**values | given)

    return make


@pytest.fixture(autouse=True, scope="module")
def _few_updates():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ways, "FEWEST_UPDATES", 4)
        patch.setattr(ways, "SHARE", 0.0)
        patch.setattr(ways, "FEWEST_BETWEEN", 2)
        yield


STEPS = ("load_questions", "_pretrain", "list_untrained", "train_ways", "fuse_ways", "judge", "_release")


@pytest.fixture(scope="module")
def done(settings, runners, _few_updates):
    """An adaptation that was killed after each of its steps, of several ways after the first one, and then ended: what
    it was given, said and returned."""
    given, said = settings(), []
    for step in STEPS:
        finished = getattr(run, step)

        def die(*arguments, finished=finished, **named):
            if isinstance(found := finished(*arguments, **named), Iterator):
                next(found)
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run, step, die)
            with pytest.raises(KeyboardInterrupt):
                adapt(given, runners, lambda line: None)
    return given, adapt(given, runners, said.append), "\n".join(said)


def measure(model, given, capsys):
    """MAP on the test questions, as kinspan evaluate has it."""
    capsys.readouterr()
    test = f"files={given.output / 'test' / 'test.jsonl'}"
    measure_models([model], test, split="test", eval_filter="clean", as_json=True, no_bm25=True)
    return json.loads(capsys.readouterr().out.splitlines()[-1])["systems"][0]["map"]


def test_labels_lead_to_a_verdict_that_evaluate_confirms(done, capsys):
    given, result, text = done
    assert "share no question" in (given.output / "log.txt").read_text()  # what the steps say
    assert "share no question" not in text
    assert "no split test" not in (given.output / "log.txt").read_text()  # it is kept apart, and there
    assert result["trial"] in text
    assert len(text.splitlines()) <= 42
    assert result["verdict"] in text
    assert len(result["ways"]) == 7
    for row in result["ways"]:  # told as soon as it is known
        assert f"  dev MAP {row['dev']:.3f}  {row['name']}" in text
    assert text.index(result["ways"][1]["name"]) < text.index("pre-training") < text.index("training 1 of 3")
    assert {row["length"] for row in result["ways"][2:-1]} == {ways.MAX_LENGTH}
    tested = {row["name"]: row["test"] for row in result["ways"] if row["test"] is not None}
    assert result["chosen"] in tested
    assert len(tested) <= 3
    assert BM25 in tested
    page = (given.output / "report.html").read_text()
    assert "Questions side by side" in page
    assert page.count("<td>–</td>") == 7 - len(tested)
    best = [row for row in result["ways"] if row["low"] is None]
    assert len(best) == page.count("best on dev") == 1
    assert best[0]["dev"] == max(row["dev"] for row in result["ways"])
    for row in result["ways"]:
        assert row["difference"] == pytest.approx(row["dev"] - best[0]["dev"])
        assert row in best or row["low"] <= row["difference"] <= row["high"]
    assert measure(result["model"], given, capsys) == pytest.approx(tested[result["chosen"]], abs=1e-6)


def test_killed_after_each_step_it_comes_to_the_same(done, settings, runners):
    given = settings()
    whole = adapt(given, runners, lambda line: None)
    for name in ("ways", "verdict", "chosen", "weights"):
        assert whole[name] == done[1][name]


@pytest.mark.parametrize(
    "name", ["BM25", "as it is", "pre-trained model", "bi-encoder", "the fine-tuned cross-encoder", "the fusion"]
)
def test_whatever_is_chosen_is_released(done, settings, runners, monkeypatch, name, capsys):
    """Each way in turn is made to be the best on dev; the folder ranks the test questions as the verdict says."""

    def prefer(every, start, dev, test, scorer):
        perfect = [replace(way, scores=dev.labels.astype(float)) if name in way.name else way for way in every]
        return judge(perfect, next(way for way in perfect if way.name == start.name), dev, test, scorer)

    judge = run.judge
    monkeypatch.setattr(run, "judge", prefer)
    given = settings()
    shutil.copytree(done[0].output, given.output)
    result = adapt(given, runners, lambda line: None)
    if result["verdict"].startswith("Keep"):
        assert result["release"] is None
        assert not (given.output / "release").exists()
    else:
        assert name in result["chosen"]
        assert measure(result["release"], given, capsys) == pytest.approx(result["figures"]["chosen"], abs=1e-6)


def test_rankers_read_as_many_tokens_as_the_model_has_positions_for(make_model, folder, tmp_path, monkeypatch):
    pretrained, read = make_model(), []
    (pretrained / "kinspan.json").write_text('{"max_length": 40}')  # as set_ranking_length leaves it
    monkeypatch.setattr(ways, "_train", lambda config: str(read.append(config.max_length)))
    questions, scorer = load_questions(str(folder), None, tmp_path), SimpleNamespace(rank=lambda *given: None)
    list(ways.train_ways(str(pretrained), str(pretrained), questions, 4, tmp_path, scorer, lambda line: None))
    assert read == [40] * 3


def test_without_labels_there_is_no_verdict_and_labels_may_come_later(settings, runners):
    said, given = [], settings(questions=None)
    result = adapt(given, runners, said.append)
    assert result["verdict"].startswith("This is no verdict on your documents")
    assert result["chosen"] is None
    assert {path.name for path in (given.output / "release").iterdir()} >= {"config.json", "kinspan.json"}
    assert [row["name"] for row in result["sample"]["rows"]] == [
        f"{name_model(given.model)} as a cross-encoder, before any training",
        "the pre-trained model, without labels",
        "BM25",
        f"{name_model(given.model)} as it is",
        "the fusion of the last 3",
    ]
    text = "\n".join(said)
    assert len(text.splitlines()) <= 30
    assert "AUC of 0.75" in text
    assert all(sentence in text for sentence in (result["sample"]["sentence"], result["verdict"]))
    page = (given.output / "report.html").read_text()
    assert "side by side" in page
    assert "on other documents than yours" in text
    assert "on other documents than yours" in page
    assert adapt(settings(output=given.output), runners, said.append)["chosen"]


def test_a_forum_is_pretrained_on_without_the_answers_that_it_is_measured_by(settings, runners, folder, tmp_path):
    asked = []

    def prepare(documents, model, corpus, but):
        asked.append(but)
        return {"documents": 40 - len(but), "paragraphs": 9, "tokens": 99}

    questions = load_questions(str(folder), None, tmp_path)
    begun = settings()
    begun.output.mkdir()
    (begun.output / run.STARTED).write_text("{}")
    forum = replace(runners, prepare=prepare, choose=lambda corpus: "title_answer")
    corpus, _, told = run._prepare(begun, forum, questions)
    measured = [
        split.answers[row].as_py() for split in (questions.dev, questions.test) for row in split.labels.nonzero()[0]
    ]
    assert asked == [[], measured]
    assert corpus.name != "corpus"
    assert f"{len(measured)} more hold the right answer to a dev or test question" in "\n".join(told)
    with pytest.raises(KinspanError, match="was begun with other --questions, or with none"):
        run._prepare(begun, forum, None)
    (begun.output / run.STARTED).write_text("{}")
    assert run._prepare(begun, replace(runners, prepare=prepare), questions)[0].name == "corpus"
    assert len(asked) == 4


def test_a_folder_of_something_else_is_refused(settings, runners):
    given = settings()
    given.output.mkdir()
    (given.output / "mine.txt").write_text("")
    with pytest.raises(KinspanError, match="is not empty and holds no adaptation"):
        adapt(given, runners, lambda line: None)


def test_a_start_with_a_pair_head_is_measured_by_it(make_model, tmp_path):
    start = make_model()
    sample = measure_sample(str(start), str(start), tmp_path, pytest.fail)
    assert sample.rows[0]["name"] == f"{name_model(str(start))} as it is"
    assert len(sample.rows) == 4
    assert sample.rows[0]["map"] == sample.rows[1]["map"]
    assert sample.sentence == NOT_LEARNED


def test_what_learned_unmeasured_is_said():
    summary = {"steps": 200, "pairs": 6400, "wall_seconds": 9.0, "first_validation": None, "last_validation": None}
    assert "not measured" in run._describe_pretraining(summary)[-1]


def test_too_few_documents_are_told():
    few, enough = ({"documents": 3, "paragraphs": count, "tokens": 99} for count in (199, 200))
    assert "more documents" in run._describe_documents(few)[-1]
    assert len(run._describe_documents(enough)) == 1


def test_the_commands_at_the_end_can_be_pasted(tmp_path):
    documents, test = ["my docs", "b.jsonl"], tmp_path / "test.jsonl"
    commands = list_commands(documents, "releases/a", test, tmp_path, "why's it so?", False)
    assert [shlex.split(command)[:2] for command in commands] == [
        ["kinspan", name] for name in ("evaluate", "index", "index", "search")
    ]
    assert shlex.split(commands[1])[2:4] == ["--answers", "documents=my docs"]
    assert shlex.split(commands[-1])[-3:] == ["--cross_encoder", "releases/a", "why's it so?"]
    untrained = list_commands(documents, None, test, tmp_path, "why", False)  # of a start that ranks nothing
    assert not [command for command in untrained if "evaluate" in command or "encoder" in command]
    start = list_commands(documents, default_model(), None, tmp_path, "why", True)
    assert "--model" not in " ".join(start)
    assert "--model releases/a" in list_commands(documents, "releases/a", None, tmp_path, "why", True)[0]
