"""An adaptation end to end, with tiny models: what it leaves, and that it goes on wherever it was killed."""

import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.adapt import rankers, run
from finetune.adapt.page import format_result
from finetune.adapt.questions import load_questions
from finetune.adapt.rankers import name_model
from finetune.adapt.run import (
    MEASURED_UPDATES,
    PLANNED,
    AdaptOptions,
    PipelineHooks,
    adapt,
    parse_budget,
    train_for,
)
from finetune.data.registry import load_split
from finetune.evaluation.bm25 import BM25
from finetune.evaluation.metrics import MAP, compute_means, compute_question_metrics
from finetune.ranking.model import score_answers


@pytest.fixture(scope="module")
def folder(write_sets):
    return write_sets(train=20, dev=12, test=12, candidates=5)


@pytest.fixture(scope="module")
def hooks(make_model):
    """A preparation and a pre-training that take no time."""
    pretrained = make_model(initializer_range=0.2)

    def prepare(documents, model, corpus, without):
        return {"documents": 40 - len(without), "paragraphs": 9, "tokens": 99}

    def pretrain(settings, place):
        if not (place / "release").exists():
            shutil.copytree(pretrained, place / "release")
            (place / "release" / "kinspan.json").write_text("{}")
            (place / "release" / "README.md").write_text("# A release")
        steps = settings["max_steps"]
        validations = {"first_validation": {"pair_auc": 0.5}, "last_validation": {"pair_auc": 0.75}}
        return {"steps": steps, "pairs": 32 * steps, "wall_seconds": 60.0, **validations}

    return PipelineHooks(prepare, lambda corpus: "ssp", pretrain)


@pytest.fixture(scope="module")
def options(make_model, folder, tmp_path_factory):
    """``options(**given)``: the flags, with an output folder that is not there yet."""
    model = str(make_model(headless=True))

    def make(**given):
        values = {"documents": ["docs"], "questions": str(folder), "columns": None, "model": model}
        values |= {"budget": parse_budget("3200pairs"), "output": tmp_path_factory.mktemp("run") / "adapted"}
        return AdaptOptions(**values | given)

    return make


@pytest.fixture(autouse=True, scope="module")
def _few_updates():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("MIN_UPDATES", 4), ("UPDATES_SHARE", 0.0), ("MIN_BETWEEN", 2)):
            patch.setattr(rankers, name, value)
        yield


STEPS = ("load_questions", "_pretrain", "list_untrained", "train_rankers", "fuse_rankers", "judge", "_release")


@pytest.fixture(scope="module")
def done(options, hooks, _few_updates):
    """An adaptation that was killed after each of its steps, of several rankers after the first one, and then ended."""
    given = options()
    for step in STEPS:
        finished = getattr(run, step)

        def die(*arguments, finished=finished, **named):
            if isinstance(found := finished(*arguments, **named), Iterator):
                next(found)
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run, step, die)
            with pytest.raises(KeyboardInterrupt):
                adapt(given, hooks)
    return given, adapt(given, hooks)


def measure(model, given):
    test = load_split(f"files={given.output / 'test' / 'test.jsonl'}", "test")
    return compute_means(compute_question_metrics(test, score_answers(model, test)))[MAP]


def test_labels_lead_to_a_verdict_that_measuring_again_confirms(done):
    given, result = done
    assert result["verdict"] in format_result(result)
    assert len(result["rankers"]) == 7
    tested = {row["name"]: row["test"] for row in result["rankers"] if row["test"] is not None}
    assert result["chosen"] in tested
    assert len(tested) <= 3
    assert BM25 in tested
    page = (given.output / "report.html").read_text()
    assert page.count("<td>–</td>") == 7 - len(tested)
    (best,) = [row for row in result["rankers"] if row["low"] is None]
    assert best["dev"] == max(row["dev"] for row in result["rankers"])
    for row in result["rankers"]:
        assert row["difference"] == pytest.approx(row["dev"] - best["dev"])
        assert row is best or row["low"] <= row["difference"] <= row["high"]
    assert measure(result["model"], given) == pytest.approx(tested[result["chosen"]], abs=1e-6)
    commands = [shlex.split(command)[1] for command in result["commands"]]
    assert commands[-2:] == ["index", "search"]


def test_killed_after_each_step_it_comes_to_the_same(done, options, hooks):
    whole = adapt(options(), hooks)
    for name in ("rankers", "verdict", "chosen", "weights"):
        assert whole[name] == done[1][name]


