"""ONNX graphs of a release: they score as the model does, whatever the number of pairs and tokens."""

import json
import re

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from data_pipeline.errors import KinspanError
from pretrain.release import onnx_forms
from pretrain.release.onnx_forms import add_onnx
from pretrain.release.release import release
from tests.fake_hub import find_faults

onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'kinspan[onnx]'")
PAIRS = [("What flows?", "A river does."), ("What flows?", "Violins are made of spruce and maple, mostly, in Cremona.")]
OTHERS = ["roberta", "electra", "albert", "mpnet", "deberta-v2", "modernbert"]


@pytest.fixture
def released(trained, tmp_path):
    return release(trained[0], tmp_path / "release")


def check_scores(folder):
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    model = AutoModelForSequenceClassification.from_pretrained(str(folder)).eval()
    session = onnxruntime.InferenceSession(str(folder / "onnx/model.onnx"))
    for pairs in (PAIRS[:1], PAIRS, PAIRS * 3):
        inputs = tokenizer([a for a, _ in pairs], [b for _, b in pairs], padding=True, return_tensors="pt")
        with torch.no_grad():
            ours = model(**inputs).logits.numpy()
        (theirs,) = session.run(None, {i.name: inputs[i.name].numpy() for i in session.get_inputs()})
        assert theirs == pytest.approx(ours, abs=1e-4)
        assert abs(ours).max() > 0.01


def test_the_graph_scores_as_the_model_and_the_card_says_what_eight_bits_cost(released):
    found = add_onnx(released, measure=lambda graphs: f"| table of {' and '.join(graphs)} |")
    check_scores(released)
    assert found["difference"] < 1e-4
    assert 0 < found["int8_mean"] <= found["int8_most"] < 0.5
    card = (released / "README.md").read_text()
    assert not find_faults(card)
    assert "| table of fp32 and int8 |" in card
    assert re.search(r"logits differ by \d\S* at most", card)
    assert json.loads((released / "kinspan.json").read_text())["onnx"]["pairs"] == found["pairs"]
    assert {p.name for p in (released / "onnx").iterdir()} == {"model.onnx", "model_quantized.onnx"}


@pytest.mark.slow
@pytest.mark.parametrize("trained", OTHERS, indirect=True)
def test_graphs_of_other_families_score_as_their_models(released):
    add_onnx(released)
    check_scores(released)


def test_a_graph_with_other_scores_is_not_added(released, monkeypatch):
    monkeypatch.setattr(onnx_forms, "_export", lambda model, tokenizer, path: path.write_bytes(b""))
    monkeypatch.setattr(onnx_forms, "_import_packages", lambda: (None, Quantizer))
    monkeypatch.setattr(onnx_forms, "_compare", lambda *_: dict.fromkeys(("torch", "int8"), 1.0) | {"fp32": 1.001})
    monkeypatch.setattr(onnx_forms, "_describe", lambda *_: {"difference": 1e-3})
    before = (released / "README.md").read_text()
    with pytest.raises(KinspanError, match=r"differ from the model's by 0\.001"):
        add_onnx(released)
    assert (released / "README.md").read_text() == before
    assert not [p for p in released.iterdir() if p.name.startswith("onnx")]


class Quantizer:
    class QuantType:
        QInt8 = None

    quantize_dynamic = staticmethod(lambda *_, **__: None)
