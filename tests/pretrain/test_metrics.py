import json

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch.utils.flop_counter import FlopCounterMode

from data_pipeline.pairs import EASY, HARD, KINDS, POSITIVE
from pretrain.batches import to_tensors
from pretrain.encoder import encode
from pretrain.families import FAMILIES
from pretrain.metrics import FlopCounter, Log, figures
from pretrain.model import STATS, load_model


def sums_of(kinds, called):
    out = dict.fromkeys(STATS, 0.0)
    for number, kind in enumerate(KINDS):
        out[f"{kind}_pairs"] = float((kinds == number).sum())
        out[f"{kind}_called_positive"] = float(called[kinds == number].sum())
    return out


def test_accuracy_and_f1_are_scikit_learns():
    rng = np.random.default_rng(0)
    kinds, called = rng.choice([POSITIVE, HARD, EASY], 400, p=[0.2, 0.4, 0.4]), rng.random(400) < 0.4
    values = figures(sums_of(kinds, called), (1.0, 1.0))
    labels = kinds == POSITIVE
    assert values["pair_accuracy"] == pytest.approx(accuracy_score(labels, called))
    assert values["pair_f1"] == pytest.approx(f1_score(labels, called))
    for name, kind in (("hard", HARD), ("easy", EASY)):
        rows = (kinds == POSITIVE) | (kinds == kind)
        assert values[f"pair_f1_{name}"] == pytest.approx(f1_score(labels[rows], called[rows]))
        assert values[f"pair_accuracy_{name}"] == pytest.approx(
            accuracy_score(labels[kinds == kind], called[kinds == kind])
        )


def test_what_no_item_gave_is_left_out():
    values = figures(sums_of(np.array([POSITIVE, EASY]), np.array([True, False])), (1.0, 1.0))
    assert not {"pair_f1_hard", "pair_accuracy_hard", "mlm_loss"} & values.keys()
    assert values["pair_f1"] == 1.0


def test_loss_is_the_weighted_sum():
    sums = sums_of(np.array([POSITIVE, EASY]), np.array([True, False]))
    sums |= {"pair_loss": 1.0, "mlm_loss": 6.0, "mlm_tokens": 2.0}
    assert figures(sums, (0.5, 2.0))["loss"] == pytest.approx(0.5 * 3.0 + 2.0 * 0.5)


def test_flops_of_a_known_model(make_model, tiny_corpus, make_stream):
    model, _ = load_model(str(make_model()), seed=1)
    batch = make_stream(tiny_corpus, masking=True).batch(0, 8)
    lengths = np.diff(batch.starts).astype(float)
    encoder = 2 * (4 * 32 * 32 + 2 * 32 * 64)
    head = 32 * 32 + 32 * model.config.vocab_size
    expected = 6 * (encoder * batch.num_tokens + head * len(batch.masked_labels)) + 12 * 2 * 32 * (lengths**2).sum()
    assert FlopCounter(model)(batch) == pytest.approx(expected)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "deberta-v2"])
def test_matrices_are_counted_as_often_as_tokens_pass_them(family, make_model, tiny_corpus, make_stream):
    """By torch's own counter of matrix products. (DeBERTa also projects its table of relative positions.)"""
    model, _ = load_model(str(make_model(family)), seed=1)
    batch = make_stream(tiny_corpus).batch(0, 1)
    with FlopCounterMode(display=False) as counter:
        encode(model.classifier.base_model, to_tensors(batch, torch.device("cpu")))
    products = counter.get_flop_counts()["Global"]
    linear = sum(count for name, count in products.items() if name in (torch.ops.aten.addmm, torch.ops.aten.mm))
    pooler = 2 * 32 * 32 if family in ("bert", "albert") else 0
    assert 2 * batch.num_tokens * FlopCounter(model).encoder + pooler == linear


def test_a_resumed_log_takes_back_what_came_after_the_checkpoint(tmp_path):
    lines = [json.dumps({"step": k, "split": "train"}) + "\n" for k in (2, 4, 6)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines) + '{"step": 8, "spl')
    log = Log(tmp_path, first_step=4, total_steps=10)
    log.write(6, "train", {"loss": 1.0})
    log.close()
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [2, 4, 6]