@pytest.mark.parametrize(
    "name", ["BM25", "as it is", "pre-trained model", "bi-encoder", "the fine-tuned cross-encoder", "the fusion"]
)
def test_whatever_is_chosen_is_released(done, options, hooks, monkeypatch, name):
    """Each ranker in turn is made the best on dev; the folder ranks the test questions as the verdict says."""

    def prefer(every, base, dev, test, cache):
        perfect = [replace(one, scores=dev.labels.astype(float)) if name in one.name else one for one in every]
        return judge(perfect, next(one for one in perfect if one.name == base.name), dev, test, cache)

    judge = run.judge
    monkeypatch.setattr(run, "judge", prefer)
    given = options()
    shutil.copytree(done[0].output, given.output)
    result = adapt(given, hooks)
    if result["verdict"].startswith("Keep"):
        assert result["release"] is None
        assert not (given.output / "release").exists()
    else:
        assert name in result["chosen"]
        assert measure(result["release"], given) == pytest.approx(result["figures"]["chosen"], abs=1e-6)


def test_without_labels_there_is_no_verdict_and_labels_may_come_later(options, hooks):
    given = options(questions=None)
    result = adapt(given, hooks)
    assert result["chosen"] is None
    assert {path.name for path in (given.output / "release").iterdir()} >= {"config.json", "kinspan.json"}
    assert [row["name"] for row in result["sample"]["rows"]] == [
        f"{name_model(given.model)} as a cross-encoder, before any training",
        "the pre-trained model, without labels",
        "BM25",
        f"{name_model(given.model)} as it is",
        "the fusion of the last 3",
    ]
    text = format_result(result)
    assert all(sentence in text for sentence in (result["sample"]["sentence"], result["verdict"]))
    assert result["sample"]["sentence"] in (given.output / "report.html").read_text()
    assert adapt(options(output=given.output), hooks)["chosen"]


def test_a_forum_is_pretrained_on_without_the_answers_that_it_is_measured_by(options, hooks, folder, tmp_path):
    asked = []

    def prepare(documents, model, corpus, without):
        asked.append(without)
        return hooks.prepare(documents, model, corpus, without)

    questions = load_questions(str(folder), None, tmp_path)
    begun = options()
    begun.output.mkdir()
    (begun.output / run.STARTED).write_text("{}")
    forum = replace(hooks, prepare=prepare, choose=lambda corpus: "title_answer")
    corpus, _, notes = run._prepare(begun, forum, questions)
    measured = [
        split.answers[row].as_py() for split in (questions.dev, questions.test) for row in split.labels.nonzero()[0]
    ]
    assert asked == [[], measured]
    assert corpus.name != "corpus"
    assert any(f"left out {len(measured)} documents" in note for note in notes)
    with pytest.raises(KinspanError, match="--questions"):
        run._prepare(begun, forum, None)
    (begun.output / run.STARTED).write_text("{}")
    assert run._prepare(begun, replace(hooks, prepare=prepare), questions)[0].name == "corpus"


@pytest.fixture
def train():
    """A run that takes two seconds an update, and keeps how long it was asked to be."""
    asked = []

    def run_updates(updates):
        asked.append(updates)
        return {"steps": updates, "wall_seconds": 2.0 * updates}

    run_updates.asked = asked
    return run_updates


@pytest.mark.parametrize(
    ("text", "seconds", "pairs"),
    [("30m", 1800, None), ("1.5h", 5400, None), ("51,200pairs", None, 51200), ("320pairs", None, 320)],
)
def test_budgets_are_times_or_pairs(text, seconds, pairs):
    budget = parse_budget(text)
    assert (budget.seconds, budget.pairs) == (seconds, pairs)


@pytest.mark.parametrize("text", ["", "30", "m", "0m", "-3m", "3 days", "1.2.3h", "1,5h", "nan m", "319pairs"])
def test_other_budgets_are_refused(text):
    with pytest.raises(KinspanError, match="--budget"):
        parse_budget(text)


def test_a_time_is_measured_once_and_then_stays(train, tmp_path):
    def die(updates):
        if updates > MEASURED_UPDATES:
            raise KeyboardInterrupt
        return train(updates)

    with pytest.raises(KeyboardInterrupt):
        train_for(parse_budget("20m"), die, tmp_path)
    assert json.loads((tmp_path / PLANNED).read_text())["updates"] == {"20m": 600}
    for budget in ("20m", "20m", "40m", "51200pairs", "3200pairs"):
        train_for(parse_budget(budget), train, tmp_path)
    assert train.asked == [MEASURED_UPDATES, 600, 600, 1200, 1600, 100]
