"""An adaptation end to end, with tiny models: what it leaves, and that it goes on wherever it was killed."""

import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import shorten_name
from finetune.adapt import folds, passages, questions, rankers, run
from finetune.adapt.budget import parse_budget
from finetune.adapt.folds import train_in_folds
from finetune.adapt.page import format_result
from finetune.adapt.questions import load_questions
from finetune.adapt.run import MEASURED_UPDATES, PLANNED, AdaptOptions, PipelineHooks, adapt, train_for
from finetune.adapt.verdict import LEVEL
from finetune.data.passages import Paragraphs, read_passage_questions
from finetune.data.registry import load_split
from finetune.evaluation.bm25 import BM25
from finetune.evaluation.config import EvaluateConfig
from finetune.evaluation.metrics import MAP, compute_means, compute_question_metrics
from finetune.ranking.kinds import CROSS_ENCODER
from finetune.ranking.measure import measure_search
from finetune.ranking.model import score_answers
from tests.conftest import write_jsonl
from tests.finetune.conftest import WORDS


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

    def read(documents):
        texts = [" ".join(WORDS[(number + k) % len(WORDS)] for k in range(4)) + f" {number}" for number in range(60)]
        return Paragraphs(texts, [(f"document {number // 4}", "") for number in range(60)], [""] * 60)

    return PipelineHooks(prepare, lambda corpus: "ssp", pretrain, read)


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
        patch.setattr(rankers, "EPOCHS", 2)
        patch.setattr(questions, "FOLDS", 2)
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


def test_labels_lead_to_a_verdict_about_every_ranker(done):
    given, result = done
    text = format_result(result)
    page = (given.output / "report.html").read_text()
    assert len(result["rankers"]) == 9
    for row in result["rankers"]:
        assert row["name"] in text
        assert row["name"] in page
        assert row["ms"] > 0
        assert row["p"] is None or row["low"] <= row["gain"] <= row["high"]
    (base,) = [row for row in result["rankers"] if row["p"] is None]
    assert (base["name"], base["gain"]) == (result["base"], 0)
    assert result["verdict"] in text
    commands = [shlex.split(command)[1] for command in result["commands"]]
    assert commands == ["index", "search", "evaluate"][: len(commands)]


def test_killed_after_each_step_it_comes_to_the_same(done, options, hooks):
    whole = adapt(options(), hooks)
    assert (whole["chosen"], whole["figures"]) == (done[1]["chosen"], done[1]["figures"])
    for row, same in zip(whole["rankers"], done[1]["rankers"], strict=True):
        assert {**row, "ms": 0} == {**same, "ms": 0}


@pytest.mark.parametrize("number", range(9))
def test_whatever_is_chosen_is_released(done, options, hooks, monkeypatch, number):
    """Each ranker in turn is chosen; the folder ranks the test questions as the verdict says."""

    def prefer(rankers, *arguments):
        verdict, measure_test = judge(rankers, *arguments), arguments[-1]
        figures = {**verdict.figures, "chosen": float(measure_test(rankers[number]).mean())}
        return replace(verdict, chosen=rankers[number], best=rankers[number], figures=figures)

    judge = run.judge
    monkeypatch.setattr(run, "judge", prefer)
    given = options()
    shutil.copytree(done[0].output, given.output)
    result = adapt(given, hooks)
    if result["chosen"] == result["base"]:
        assert result["release"] is None
        assert not (given.output / "release").exists()
    else:
        test = load_split(f"files={given.output / 'test' / 'test.jsonl'}", "test")
        means = compute_means(compute_question_metrics(test, score_answers(result["release"], test)))
        assert means[MAP] == pytest.approx(result["figures"]["chosen"], abs=1e-6)


def test_what_cannot_be_trained_is_refused_before_the_pretraining(options, hooks, tmp_path):
    rows = [{"question": f"what is {q}", "answer": f"{k}", "label": int(k == 1)} for q in range(20) for k in range(2)]
    path = write_jsonl(tmp_path / "few-answers.jsonl", rows)
    begun = []
    with pytest.raises(KinspanError, match="--questions"):
        adapt(options(questions=str(path)), replace(hooks, pretrain=lambda *given: begun.append(given)))
    assert not begun


def test_the_looks_at_a_test_set_are_counted(done, options, hooks, folder):
    given = options()
    shutil.copytree(done[0].output, given.output)

    def count_looks():
        return len(json.loads((given.output / run.STARTED).read_text())[run.LOOKS])

    adapt(given, hooks)
    assert count_looks() == 1
    adapt(replace(given, quality_first=True), hooks)
    assert count_looks() == 1  # of the same ranker
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "choose_best", lambda rankers, data, *_: min(rankers, key=lambda r: r.measure(data).mean()))
        adapt(given, hooks)
    assert count_looks() == 2
    other = replace(hooks, pretrain=lambda settings, place: {**hooks.pretrain(settings, place), "steps": 9})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rankers, "EPOCHS", 3)
        patch.setattr(run, "judge", judge := Mock(wraps=run.judge))
        adapt(given, other)
    assert judge.call_args.args[4] == LEVEL / 3
    assert count_looks() == 3
    judged = run.Comparison(given, load_questions(str(folder), None, given.output))
    judged.add(rankers.list_untrained(given.model, judged.data, judged.cache))
    test = judged.questions.test
    assert judged._count_looks(test.take(np.arange(11)), "") == 4  # of questions that overlap
    assert judged._count_looks(replace(test, questions=[f"{text} else" for text in test.questions]), "") == 1


