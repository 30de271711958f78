"""Seeds, TANDA's two steps, and what a second run of the same command does."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.metrics import MAP, METRICS
from finetune.training import experiment, stages, train
from finetune.training.card import AS_STARTED
from finetune.training.experiment import format_results, log_better_baselines, run_experiment
from finetune.training.setup import compute_positive_share, join_ranks
from finetune.training.stages import load_data, make_transfer_stage
from pretrain.release.folder import fingerprint_model
from tests.finetune.data.rows import make_answers
from tests.finetune.training.runs import logged, small_config


@pytest.fixture
def config(tmp_path, sets, model):
    return small_config(sets, model, tmp_path / "out", seeds=2)


@pytest.fixture
def tanda(config, write_sets):
    transfer = f"files={write_sets(train=8, seed='general')}"
    return replace(config, transfer=transfer, transfer_epochs=2, transfer_learning_rate=2e-3, seeds=1)


@pytest.mark.parametrize(("per_question", "ratio", "share"), [(None, None, 1 / 8), (4, None, 1 / 5), (None, 3, 1 / 4)])
def test_a_fresh_head_predicts_the_share_of_right_answers(config, per_question, ratio, share):
    train = make_answers(["q"], [8], list("abcdefgh"), [1] + [0] * 7)
    settings = replace(config, negatives_per_question=per_question, negatives_ratio=ratio)
    assert compute_positive_share(SimpleNamespace(train=train, config=settings)) == pytest.approx(share)


def test_seeds_their_mean_and_deviation(config, tmp_path, trained):
    results = run_experiment(config)
    assert [run["seed"] for run in results["seeds"]] == [1, 2]
    for split in ("dev", "test"):
        runs = [run[split] for run in results["seeds"]]
        for metric in METRICS:
            values = [run[metric] for run in runs]
            deviation = None if runs[0] == runs[1] else pytest.approx(np.std(values, ddof=1))
            assert results[split][metric] == {"mean": pytest.approx(np.mean(values)), "sd": deviation}
    assert json.loads((tmp_path / "out/results.json").read_text()) == results
    assert results["counts"] == {"train": [5, 19], "dev": [6, 30], "test": [6, 30]}
    assert results["versions"]["torch"] == torch.__version__
    assert results["device"]
    assert results["fingerprints"].keys() == {"model", "train", "dev", "test"}
    card = (tmp_path / "out/seed-2/best/README.md").read_text()
    assert "fine-tuned on files" in card
    assert f"| test | {results['seeds'][1]['test']['map']:.4f} |" in card
    assert f"| test, BM25 | {results['baselines']['test']['BM25']['map']:.4f} |" in card
    for file in ("best/model.safetensors", "test/run.txt", "test/qrels.txt", "test/predictions.jsonl", "dev/run.txt"):
        assert (tmp_path / "out/seed-2" / file).is_file()
    assert (tmp_path / "out/curves.png").read_bytes().startswith(b"\x89PNG")
    losses = [[line["loss"] for line in logged(tmp_path / f"out/seed-{k}", "train")] for k in (1, 2)]
    assert losses[0] != losses[1]
    assert run_experiment(config) == results
    assert len(trained) == 2


def test_a_ranker_that_no_update_improved_is_told_from_a_trained_one(config, tmp_path, monkeypatch):
    """Seed 1 is best at the start, seed 2 at the end; the table and the card tell them apart."""
    monkeypatch.setattr(
        train._Run, "measure", lambda run, split: {MAP: 0.5 + 0.1 * (run.seed - 1.5) * run.progress.step}
    )
    table = format_results(run_experiment(config)).splitlines()
    assert [line for line in table if AS_STARTED in line] == [f"seed 1: {AS_STARTED}"]
    one, two = ((tmp_path / f"out/seed-{k}/best/README.md").read_text() for k in (1, 2))
    assert f"| Updates | 0: {AS_STARTED} |" in one
    assert AS_STARTED not in two


def test_a_test_set_that_changed_is_measured_anew(config, write_sets, trained):
    folder = write_sets(train=5, dev=4, test=4)
    config = replace(config, data=f"files={folder}", seeds=1)
    before = run_experiment(config)
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    turned = [{**row, "label": int(k % 4 == 0)} for k, row in enumerate(rows)]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in turned))
    after = run_experiment(config)
    assert after["test"] != before["test"]
    assert after["dev"] == before["dev"]
    assert len(trained) == 1


def test_tanda_transfers_and_adapts(tanda, tmp_path, trained):
    results = run_experiment(tanda)
    [transfer] = tmp_path.glob("out/transfer-*")
    assert [stage.what for stage in trained] == ["transfer", "adaptation"]
    assert [stage.config.learning_rate for stage in trained] == [2e-3, 1e-3]
    assert [stage.train.num_questions for stage in trained] == [8, 5]
    ids = [stage.devs[dev].question_ids for stage, dev in zip(trained, ("dev-files", "dev"), strict=True)]
    assert ids[0] == ids[1]  # the target's stops both
    assert trained[1].model == str(transfer / "best-files")
    start = json.loads((tmp_path / "out/seed-1/run.json").read_text())["identity"]["start"]
    assert start == fingerprint_model(str(transfer / "best-files"))
    named = f"files={Path(tanda.transfer).name}"
    assert results["transfer"] == named
    assert f" on files, transferred from {named}, " in format_results(results)
    assert f"| Transferred from | {named} |" in (tmp_path / "out/seed-1/best/README.md").read_text()
    run_experiment(tanda)
    assert len(trained) == 2


def test_targets_and_seeds_share_one_transfer(tanda, tmp_path, trained, monkeypatch, sets):
    """Each starts from the ranker that was best on its own dev set."""
    own = {"wikiqa": tanda.data, "trecqa": tanda.data}  # the same files by two names
    real = stages.load_filtered
    monkeypatch.setattr(stages, "load_filtered", lambda spec, *a: real(own.get(spec.partition("=")[0], spec), *a))
    both = {"transfer_targets": ["wikiqa=x", "trecqa=y"], "transfer_dir": str(tmp_path / "shared")}
    one = replace(tanda, data="wikiqa=x", seeds=2, **both)
    run_experiment(one)
    other = replace(one, data="trecqa=y", output_dir=str(tmp_path / "other"), seeds=1)
    run_experiment(replace(other, learning_rate=2e-3, batch_size=8, label_noise=0.2, epochs=2, eval_filter="raw"))
    assert [stage.what for stage in trained] == ["transfer", *["adaptation"] * 3]
    [folder] = tmp_path.glob("shared/transfer-*")
    assert trained[1].model == trained[2].model == str(folder / "best-wikiqa")
    assert trained[3].model == str(folder / "best-trecqa")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["dev-wikiqa_map"] == summary["dev-trecqa_map"]
    with pytest.raises(KinspanError, match="--transfer_targets"):
        run_experiment(replace(other, transfer_targets=["wikiqa=x"]))
    with pytest.raises(KinspanError, match="--transfer_targets"):
        run_experiment(replace(other, transfer_targets=["trecqa=x", "trecqa=y"]))


def test_a_transfer_goes_on_while_one_target_improves(tanda, monkeypatch, write_sets):
    """The first target is best at the start, the second at the end, and the best ranker of each is kept."""
    maps = {"dev-one": iter([0.5, 0.4, 0.3, 0.2]), "dev-two": iter([0.1, 0.2, 0.3, 0.4])}
    monkeypatch.setattr(train._Run, "measure", lambda run, split: {MAP: next(maps[split])})
    data = load_data(tanda)
    data = replace(data, transfer_devs={"one": data.dev, "two": data.dev})
    config = replace(tanda, patience=0, transfer_epochs=3)
    folder = Path(tanda.output_dir)
    summary = train.train_ranker(make_transfer_stage(config, data), 1, folder, join_ranks(config))
    assert (summary["best_step-one"], summary["best_step-two"]) == (0, summary["steps"])
    one, two = (load_file(str(folder / f"best-{name}/model.safetensors")) for name in ("one", "two"))
    assert not torch.equal(one["classifier.weight"], two["classifier.weight"])


def test_what_names_a_transfer(tanda):
    """The settings of the target alone do not; what training is made of does."""
    data = load_data(tanda)
    own = make_transfer_stage(tanda, data).identity
    same = {"learning_rate": 2e-3, "epochs": 2, "max_steps": 9, "eval_steps": 1, "negatives_ratio": 2.0}
    same |= {"search_learning_rates": [1.0], "test_every_validation": True, "seed": [7], "save_steps": 2}
    for name, value in (same | {"label_noise": 0.2, "seeds": 9, "output_dir": "x", "precision": "bf16"}).items():
        assert make_transfer_stage(replace(tanda, **{name: value}), data).identity == own
    other = {"batch_size": 4, "transfer_learning_rate": 1e-5, "transfer_epochs": 1, "max_length": 40, "patience": 1}
    for name, value in (other | {"fresh_head": True, "transfer_steps": 7}).items():
        assert make_transfer_stage(replace(tanda, **{name: value}), data).identity != own


def test_labels_of_negatives_select_training_candidates_alone(config, tmp_path):
    folder = tmp_path / "asnq"
    folder.mkdir()
    for split in ("train", "dev", "test"):
        rows = [f"{split} {k}\ta {grade} of {k}\t{grade}\n" for k in range(3) for grade in (1, 2, 3, 4)]
        (folder / f"{split}.tsv").write_text("".join(rows))
    for own in ({"data": f"asnq={folder}"}, {"transfer": f"asnq={folder}"}):
        data = load_data(replace(config, negative_labels=[2], **own))
        selected = data.transfer or data.train
        assert (selected.num_pairs, selected.labels.sum()) == (6, 3)
    data = load_data(replace(config, negative_labels=[2], data=f"asnq={folder}"))
    assert (data.dev.num_pairs, data.test.num_pairs) == (12, 12)


def test_dev_and_test_have_a_filter_of_their_own(config, write_sets):
    folder = write_sets(train=5, dev=4, test=4)
    for split in ("dev", "test"):
        with (folder / f"{split}.jsonl").open("a") as file:
            row = {"question_id": "wrong", "answer_id": "so", "question": f"{split}: why?", "answer": "so", "label": 0}
            file.write(json.dumps(row) + "\n")
    for mode, other, count in (("raw", "clean", 5), ("clean", "raw", 4)):
        data = load_data(replace(config, data=f"files={folder}", eval_filter=mode, train_filter=other))
        assert (data.dev.num_questions, data.test.num_questions) == (count, count)


def test_flipped_labels_follow_the_seed(config, model):
    data = load_data(config)
    noisy = [
        stages.make_target_stage(replace(config, label_noise=0.3), data, seed, str(model), "").train.labels
        for seed in (1, 2)
    ]
    assert (noisy[0] != noisy[1]).any()


def test_columns_are_of_the_set_that_has_them(config, tmp_path, sets):
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    for split in ("train", "dev", "test"):
        text = (sets / f"{split}.jsonl").read_text()
        (renamed / f"{split}.jsonl").write_text(text.replace('"answer"', '"passage"'))
    asnq = tmp_path / "asnq"
    asnq.mkdir()
    (asnq / "train.tsv").write_text("q\ta\t1\nq\tb\t4\n")
    config = replace(config, data=f"files={renamed}", columns="answer=passage", transfer=f"asnq={asnq}")
    assert load_data(config).train.num_pairs == 19
    with pytest.raises(KinspanError, match="--columns"):
        load_data(replace(config, columns="passage"))


def test_data_that_cannot_be_used(config, tmp_path, sets):
    lacking = tmp_path / "lacking"
    lacking.mkdir()
    train_lines = (sets / "train.jsonl").read_text()
    (lacking / "train.jsonl").write_text(train_lines)
    with pytest.raises(KinspanError, match="no split dev"):
        run_experiment(replace(config, data=f"files={lacking}"))
    (lacking / "dev.jsonl").write_text(train_lines)
    with pytest.raises(KinspanError, match="--test_every_validation"):
        run_experiment(replace(config, data=f"files={lacking}", test_every_validation=True))


def test_a_run_killed_before_its_scores_goes_on(config, trained, monkeypatch):
    config = replace(config, seeds=1)
    whole = run_experiment(replace(config, output_dir=config.output_dir + "-whole"))

    with monkeypatch.context() as patch:
        patch.setattr(experiment, "write_predictions", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_experiment(config)
    assert run_experiment(config)["test"] == whole["test"]
    shutil.rmtree(Path(config.output_dir) / "seed-1/test")  # somebody may
    assert run_experiment(config)["test"] == whole["test"]
    assert len(trained) == 2


def test_no_epochs_measure_the_transferred_model(tanda, trained, tmp_path):
    results = run_experiment(replace(tanda, epochs=0, warmup_steps=1))
    assert [stage.what for stage in trained] == ["transfer", "adaptation"]
    summaries = [json.loads(p.read_text()) for p in tmp_path.glob("out/**/summary.json")]
    assert {s.get("dev_map", s.get("dev-files_map")) for s in summaries} == {results["dev"]["map"]["mean"]}
    assert {s["steps"] for s in summaries} >= {0}


def test_results_below_a_baseline_are_warned_of(caplog):
    below = {"map": 0.3, "mrr": 0.9}
    results = {"test": {name: {"mean": 0.5} for name in below}, "baselines": {"test": {"BM25": below}}}
    log_better_baselines({**results, "settings": {"loss": "pointwise"}})
    assert not caplog.records
    log_better_baselines({**results, "settings": {"loss": "contrastive"}})
    assert "BM25" in caplog.text
