import errno
import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

import pretrain.release.release as product
from data_pipeline.core.errors import KinspanError
from pretrain.batches import to_tensors
from pretrain.checkpoints.manifest import make_entry, write_manifest
from pretrain.modeling.families import FAMILIES
from pretrain.release.release import release


@pytest.mark.parametrize("trained", FAMILIES, indirect=True)
def test_released_scores_equal_the_training_models(trained, tmp_path, tiny_corpus, make_stream):
    run, model = trained
    folder = release(run, tmp_path / "release")
    batch = make_stream(tiny_corpus).batch(0, 15)
    with torch.no_grad():
        ours, _ = model.logits(to_tensors(batch, torch.device("cpu")))
    classifier = AutoModelForSequenceClassification.from_pretrained(str(folder)).eval()
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    for k in range(15):
        ids = batch.input_ids[batch.starts[k] : batch.starts[k + 1]]
        types = batch.token_type_ids[batch.starts[k] : batch.starts[k + 1]]
        inputs = {"input_ids": torch.tensor(ids)[None], "token_type_ids": torch.tensor(types)[None]}
        with torch.no_grad():
            logit = classifier(**inputs, attention_mask=torch.ones(1, len(ids))).logits
        assert torch.allclose(logit[0, 0], ours[k], atol=1e-5)
    assert len(tokenizer) == model.config.vocab_size


def test_everything_loads_with_nothing_fresh(trained, tmp_path):
    run, _ = trained
    folder = str(release(run, tmp_path / "release"))
    for auto in (AutoModelForSequenceClassification, AutoModelForMaskedLM):
        loaded, info = auto.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["mismatched_keys"]
        assert loaded.dtype == torch.float32


def test_masked_lm_head_is_released(trained, tmp_path):
    run, model = trained
    folder = str(release(run, tmp_path / "release"))
    released = AutoModelForMaskedLM.from_pretrained(folder)
    for name, tensor in model.family.mlm_head_of(released).state_dict().items():
        assert torch.equal(tensor, model.mlm_head.state_dict()[name]), name


@pytest.mark.parametrize("trained", FAMILIES, indirect=True)
def test_cross_encoder_gives_probabilities_without_a_warning(trained, tmp_path, capfd):
    from sentence_transformers import CrossEncoder

    run, _ = trained
    folder = str(release(run, tmp_path / "release"))
    logging.set_verbosity_warning()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        encoder = CrossEncoder(folder)
    scores = encoder.predict([("a river", "the water"), ("a river", "a violin")])
    raw = encoder.predict([("a river", "the water"), ("a river", "a violin")], activation_fn=torch.nn.Identity())
    assert scores == pytest.approx(torch.sigmoid(torch.tensor(raw)).numpy(), abs=1e-6)
    said = capfd.readouterr().err.lower()
    assert not any(word in said for word in ("missing", "newly initialized"))
    logging.set_verbosity_error()


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


def test_one_checkpoint_can_be_released_and_a_harmed_one_not(trained, tmp_path):
    run, _ = trained
    whole = run / "checkpoints/step-00000003"
    assert (release(whole, tmp_path / "release") / "model.safetensors").exists()
    (whole / "weights.safetensors").write_bytes(b"x")
    with pytest.raises(KinspanError, match=r"--run_dir .*weights.safetensors"):
        release(whole, tmp_path / "other")
    with pytest.raises(KinspanError, match="--run_dir"):
        release(run, tmp_path / "other")


def test_a_checkpoint_is_known_by_its_name_from_wherever_one_looks(trained, tmp_path, monkeypatch):
    run, _ = trained
    monkeypatch.chdir(run / "checkpoints/step-00000003")
    assert release(Path("."), tmp_path / "release").is_dir()
    (run / "checkpoints/step-00000003").rename(run / "checkpoints/best")
    for average in (1, 2):
        with pytest.raises(KinspanError, match=r"--run_dir .*checkpoints/best"):
            release(run / "checkpoints/best", tmp_path / "other", average=average)


