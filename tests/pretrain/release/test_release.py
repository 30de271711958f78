"""Releases: the scores of the trained model, the card, and whole folders alone."""

import errno
import json
import shutil
import sys
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors import SafetensorError
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

import pretrain.release.release as product
from data_pipeline.core.errors import KinspanError
from pretrain.batches import to_tensors
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.pair_model import load_model
from pretrain.release.curve import CURVE
from pretrain.release.release import release
from tests.pretrain.release.conftest import write_checkpoint


@pytest.mark.parametrize("trained", FAMILIES, indirect=True)
def test_released_scores_equal_the_training_models(trained, tmp_path, tiny_corpus, make_stream, caplog, monkeypatch):
    """By transformers and by CrossEncoder, as probabilities; nothing starts fresh, nothing warns."""
    run, model = trained
    folder = release(run, tmp_path / "release")
    batch = make_stream(tiny_corpus).batch(0, 15)
    with torch.no_grad():
        ours, _ = model.logits(to_tensors(batch, torch.device("cpu")))
    classifier, info = AutoModelForSequenceClassification.from_pretrained(str(folder), output_loading_info=True)
    assert not info["missing_keys"]
    assert classifier.dtype == torch.float32
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    for k in range(15):
        ids = batch.input_ids[batch.starts[k] : batch.starts[k + 1]]
        types = batch.token_type_ids[batch.starts[k] : batch.starts[k + 1]]
        inputs = {"input_ids": torch.tensor(ids)[None], "token_type_ids": torch.tensor(types)[None]}
        with torch.no_grad():
            logit = classifier.eval()(**inputs, attention_mask=torch.ones(1, len(ids))).logits
        assert torch.allclose(logit[0, 0], ours[k], atol=1e-5)
    assert len(tokenizer) == model.config.vocab_size
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    home = tmp_path / "models--me--release"  # as its cache holds what was downloaded
    shutil.copytree(folder, home / "snapshots/abc")
    (home / "refs").mkdir()
    (home / "refs/main").write_text("abc")
    for place in (str(folder), "me/release"):
        continued, notes = load_model(place, seed=9)
        assert not notes
        for name, tensor in continued.mlm_head.state_dict().items():
            assert torch.equal(tensor, model.mlm_head.state_dict()[name]), name
    logging.set_verbosity_warning()
    logging.get_logger("transformers").addHandler(caplog.handler)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        encoder = CrossEncoder(str(folder))
    pairs = [("a river", "the water"), ("a river", "a violin")]
    raw = torch.tensor(encoder.predict(pairs, activation_fn=torch.nn.Identity()))
    assert encoder.predict(pairs) == pytest.approx(torch.sigmoid(raw).numpy(), abs=1e-6)
    logging.set_verbosity_error()
    logging.get_logger("transformers").removeHandler(caplog.handler)
    assert not caplog.text


@pytest.mark.parametrize("trained", ["bert", "electra", "albert"], indirect=True)
def test_a_tokenizer_of_a_class_without_types_gives_them(trained, tmp_path):
    run, _ = trained
    path = run / "model/tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}))
    folder = release(run, tmp_path / "release")
    assert max(AutoTokenizer.from_pretrained(str(folder))("a", "b")["token_type_ids"]) == 1


@pytest.mark.parametrize("trained", ["bert", "modernbert"], indirect=True)
def test_the_card_has_the_figures_and_no_path(trained, tmp_path):
    run, model = trained
    folder = release(run, tmp_path / "release")
    card = (folder / "README.md").read_text()
    assert "0.432" in card
    assert model.family.masked_lm in card
    assert ("`masked_lm`" in card) == (model.config.model_type == "modernbert")
    for file in [*folder.rglob("*.json"), folder / "README.md"]:
        assert str(tmp_path) not in file.read_text()


def test_a_checkpoint_is_known_by_its_name_from_wherever_one_looks(trained, tmp_path, monkeypatch):
    run, _ = trained
    monkeypatch.chdir(run / "checkpoints/step-00000003")
    assert release(Path("."), tmp_path / "release").is_dir()
    (run / "checkpoints/step-00000003").rename(run / "checkpoints/best")
    with pytest.raises(KinspanError, match=r"--run_dir .*checkpoints/best"):
        release(run / "checkpoints/best", tmp_path / "other")


def test_a_harmed_checkpoint_is_refused_and_none_is_no_run(trained, tmp_path):
    run, _ = trained
    whole = run / "checkpoints/step-00000003"
    (whole / "weights.safetensors").write_bytes(b"x")
    for source, named in ((whole, "weights.safetensors"), (run, ""), (tmp_path, "")):
        with pytest.raises(KinspanError, match=f"--run_dir .*{named}"):
            release(source, tmp_path / "release")