def test_without_labels_there_is_no_verdict_and_labels_may_come_later(options, hooks):
    given = options(questions=None)
    result = adapt(given, hooks)
    assert result["chosen"] is None
    assert {path.name for path in (given.output / "release").iterdir()} >= {"config.json", "kinspan.json"}
    assert [row["name"] for row in result["sample"]["rows"]] == [
        f"{shorten_name(given.model)} as a cross-encoder, before any training",
        "the pre-trained model, without labels",
        "BM25",
        f"{shorten_name(given.model)} as it is",
        f"rank fusion of BM25 and {shorten_name(given.model)} as it is",
    ]
    text = format_result(result)
    assert all(sentence in text for sentence in (result["sample"]["sentence"], result["verdict"]))
    assert result["sample"]["sentence"] in (given.output / "report.html").read_text()
    assert adapt(options(output=given.output), hooks)["chosen"]


def test_questions_with_their_right_passages_alone_are_judged_by_a_search(options, hooks, tmp_path):
    texts = hooks.read([]).texts
    lines = [{"question": f"{texts[number]} why?", "answer": texts[number]} for number in range(0, 60, 3)]
    lines += [{"question": f"{words}?", "answer": f"{words} it is!"} for words in ("who came there", "see you when")]
    path = write_jsonl(tmp_path / "passages.jsonl", lines)
    given = options(questions=str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passages, "find_candidates", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):  # killed after the first search
            adapt(given, hooks)
    result = adapt(given, hooks)
    rows = {row["name"]: row["map"] for row in result["rankers"]}
    assert rows[BM25] > 0.9
    assert len(rows) == 9
    assert any("62 paragraphs" in note for note in result["notes"])
    questions = run._load(given, hooks)
    train = questions.train
    assert set(train.answers.to_pylist()) <= {*texts, *(line["answer"] for line in lines)}
    assert questions.groups[-1] != questions.groups[-2]  # of texts that joined the documents
    neighbours = train.answers.to_pylist()
    first = next(rows for rows in train.question_slices())
    right = neighbours[first][int(train.labels[first].argmax())]
    beside = {texts[k] for k in (texts.index(right) - 1, texts.index(right) + 1) if k // 4 == texts.index(right) // 4}
    trained = set(questions.select(np.arange(train.num_questions) == 0).answers.to_pylist())
    assert right in trained
    assert not trained & beside
    missed = replace(questions, found=questions.scored.labels == 0)
    training, *_ = rankers.plan_trainings(given.model, given.model, questions, 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folds, "make_stage", made := Mock(wraps=folds.make_stage))
        scores, _ = train_in_folds(training, missed, given.output / "rankers")  # of which the updates were chosen
    assert all(set(stage.args[2].questions).isdisjoint(stage.args[3].questions) for stage in made.call_args_list)
    assert made.call_count == 2
    untrained = rankers.Ranker("", CROSS_ENCODER, "", scores, training=training, updates=0)
    assert rankers.finish(untrained, missed, given.output).model == training.model
    assert (np.minimum.reduceat(scores, train.starts[:-1])[train.question_of] == scores)[train.labels == 1].all()


def test_a_search_of_the_documents_is_measured_beside_labelled_candidates(options, hooks, tmp_path):
    texts = hooks.read([]).texts
    lines = [
        {"question": f"{n} {' '.join(texts[(n + 5) % 60].split()[:2])}?", "answer": answer, "label": int(k == 0)}
        for n in range(0, 60, 3)
        for k, answer in enumerate((texts[n], texts[n + 1], f"{n} {' '.join(map(str, range(60)))}"))
    ]  # numbers are rare in the documents alone
    right = [line for line in lines if line["label"]]
    lines += [{"question": f"who is {n}?", "answer": f"nobody {n + k}", "label": k} for n in range(9) for k in (0, 1)]
    given = options(questions=str(write_jsonl(tmp_path / "labelled.jsonl", lines)))
    result = adapt(given, hooks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "MAX_PARAGRAPHS", 8)  # the documents have 9
        unsearched = adapt(replace(given, output=tmp_path / "unsearched"), hooks)
    for row, same in zip(result["rankers"], unsearched["rankers"], strict=True):  # it changes no other figure
        assert {**row, "ms": 0, "search": {}} == {**same, "ms": 0}
    rows = {row["name"]: row["search"] for row in result["rankers"]}
    asked, documents = read_passage_questions(write_jsonl(tmp_path / "right.jsonl", right), {"label": "label"})
    config = EvaluateConfig(model=[given.model], depth=10, json=True)
    *_, figures = measure_search(config, asked, documents, hooks.read([]))
    evaluated = {row["name"]: row for row in json.loads(figures)["systems"]}
    for name, system in ((BM25, BM25), (result["base"], given.model)):  # without the answers that no paragraph has
        assert rows[name] == pytest.approx({metric: evaluated[system][metric] for metric in rows[name]})
    assert format_result(result).count(f"{rows[BM25]['mrr@10']:.3f}")
    kept = {**result, "release": None, "chosen": result["base"]}
    for mrr, first_stage in ((-1.0, 0), (1.0, 1)):  # the search to paste is the better one
        rows[rankers.name_fused(given.model)]["mrr@10"] = mrr
        assert run._list_commands(given, None, kept)[1].count("--first_stage fusion") == first_stage
    assert "--language german" in run._list_commands(replace(given, language="german"), None, kept)[0]
    trained = questions.load_questions(given.questions, None, given.output)
    searched = passages.add_search(trained, hooks.read([]), given.model, given.output, None)
    every = np.ones(29, dtype=bool)
    assert searched.select(every).num_pairs == trained.select(every).num_pairs == 78
    assert np.unique(searched.groups).size == 29
    joined = Paragraphs([f"{texts[n]} {texts[n + 3]}" for n in range(0, 60, 6)], [("", "")] * 10, [""] * 10)
    for min_pairs, num_groups in ((5, 29), (1, 19)):  # no answer is found; two are in each paragraph
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(passages, "MIN_PAIRS", min_pairs)
            found = run._add_search(given, trained, 9, replace(hooks, read=lambda _: joined))
        assert (np.unique(found.groups).size, found.searched.any()) == (num_groups, num_groups == 19)
    nothing = Mock(side_effect=KinspanError("nothing to read"))
    assert "nothing to read" in run._add_search(given, trained, 9, replace(hooks, read=nothing)).notes[-1]


def test_ties_of_a_rank_fusion_go_to_the_model_as_in_a_search(options, folder):
    loaded = load_questions(str(folder), None, options().output)
    cycles, order = loaded.scored.num_questions, np.arange(loaded.scored.num_pairs) % 5
    words, scores = np.tile([3.0, 4, 2, 1, 0], cycles), np.tile([4.0, 3, 2, 1, 0], cycles)
    parts = rankers.Ranker(BM25, BM25, BM25, words), rankers.Ranker("base", "bi-encoder", "base", scores)
    fused = rankers.Ranker("", "fusion", "", words, parts=parts, weights={BM25: 1.0, "bi-encoder": 1.0}, by_rank=True)
    for right, mrr in ((0, 1.0), (1, 0.5)):
        scored = replace(loaded.scored, labels=(order == right).astype(np.int8))
        searched = replace(loaded, scored=scored, searched=loaded.judged, words=words)
        assert fused.measure_search(searched)["mrr@10"] == mrr


def test_a_forum_is_pretrained_on_without_the_answers_that_it_is_measured_by(options, hooks, folder, tmp_path):
    asked = []

    def prepare(documents, model, corpus, without):
        asked.append(without)
        return hooks.prepare(documents, model, corpus, without)

    given = load_questions(str(folder), None, tmp_path)
    begun = options()
    begun.output.mkdir()
    (begun.output / run.STARTED).write_text("{}")
    forum = replace(hooks, prepare=prepare, choose=lambda corpus: "title_answer")
    corpus, _, _, notes = run._prepare(begun, forum, given)
    measured = [
        split.answers[row].as_py() for split in (given.judging, given.test) for row in split.labels.nonzero()[0]
    ]
    assert asked == [[], measured]
    assert corpus.name != "corpus"
    assert any(f"left out {len(measured)} documents" in note for note in notes)
    with pytest.raises(KinspanError, match="--questions"):
        run._prepare(begun, forum, None)
    (begun.output / run.STARTED).write_text("{}")
    assert run._prepare(begun, replace(hooks, prepare=prepare), given)[0].name == "corpus"


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


def test_a_time_is_measured_once_and_then_stays(tmp_path):
    asked = []

    def train(updates):
        asked.append(updates)
        return {"steps": updates, "wall_seconds": 2.0 * updates}

    def die(updates):
        if updates > MEASURED_UPDATES:
            raise KeyboardInterrupt
        return train(updates)

    with pytest.raises(KeyboardInterrupt):
        train_for(parse_budget("20m"), die, tmp_path)
    assert json.loads((tmp_path / PLANNED).read_text())["updates"] == {"20m": 600}
    for budget in ("20m", "20m", "40m", "51200pairs", "3200pairs"):
        train_for(parse_budget(budget), train, tmp_path)
    assert asked == [MEASURED_UPDATES, 600, 600, 1200, 1600, 100]