def test_nothing_of_the_users_is_overwritten(trained, tmp_path):
    run, _ = trained
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(KinspanError, match="--output_dir"):
        release(run, tmp_path / "mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(KinspanError, match="--output_dir"):
        release(run, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_what_is_no_run_is_one_line(tmp_path):
    with pytest.raises(KinspanError, match="--run_dir"):
        release(tmp_path, tmp_path / "release")


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
        (
            {},
            {"objectives": [OBJECTIVE | {"name": "nsp", "share": 0.5, "pairs_per_anchor": 2}] * 2},
            "50% of the pairs",
        ),
        ({}, {"objectives": [OBJECTIVE | {"name": "nsp", "share": 1, "pairs_per_anchor": 2}]}, "pair loss of 0.693"),
        ({}, {"settings": {"pair_weight": 0.0}}, "**The pair head is untrained**"),
        ({}, {"settings": {"mlm_probability": 0.0}}, "**The masked-LM head was not trained.**"),
        ({}, {"from_scratch": True}, "trained from scratch"),
        ({"pair_accuracy_positive": 0.0}, {}, "**Warning: the pair head"),
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
    folder = release(write_checkpoint(run, 5, run / "checkpoints/step-00000003"), tmp_path / "release")
    assert "these weights are of step 5" in (folder / "README.md").read_text()
    folder = release(run / "checkpoints/step-00000003", folder)
    assert "these weights are of step" not in (folder / "README.md").read_text()


def test_an_incomplete_run_is_warned_of(trained, tmp_path, caplog):
    change_facts(trained[0], total_steps=4)
    release(trained[0], tmp_path / "release")
    assert "step 3 of 4" in caplog.text


def write_checkpoint(run, step, like):
    folder = run / f"checkpoints/step-{step:08d}"
    shutil.copytree(like, folder)
    (folder / "state.json").write_text(json.dumps({"step": step}))
    (folder / "engine").mkdir()
    (folder / "engine/optimizer.pt").write_bytes(b"moments")
    files = ["weights.safetensors", "state.json", "engine/optimizer.pt"]
    write_manifest(folder, {name: make_entry(folder / name) for name in files})
    return folder


def test_an_older_step_is_never_released_without_a_warning(trained, tmp_path, caplog):
    run, _ = trained
    newer = write_checkpoint(run, 5, run / "checkpoints/step-00000003")

    def released_step():
        return json.loads((release(run, tmp_path / "release") / "kinspan.json").read_text())["step"]

    assert released_step() == 5
    assert not caplog.records
    (newer / "engine/optimizer.pt").write_bytes(b"moment")
    assert released_step() == 5
    assert "optimizer.pt" in caplog.text
    (newer / "weights.safetensors").write_bytes(b"x")
    assert released_step() == 3
    assert f"{newer}: weights.safetensors" in caplog.text


@pytest.mark.parametrize("moment", ["while it is checked", "while it is read"])
def test_a_checkpoint_that_the_run_removes_meanwhile_is_not_missed(trained, tmp_path, monkeypatch, moment):
    run, _ = trained
    old = run / "checkpoints/step-00000003"

    def go_on(function):
        def first_move_on(*arguments):
            if old.exists():
                write_checkpoint(run, 6, old)
                shutil.rmtree(old)
            return function(*arguments)

        return first_move_on

    name = "find_damage" if moment == "while it is checked" else "average_weights"
    monkeypatch.setattr(product, name, go_on(getattr(product, name)))
    assert json.loads((release(run, tmp_path / "release") / "kinspan.json").read_text())["step"] == 6


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("No space left")])
def test_a_full_disk_is_one_line_and_leaves_the_older_release(trained, tmp_path, monkeypatch, error):
    run, _ = trained
    released = release(run, tmp_path / "release")

    def fail(*_):
        raise error

    monkeypatch.setattr(product, "save_file", fail)
    with pytest.raises(KinspanError, match=str(released)):
        release(run, released)
    assert {p.name for p in tmp_path.iterdir()} >= {"release"}
    assert not (tmp_path / "release.tmp").exists()
    assert (released / "model.safetensors").exists()
