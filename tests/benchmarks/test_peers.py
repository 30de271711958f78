"""The peers do the same work as ours, on the same pairs; the scripts run to their end (slow)."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification

from benchmarks import train_step
from benchmarks.peers.case import IGNORED, Case, open_stream, pad_rows, split_rows
from benchmarks.peers.trainings import MEGA_BATCH, choose_by_length, load_plain
from benchmarks.peers.turns import Update, compare
from data_pipeline.core.errors import KinspanError
from pretrain.batches import to_tensors
from pretrain.modeling.attention import NAME
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.pair_model import PairModel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def case(tiny_corpus):
    return Case("small-bert", "ssp", "fp32", str(tiny_corpus), pairs=8, rounds=2)


def test_padded_rows_are_the_packed_pairs(case):
    batch = open_stream(case).batch(0, case.pairs)
    padded = pad_rows(split_rows(batch), pad_id=7)
    real = padded["attention_mask"].bool()
    lengths = np.diff(batch.starts)
    assert padded["input_ids"].shape == (case.pairs, lengths.max())
    assert real.sum(1).tolist() == lengths.tolist()
    for name in ("input_ids", "token_type_ids"):
        assert padded[name][real].tolist() == getattr(batch, name).tolist()
    assert (padded["input_ids"][~real] == 7).all()
    labels = padded["labels"][real]
    assert labels[torch.from_numpy(batch.masked_positions)].tolist() == batch.masked_labels.tolist()
    assert int((padded["labels"] != IGNORED).sum()) == batch.num_masked > 0
    assert padded["pair_labels"].tolist() == batch.labels.tolist()


def test_the_plain_models_losses_are_ours(case):
    """With the same weights and no dropout; the pair heads differ."""
    case = replace(case, dropout=False)
    plain = load_plain(case)
    batch = open_stream(case).batch(0, case.pairs)
    loss = plain(**pad_rows(split_rows(batch), plain.masked_lm.config.pad_token_id))["loss"]
    assert float(loss.detach()) == pytest.approx(float(sum(plain.last.values())))
    classifier = BertForSequenceClassification._from_config(plain.masked_lm.config, attn_implementation=NAME)
    classifier.bert.load_state_dict(plain.masked_lm.bert.state_dict(), strict=False)  # ours has a pooler
    plain.masked_lm.get_output_embeddings().weight = classifier.get_input_embeddings().weight
    ours = PairModel(classifier, FAMILIES["bert"].mlm_head_of(plain.masked_lm)).eval()
    _, sums, _ = ours(**to_tensors(batch, torch.device("cpu")), scales={"mlm": 1.0, "pair": 1.0})
    assert float(plain.last["mlm"]) == pytest.approx(float(sums[0] / sums[2]), rel=1e-5)


def test_pairs_by_length_are_spread_over_the_samplers_batches(case):
    lengths = np.random.default_rng(0).integers(20, 128, MEGA_BATCH * case.pairs).tolist()
    chosen = choose_by_length(lengths, case)
    assert len(chosen) == (case.rounds + 1) * case.pairs
    batches = np.array([lengths[pair] for pair in chosen]).reshape(-1, case.pairs)
    assert (np.ptp(batches, axis=1) < 20).all()
    assert batches[1].mean() > batches[0].mean() > batches[2].mean()


def test_rates_and_ratios():
    ours = [Update(1.0, 100, {}), Update(2.0, 100, {})]
    theirs = [Update(2.0, 100, {}), Update(2.0, 100, {"mlm": 2.0})]
    assert compare(ours, theirs) == pytest.approx((4 / 3, 1.0, 2.0))
    rows = train_step.list_rows({"ours": ours, "Trainer": theirs})
    assert rows[1] == ("Trainer", "50", "1.33", "1.00 to 2.00", "mlm 2.00")


def test_roberta_without_its_corpus_is_refused(tiny_corpus, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train_step.py", "--corpus", str(tiny_corpus)])
    with pytest.raises(KinspanError, match="--roberta_corpus"):
        train_step.main()


@pytest.mark.slow
def test_the_training_step_runs_to_its_tables(tiny_corpus):
    command = [sys.executable, str(ROOT / "benchmarks/train_step.py"), "--corpus", str(tiny_corpus), "--quick"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Trainer, by length" in done.stdout
    assert "cpu" in json.loads(done.stdout.splitlines()[-1])
