import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from data_pipeline.sampling.pairs import EASY, HARD, POSITIVE
from pretrain.batches import to_tensors
from pretrain.engine.layout import Layout
from pretrain.modeling.pair_model import load_model
from pretrain.validation import evaluate
from tests.pretrain.steps import PlainEngine


def test_areas_are_scikit_learns(make_model, tiny_corpus, make_stream):
    stream = make_stream(tiny_corpus, objective="ssp:2+sp:1", masking=True, split="validation", max_length=64)
    model, _ = load_model(str(make_model()), 3, stream.mixture.names)
    values = evaluate(PlainEngine(model, 1), stream, 150, Layout(64, 32, 1), rank=0)
    batch = stream.batch(0, 150)
    with torch.no_grad():
        scores = model.eval().logits(to_tensors(batch, torch.device("cpu")))[0].numpy()
    kinds, part = batch.kinds, batch.part
    positive = kinds == POSITIVE
    assert values["pair_auc"] == pytest.approx(roc_auc_score(positive, scores))
    for name, kind in (("hard", HARD), ("easy", EASY)):
        rows = positive | (kinds == kind)
        assert values[f"pair_auc_{name}"] == pytest.approx(roc_auc_score(positive[rows], scores[rows]))
    for number, name in enumerate(("ssp", "sp")):
        rows = part == number
        assert values[f"{name}/pair_auc"] == pytest.approx(roc_auc_score(positive[rows], scores[rows]))
        assert f"{name}/pair_loss" in values
    shares = [values[f"share_{kind}"] for kind in ("positive", "hard", "easy")]
    assert shares == pytest.approx([np.mean(kinds == k) for k in (POSITIVE, HARD, EASY)])
