"""The jobs of a matrix, on tiny models: from a start made from scratch to lines of results."""

import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from finetune.data.registry import load_split
from finetune.studies.jobs import LOCKS, Runs, _run_unless_taken, plan_jobs, run_jobs
from finetune.studies.lines import ResultStore
from finetune.studies.matrix import make_matrix
from finetune.studies.measure import draw_questions, draw_share, fingerprint_data, load_test, settle_sets
from finetune.studies.study import run_study
from finetune.studies.study_file import read_study
from launch.commands._stages import prepare_blank, prepare_pretraining
from pretrain.engine.device import choose_precision
from pretrain.engine.lock import lock_folder
from pretrain.engine.stop import Stopped, StopRequest
from pretrain.modeling.default_model import DEFAULT_MODEL_NAME, default_model

TINY = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
RUNNERS = {"pretrain": prepare_pretraining, "blank": prepare_blank}
TRAINED = {"max_steps": 2, "global_batch_size": 4, "micro_batch_size": 4, "eval_pairs": 20, "max_length": 64}
TRAINED |= {"deepspeed_config": "ds_configs/zero1.json", "learning_rate": 1e-3, "save_steps": 2}
SCRATCH = {"config": TINY, "pretrain": {**TRAINED, "objective": "nsp", "pair_weight": 0.0, "seed": 1}}
CONTENT = {
    "threads": 1,
    "precision": "bf16",
    "starts": {"a": {"title": "(a)", "scratch": SCRATCH, "pretrain": {}, "finetune": {"learning_rate": 1e-3}}},
    "pretrain": {**TRAINED, "objective": "ssp"},
    "finetune": {"batch_size": 8, "micro_batch_size": 8, "epochs": 1, "negatives_ratio": 3},
    "sets": {"files": {}},
    "arms": {
        "none": {"title": "nothing", "finetune": {"fresh_head": True}},
        "ssp": {"title": "SSP", "pretrain": {}},
        "bi": {"title": "bi-encoder", "finetune": {"loss": "contrastive", "negatives_ratio": None}},
        "fusion": {"title": "fusion", "fuse": ["bi", "ssp"]},
    },
    "groups": [
        {"name": "tuned", "start": "a", "arms": ["none", "ssp"], "seeds": 1, "sets": ["files"]},
        {"name": "few", "start": "a", "arms": ["ssp"], "questions": [6], "seeds": 1, "sets": ["files"]},
        {
            "name": "half",
            "start": "a",
            "arms": ["none"],
            "share": 0.5,
            "variant": "half",
            "seeds": 1,
            "sets": ["files"],
        },
        {
            "name": "zero-shot",
            "start": "a",
            "arms": ["ssp"],
            "seeds": 1,
            "sets": ["files"],
            "measures": ["head", "cosine"],
        },
        {"name": "fused", "start": "a", "arms": ["bi", "fusion"], "seeds": 1, "sets": ["files"]},
    ],
    "comparisons": [["a/ssp/files", "a/none/files"]],
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Questions of five candidates, of which one shares their words."""
    folder, rng = tmp_path_factory.mktemp("answers"), random.Random("answers")
    for split, count in {"train": 12, "dev": 6, "test": 8}.items():
        lines = []
        for number in range(count):
            words = [f"{split}{rng.randrange(1000)}" for _ in range(3)]
            for place in range(5):
                text = " ".join(words if place == number % 5 else [f"other{rng.randrange(1000)}"] * 3)
                label = int(place == number % 5)
                lines.append({"question": f"where {words[0]} {number}", "answer": text, "label": label})
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"files={folder}"


@pytest.fixture
def study():
    return make_matrix(Path("study.yaml"), json.loads(json.dumps(CONTENT)))


@pytest.fixture
def runs(study, answers, default_corpus, tmp_path):
    where = {"corpus": str(default_corpus)}
    given = [answers], tmp_path / "out", ResultStore(tmp_path / "lines"), {}, None, RUNNERS, where, lambda _: None
    return Runs(study, *given)


def run(runs, **more):
    given = runs.specs, runs.output, {}, None, runs.say, RUNNERS, runs.where, runs.store
    return run_study(runs.study, *given, **more)


def test_every_kind_of_row_leaves_its_line_once(runs, monkeypatch):
    run(runs)
    lines = {row.name: runs.store.read_lines(row) for row in runs.study.rows}
    assert all(list(of_row) == [1] for of_row in lines.values())
    found = {name: of_row[1] for name, of_row in lines.items()}
    assert all(len(line["ap"]) == len(line["rank"]) == 8 for line in found.values())
    tuned, none = found["a/ssp/files"], found["a/none/files"]
    assert none["pretrain"] is None
    assert none["finetune"]["precision"] == choose_precision("auto", zero_stage=1)
    assert tuned["pretrain"]["steps"] == 2
    assert tuned["pretrain"] == found["a/ssp, zero-shot by the pair head/files"]["pretrain"]
    assert tuned["start"] == none["start"]
    assert len({line["scores"] for line in found.values()}) == len(found)
    assert set(runs.store.read("files")) >= {"questions", "contaminated", "baselines"}
    kept = [path.name for path in (runs.output / "stages").iterdir()]
    assert len(kept) == 2  # the start alone: its blank, and its pre-training
    assert not list((runs.output / "rows").glob("*/*"))

    fused = found["a/fusion/files"]
    assert set(fused["weights"]) == {"BM25", "cosine", "bi", "ssp"}
    assert 0 < fused["dev_map"] <= 1
    assert fused["start"] == none["start"]

    monkeypatch.setattr("finetune.studies.jobs.run_experiment", lambda *a, **k: pytest.fail("ran again"))
    run(runs)


def test_jobs_are_in_order_and_rows_share_their_pretraining(runs):
    group = {**CONTENT["groups"][0], "seeds": 2}
    study = make_matrix(Path("study.yaml"), CONTENT | {"groups": [group, CONTENT["groups"][1]]})
    jobs = plan_jobs(replace(runs, study=study))
    assert [(job.row.name, job.seeds) for job in jobs] == [
        ("a/none/files", [1]),
        ("a/ssp/files", [1]),
        ("a/none/files", [2]),
        ("a/ssp/files", [2]),
        ("a/ssp, 6 questions/files", [1]),
    ]
    assert len({job.config.output_dir for job in jobs}) == len(jobs)  # one that ends removes its own
    assert jobs[1].model == jobs[4].model != jobs[3].model
    assert len({str(job.stages[1].model) for job in jobs}) == 1  # the start is made once for all seeds


def test_a_group_that_is_not_to_run_is_left_out(runs):
    groups = [CONTENT["groups"][0], {**CONTENT["groups"][1], "run": False}]
    study = make_matrix(Path("study.yaml"), CONTENT | {"groups": groups})
    assert {job.row.group for job in plan_jobs(replace(runs, study=study))} == {"tuned"}
    assert len(study.rows) == 3


@pytest.mark.slow
def test_parts_of_a_fusion_are_trained_again_where_their_scores_are_gone(runs):
    study = make_matrix(Path("study.yaml"), CONTENT | {"groups": [CONTENT["groups"][-1]], "comparisons": []})
    runs = replace(runs, study=study)
    run(runs)
    row = next(row for row in study.rows if row.parts)
    first = runs.store.read_lines(row)[1]
    shutil.rmtree(runs.output)
    (runs.store.folder / "a-fusion-files.jsonl").unlink()
    run(runs)
    again = runs.store.read_lines(row)[1]
    assert (again["weights"], again["ap"]) == (first["weights"], first["ap"])
    shutil.rmtree(runs.store.folder)  # the scores are there, and the lines are not
    run(runs)
    assert runs.store.read_lines(row)[1]["weights"] == first["weights"]


def test_a_start_is_a_model_by_name_or_place(study, runs, tmp_path):
    start = {"title": "(m)", "model": "$model", "pretrain": {}, "finetune": {}}
    group = {**CONTENT["groups"][0], "start": "m", "arms": ["none"]}
    content = CONTENT | {"starts": {"m": start}, "groups": [group], "comparisons": []}
    (job,) = plan_jobs(
        replace(runs, study=make_matrix(Path("s.yaml"), content), where={**runs.where, "model": str(tmp_path)})
    )
    assert job.model == job.config.model == str(tmp_path)


def test_a_start_may_be_the_installed_model_by_its_name(runs, tmp_path):
    """In a matrix, in a study's settings, and as the model of a stage."""
    start = {"title": "(m)", "model": DEFAULT_MODEL_NAME, "pretrain": {}, "finetune": {}}
    group = {**CONTENT["groups"][0], "start": "m", "arms": ["none"]}
    content = CONTENT | {"starts": {"m": start}, "groups": [group], "comparisons": []}
    (tmp_path / "rows.yaml").write_text(f"settings: {{model: {DEFAULT_MODEL_NAME}}}\nrows: [{{name: a}}]\n")
    for study in (make_matrix(Path("s.yaml"), content), read_study(tmp_path / "rows.yaml")):
        (job,) = plan_jobs(replace(runs, study=study))
        assert job.model == job.config.model == default_model()
    stage = prepare_pretraining({**TRAINED, "corpus": runs.where["corpus"], "model": DEFAULT_MODEL_NAME}, tmp_path)
    assert stage.args[0].model == default_model()


def test_what_another_process_runs_is_left_to_it(runs):
    job = plan_jobs(runs)[0]
    with lock_folder(runs.output / LOCKS / "a-none-files-1"):
        assert _run_unless_taken(runs, job, set()) is None
    runs.store.add(job.row, {"seed": 1})
    assert _run_unless_taken(runs, job, set()) == {}


def test_a_folder_that_cannot_be_written_is_not_waited_for(runs, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # nothing keeps root from writing
    with pytest.raises(KinspanError, match="locks cannot be written"):
        run_jobs(runs, plan_jobs(runs), StopRequest(None))
    (runs.output / LOCKS).rmdir()
    (runs.output / LOCKS).write_text("")
    with pytest.raises(KinspanError, match="locks cannot be made"):
        run_jobs(runs, plan_jobs(runs), StopRequest(None))


def test_hours_end_a_study_before_its_next_row(runs):
    with pytest.raises(Stopped):
        run(runs, hours=1e-9)
    assert not list(runs.store.folder.glob("*.jsonl"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ran_at": "abcdef"}, "ran at commit abcdef: give --page without --data"),
        ({"fingerprints": {"corpus": "another", "files": "x"}}, "is of a corpus with the fingerprint another"),
        ({"sets": {"files": {}, "wikiqa": {}}}, "--data: the study has the sets files, wikiqa"),
    ],
)
def test_what_does_not_suit_a_study_is_refused(runs, change, message):
    study = make_matrix(Path("study.yaml"), CONTENT | change)
    with pytest.raises(KinspanError, match=message):
        run(replace(runs, study=study))


def test_other_data_is_refused(runs, answers):
    data = load_test(answers)
    corpus = runs.where["corpus"]
    right = {"corpus": Corpus(corpus).manifest.fingerprint, "files": fingerprint_data(data)}
    settle_sets(CONTENT | {"fingerprints": right}, {"files": answers}, corpus, runs.store)
    with pytest.raises(KinspanError, match="the study is of data with the fingerprint another"):
        settle_sets(CONTENT | {"fingerprints": right | {"files": "another"}}, {"files": answers}, corpus, runs.store)
    runs.store.write("files", {"corpus": {"fingerprint": "another"}})
    with pytest.raises(KinspanError, match="holds results of another corpus"):
        settle_sets(CONTENT, {"files": answers}, corpus, runs.store)


def test_a_share_of_the_questions_is_the_same_for_every_arm(answers):
    train = load_split(answers, "train")[0]
    drawn = [draw_share(train, 0.25, seed).questions for seed in (1, 1, 2)]
    assert len(drawn[0]) == 3
    assert drawn[0] == drawn[1] != drawn[2]
    assert draw_share(train, 0.001, 1).num_questions == 1


def test_questions_are_drawn_down_together(answers):
    """Of one seed the same ones whatever is asked for before, the fewer among the more, and dev with half as many."""
    data = load_test(answers)
    few, more, other = (draw_questions(data, count, seed) for count, seed in ((4, 1), (8, 1), (4, 2)))
    assert [(d.train.num_questions, d.dev.num_questions) for d in (few, more)] == [(4, 2), (8, 4)]
    for split in ("train", "dev"):
        drawn = [set(getattr(d, split).questions) for d in (few, more, other)]
        assert drawn[0] < drawn[1]
        assert drawn[0] != drawn[2]
    assert draw_questions(data, 1000, 1).train.questions == data.train.questions
    assert few.test is data.test
