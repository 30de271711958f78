"""One run: it learns, keeps its best, and stops when it should."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from data_pipeline.core.errors import KinspanError
from finetune.data.answers import number_pairs
from finetune.evaluation.metrics import MAP, compute_means, compute_question_metrics
from finetune.ranking.encode import encode_pairs
from finetune.ranking.ranker import load_own_tokenizer
from finetune.training import train, trainers
from finetune.training.config import FinetuneConfig
from finetune.training.setup import join_ranks
from finetune.training.stages import load_data
from tests.finetune.training.runs import killed_in_step, logged, weights
from tests.pretrain.steps import record_collectives


def test_it_learns(job, write_sets):
    data = write_sets(train=40, dev=12)
    summary, folder = job(data=data, epochs=10, learning_rate=3e-3, batch_size=16, micro_batch_size=16)
    assert summary["dev_map"] > max(0.9, logged(folder, "dev")[0][MAP])
    losses = [line["loss"] for line in logged(folder, "train")]
    assert np.mean(losses[-3:]) < 0.6 * np.mean(losses[:3])


def test_the_best_is_kept_and_others_load_it(job, sets, answer_set):
    summary, folder = job(epochs=6, test_every_validation=True)
    dev = logged(folder, "dev")
    assert [line["step"] for line in dev] == [0, 3, 6, 9, 12, 15, 18]  # 19 pairs, the last batch of an epoch has 3
    best = max(dev, key=lambda line: line[MAP])
    assert (summary["best_step"], summary["dev_map"]) == (best["step"], best[MAP])
    assert len(logged(folder, "test")) == len(dev)
    assert not (folder / "checkpoints").exists()
    data = answer_set(sets, "dev")
    tokenizer = AutoTokenizer.from_pretrained(folder / "best")
    theirs = AutoModelForSequenceClassification.from_pretrained(folder / "best").eval()
    questions = [data.questions[q] for q in data.question_of]
    inputs = tokenizer(questions, data.answers.to_pylist(), padding=True, return_tensors="pt")
    with torch.no_grad():
        scores = theirs(**inputs).logits[:, 0].double().numpy()
    assert compute_means(compute_question_metrics(data, scores))[MAP] == pytest.approx(summary["dev_map"])


def test_how_a_batch_is_cut_does_not_matter(job, make_model):
    still = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    runs = [job(f"micro-{micro}", start=still, micro_batch_size=micro, epochs=2, log_steps=1) for micro in (24, 3, 4)]
    train_losses = [[line["loss"] for line in logged(folder, "train")] for _, folder in runs]
    assert len(train_losses[0]) >= 4
    for other in train_losses[1:]:
        np.testing.assert_allclose(other, train_losses[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("patience", "maps", "steps", "best"),
    [
        (1, [0.5, 0.6, 0.6, 0.5, 0.9], 3, 1),  # two in a row that did not improve are more than one
        *[(1, [0.5, 0.4, 0.6, 0.5, 0.7, 0.1, 0.1], 6, 4), (0, [0.5, 0.4, 0.9], 1, 0)],
        (5, [0.1 * k for k in range(9)], 8, 8),
    ],
)
def test_patience(patience, maps, steps, best, job, monkeypatch):
    monkeypatch.setattr(train._Run, "measure", lambda run, _: {MAP: maps[run.progress.step]})
    summary, _ = job(patience=patience, eval_steps=1, max_steps=8, epochs=9)
    assert (summary["steps"], summary["best_step"], summary["dev_map"]) == (steps, best, maps[best])
    assert summary["stopped"] == ("at the last epoch" if steps == 8 else "early")


def test_a_run_that_is_done_is_not_run_again(job, monkeypatch):
    one, folder = job()
    monkeypatch.setattr(train, "load_setup", None)
    assert job()[0] == one
    assert job(precision="auto")[0] == one  # whatever that means on this machine
    for setting, other in (("learning_rate", 0.1), ("precision", "bf16")):
        with pytest.raises(KinspanError, match=setting):
            job(**{setting: other})
    (folder / "run.json").write_text("[")
    with pytest.raises(KinspanError, match=r"run.json is damaged"):
        job()


def test_a_machine_that_would_change_the_precision_is_refused_and_a_full_disk(job, monkeypatch, tmp_path):
    with killed_in_step(monkeypatch, 3):
        job(save_steps=1, precision="auto")
    with monkeypatch.context() as patch:
        patch.setattr(train, "choose_precision", lambda *_: "another")
        with pytest.raises(KinspanError, match="--precision"):
            job(precision="auto")
    monkeypatch.setattr(train._Run, "measure", lambda run, _: {MAP: 1.0 + run.progress.step})
    shutil.rmtree(best := tmp_path / "run/best")
    best.write_text("")  # where no ranker can be kept
    with pytest.raises(KinspanError, match=str(best)):
        job(precision="auto")


def test_what_cannot_start_leaves_the_folder_free(job, make_model, tmp_path):
    for start, message in (
        ("nowhere/at-all", "no model at nowhere/at-all"),
        (make_model(max_position_embeddings=16), "--max_length"),
    ):
        with pytest.raises(KinspanError, match=message):
            job(start=start)
    with pytest.raises(KinspanError, match="--warmup_steps"):
        job(warmup_steps=9)
    assert not (tmp_path / "run").exists()
    job(epochs=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("mine")
    with pytest.raises(KinspanError, match="other is not empty and holds no run"):
        job("other")


def test_a_fresh_head_is_fresh(job, model):
    own = load_file(str(model / "model.safetensors"))
    for fresh in (False, True):
        _, folder = job(f"fresh-{fresh}", fresh_head=fresh, max_steps=1, learning_rate=1e-9)
        kept = torch.allclose(weights(folder)["classifier.weight"], own["classifier.weight"], atol=1e-6)
        assert kept != fresh
        encoder = "bert.encoder.layer.0.output.dense.weight"
        assert torch.allclose(weights(folder)[encoder], own[encoder], atol=1e-6)
    _, folder = job("transferred", model="another", fresh_head=True, max_steps=1, learning_rate=1e-9)
    assert torch.allclose(weights(folder)["classifier.weight"], own["classifier.weight"], atol=1e-6)


def test_no_two_micro_batches_are_dropped_alike(job, monkeypatch):
    drawn, decide = [], trainers.decide_dropout
    monkeypatch.setattr(trainers, "decide_dropout", lambda *given: drawn.append(given[:3]) or decide(*given))
    job(epochs=2, seed=5)
    assert len(set(drawn)) == len(drawn) == 18
    assert {seed for seed, _, _ in drawn} == {5}


CONTRASTIVE = {"loss": "contrastive", "own_negatives": 1}


@pytest.mark.parametrize(
    ("common", "changed"),
    [
        *[({}, {"weight_decay": 0.9}), ({}, {"max_grad_norm": 0.01})],
        *[(CONTRASTIVE, {"temperature": 0.5}), (CONTRASTIVE, {"own_negatives": 2})],
    ],
)
def test_a_setting_changes_what_is_learned(job, common, changed):
    given = {"max_steps": 3, "log_steps": 1, **common}
    one, other = (logged(job(name, **given | more)[1], "train") for name, more in (("one", {}), ("other", changed)))
    assert [line["loss"] for line in one] != [line["loss"] for line in other]


def test_an_update_waits_for_no_collective_on_the_host(job, monkeypatch):
    """Whether a rank is to stop was asked while the update before ran: one sum per update, begun before it and read
    after it."""
    settings = {"deepspeed_config": "ds_configs/zero2.json", "max_steps": 6, "eval_steps": 6, "log_steps": 6}
    join_ranks(FinetuneConfig("files=x", deepspeed_config=settings["deepspeed_config"]))  # makes the group
    events, plain_update = record_collectives(monkeypatch), train._Run.update

    def update(*values):
        events.append("update")
        return plain_update(*values)

    monkeypatch.setattr(train._Run, "update", update)
    job(**settings)
    first = events.index("update") - 1
    assert events[first : first + 12] == ["all_reduce begun", "update"] * 6
    assert not events[first + 12].startswith("all_reduce")  # nothing is begun that nobody waits for


def test_a_pair_with_another_questions_candidate_is_packed_as_one(sets, answer_set, model):
    """As the tokenizer has the two texts, and as long as it says."""
    data, tokenizer = answer_set(sets, "train"), load_own_tokenizer(str(model))
    pairs = encode_pairs(data, tokenizer, 16)
    questions, rows = np.array([0, 4, 2, 2]), np.array([11, 0, 3, 18])
    numbers = np.concatenate([number_pairs(data, questions, rows), [5]])
    texts = [(data.questions[q], data.answers[int(r)].as_py()) for q, r in zip(questions, rows, strict=True)]
    texts.append((data.questions[data.question_of[5]], data.answers[5].as_py()))
    made = tokenizer(*map(list, zip(*texts, strict=True)), truncation="longest_first", max_length=16)["input_ids"]
    assert pairs.measure(numbers).tolist() == [len(ids) for ids in made]
    packed = pairs.pack(numbers, torch.device("cpu"))
    assert packed["input_ids"].tolist() == [token for ids in made for token in ids]


def test_what_is_right_alone_is_learned_against_the_corpus(job, sets, tmp_path, answer_set):
    """No candidate is a negative of its question: those of the others are."""
    folder = tmp_path / "right"
    shutil.copytree(sets, folder)
    rows = map(json.loads, (folder / "train.jsonl").read_text().splitlines())
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows if row["label"]))
    config = FinetuneConfig(f"files={folder}", train_filter="raw", negatives_per_question=3, negatives_from="corpus")
    assert load_data(config).train.labels.all()
    with pytest.raises(KinspanError, match="one label"):
        load_data(replace(config, negatives_from=None))
    summary, _ = job(data=folder, negatives_per_question=3, negatives_from="corpus", epochs=2, batch_size=4)
    assert summary["steps"] == 2 * 5  # 5 right answers and 15 negatives
    with pytest.raises(KinspanError, match="--negatives_per_question"):
        job("more", data=folder, negatives_per_question=5, negatives_from="corpus")
