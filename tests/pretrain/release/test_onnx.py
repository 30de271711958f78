"""ONNX graphs of a release: they score as the model does, whatever the number of pairs and tokens."""

import json
import re

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from data_pipeline.core.errors import KinspanError
from finetune.ranking import onnx_graphs
from finetune.ranking.onnx_graphs import add_onnx
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


def test_the_graph_scores_as_the_model_and_the_card_says_what_eight_bits_cost(released, tmp_path):
    answers = [("a river does", 1), ("a violin is made of spruce", 0)]
    rows = [json.dumps({"question": "what flows?", "answer": answer, "label": label}) for answer, label in answers]
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    found = add_onnx(released, f"files={tmp_path}")
    check_scores(released)
    assert found["difference"] < 1e-4
    assert 0 < found["int8_mean"] <= found["int8_max"] < 0.5
    assert found["table"]["int8"]["difference"] > found["table"]["fp32"]["difference"]
    card = (released / "README.md").read_text()
    assert not find_faults(card)
    assert re.search(r"differ from the model's by at most \d", card)
    assert re.search(r"^\| ONNX, int8 \|( \d\.\d{4} \|){4}", card, re.MULTILINE)
    assert card.index("## ONNX") < card.index("## Licence")
    assert json.loads((released / "kinspan.json").read_text())["onnx"]["pairs"] == found["pairs"]
    assert {p.name for p in (released / "onnx").iterdir()} == {"model.onnx", "model_quantized.onnx"}


@pytest.mark.slow
@pytest.mark.parametrize("trained", OTHERS, indirect=True)
def test_graphs_of_other_families_score_as_their_models(released):
    add_onnx(released)
    check_scores(released)


def test_a_graph_with_other_scores_is_not_added(released, monkeypatch):
    right = onnx_graphs.export

    def export_other(scorer, path):
        with torch.no_grad():
            scorer.model.classifier.bias += 0.001
        right(scorer, path)
        with torch.no_grad():
            scorer.model.classifier.bias -= 0.001

    monkeypatch.setattr(onnx_graphs, "export", export_other)
    before = (released / "README.md").read_text()
    with pytest.raises(KinspanError, match=r"differ from the model's by 0\.001"):
        add_onnx(released)
    assert (released / "README.md").read_text() == before
    assert not [p for p in released.iterdir() if p.name.startswith("onnx")]