def test_nothing_of_the_users_is_overwritten(trained, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "new.tmp").mkdir()
    release(trained[0], tmp_path / "new")
    assert (tmp_path / "new.tmp").exists()
    for name in ("mine", "file"):
        with pytest.raises(KinspanError, match="--output_dir"):
            release(trained[0], tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"


def change_facts(run, figures=None, **changes):
    """Changes run.json, and adds figures to each line of the log; ``settings`` are merged."""
    facts = json.loads((run / "run.json").read_text())
    changes["settings"] = facts["settings"] | changes.get("settings", {})
    (run / "run.json").write_text(json.dumps(facts | changes))
    lines = [json.loads(line) | (figures or {}) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


OBJECTIVE = {"asks": "whether B follows A", "negatives": "others", "source": "BERT", "pairs_per_anchor": 5}


@pytest.mark.parametrize(
    ("figures", "changes", "present"),
    [
        ({}, {"settings": {"pair_weight": 0.0}}, "**The pair head is untrained**"),
        ({}, {"settings": {"mlm_probability": 0.0}}, "**The masked-LM head was not trained**"),
        ({"pair_accuracy_positive": 0.0}, {}, "**Warning: the pair head"),
        ({"share_positive": 0.35}, {}, "share of positives (35%) gives a pair loss of 0.647"),
        ({}, {"validation_documents": 2}, "**Warning: the figures rest on 2"),
        (
            {"ssp/pair_auc": 0.61, "mine:OWN/pair_auc": 0.72},
            {"objectives": [OBJECTIVE | {"name": name, "share": 0.5} for name in ("ssp", "mine:OWN")]},
            "| mine:OWN/pair_auc | 0.720 | 0.720 |",
        ),
    ],
)
def test_the_card_follows_the_run(trained, tmp_path, figures, changes, present):
    run, _ = trained
    assert present not in (release(run, tmp_path / "release") / "README.md").read_text()
    change_facts(run, figures, **changes)
    assert present in (release(run, tmp_path / "release") / "README.md").read_text()


def test_figures_of_another_step_are_marked(trained, tmp_path):
    run, _ = trained
    folder = release(write_checkpoint(run, 5), tmp_path / "release")
    assert "these weights are of step 5" in (folder / "README.md").read_text()
    with (run / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"step": 5, "split": "validation", "loss": 0.5, "pair_loss": 0.2, "pair_auc": 0.9}) + "\n")
    card = (release(run / "checkpoints/step-00000003", folder) / "README.md").read_text()
    assert "these weights are of step" not in card
    assert "0.900" not in card


@pytest.mark.parametrize(("weights", "untrained"), [([0.0, 1.0], {3}), ([1.0, 0.0], set())])
def test_a_checkpoint_from_before_a_change_has_the_card_of_then(trained, tmp_path, weights, untrained):
    run, _ = trained
    history = [{"step": 3, "settings": {"pair_weight": weights}, "facts": {"total_steps": 3}}]
    change_facts(run, settings={"pair_weight": weights[1]}, history=history, total_steps=5)
    later = write_checkpoint(run, 5)
    for place, step in ((later, 5), (run / "checkpoints/step-00000003", 3)):
        folder = release(place, tmp_path / "release")
        facts = json.loads((folder / "kinspan.json").read_text())
        assert (facts["settings"]["pair_weight"], facts["total_steps"]) == (weights[step == 5], step)
        assert facts["history"] == (history if step == 5 else [])
        assert ("**The pair head is untrained**" in (folder / "README.md").read_text()) == (step in untrained)


def test_an_incomplete_run_and_an_older_step_are_warned_of(trained, tmp_path, caplog):
    run, _ = trained
    release(run, tmp_path / "release")
    assert not caplog.records
    change_facts(run, total_steps=4)
    release(run, tmp_path / "release")
    assert "step 3 of 4" in caplog.text
    newer = write_checkpoint(run, 4)
    (newer / "weights.safetensors").write_bytes(b"x")
    release(run, tmp_path / "release")
    assert json.loads((tmp_path / "release/kinspan.json").read_text())["step"] == 3
    assert f"{newer}: weights.safetensors" in caplog.text


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("No space left")])
def test_a_full_disk_is_one_line_and_leaves_the_older_release(trained, tmp_path, monkeypatch, error):
    run, _ = trained
    released = release(run, tmp_path / "release")
    monkeypatch.setattr(product, "save_file", Mock(side_effect=error))
    with pytest.raises(KinspanError, match=str(released)):
        release(run, released)
    assert list(tmp_path.glob(".release.*")) == []
    assert (released / "model.safetensors").exists()
    released.rename(tmp_path / ".release.former")  # as a kill between two renames leaves it
    with pytest.raises(KinspanError, match=str(released)):
        release(run, released)
    assert (released / "model.safetensors").exists()


def test_without_matplotlib_there_is_no_curve(trained, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not (release(trained[0], tmp_path / "release") / CURVE).exists()
    assert "matplotlib" in caplog.text
