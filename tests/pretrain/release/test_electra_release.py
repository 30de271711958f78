"""A whole run of replaced-token detection, and what its release gives to those who have none of this code."""

import json

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoModelForSequenceClassification

from pretrain.batches import to_tensors
from pretrain.modeling.electra import load_replaced_token_model
from pretrain.release.release import release
from pretrain.run import pretrain
from tests.pretrain.steps import make_run


@pytest.fixture(params=["none", "tied", "disentangled"])
def run(request, make_model, tiny_corpus, tmp_path):
    """The run's folder, and the model as it ended."""
    small = str(make_model("electra", initializer_range=0.1))
    sharing = {"generator": "1/2", "embedding_sharing": request.param}
    settings = {"objective": "ssp+sp", "micro_batch_size": 5, "learning_rate": 3e-3, "max_steps": 6, "save_steps": 6}
    settings |= {"log_steps": 3, "eval_pairs": 40, "eval_steps": 6}
    pretrain(make_run(tiny_corpus, small, tmp_path / "run", **settings, **sharing))
    model, _ = load_replaced_token_model(small, *sharing.values(), seed=1, objectives=("ssp", "sp"))
    lost = model.load_state_dict(load_file(str(tmp_path / "run/checkpoints/step-00000006/weights.safetensors")), False)
    assert not lost.unexpected_keys
    return tmp_path / "run", model.eval()


def discriminate(model, inputs):
    """Pair and token logits of the text as it stands."""
    hidden = model.encode(inputs)
    return model.score_pairs(hidden, inputs["starts"]), model.detect_replaced(hidden)


def test_the_release_gives_the_trained_scores_and_can_be_trained_on(run, tiny_corpus, make_stream, tmp_path):
    folder, model = run
    released = release(folder, tmp_path / "release")
    words = "electra.embeddings.word_embeddings.weight"
    large, small = (load_file(str(released / place / "model.safetensors"))[words] for place in ("", "generator"))
    sharing = json.loads((folder / "run.json").read_text())["settings"]["embedding_sharing"]
    assert torch.equal(large, small) == (sharing == "tied")

    loaded = {}
    for auto, place, variant in (
        *[(AutoModelForSequenceClassification, released, None), (AutoModelForPreTraining, released, "token_head")],
        (AutoModelForMaskedLM, released / "generator", None),
    ):
        loaded[auto], info = auto.from_pretrained(str(place), variant=variant, output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["mismatched_keys"]
    again, notes = load_replaced_token_model(str(released), str(released / "generator"), "none", seed=9)
    assert not notes
    batch, texts = make_stream(tiny_corpus, max_length=48).batch(0, 8), []
    inputs = to_tensors(batch, torch.device("cpu")) | {"masked_positions": torch.arange(batch.num_tokens)}
    with torch.no_grad():
        pair, token = discriminate(model, inputs)
        vocabulary = model.generate(inputs)
        for ours, theirs in zip(discriminate(again.eval(), inputs), (pair, token), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5)
        for k, (a, b) in enumerate(zip(batch.starts[:-1], batch.starts[1:], strict=True)):
            alone = {n: inputs[n][a:b].long()[None] for n in ("input_ids", "token_type_ids")}
            logits = [m.eval()(**alone).logits[0] for m in loaded.values()]
            for theirs, ours in zip(logits, (pair[k : k + 1], token[a:b], vocabulary[a:b]), strict=True):
                assert torch.allclose(theirs, ours, atol=1e-5)
            texts.append([batch.input_ids[a:b][batch.token_type_ids[a:b] == kind] for kind in (0, 1)])
    encoder = CrossEncoder(str(released))
    pairs = [tuple(encoder.tokenizer.batch_decode(both, skip_special_tokens=True)) for both in texts]
    assert encoder.predict(pairs) == pytest.approx(torch.sigmoid(pair).numpy(), abs=1e-5)
