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
from pretrain.checkpoints.manifest import describe_file, write_manifest
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
def test_the_card_tells_the_figures_and_no_path(trained, tmp_path):
    run, model = trained
    folder = release(run, tmp_path / "release")
    card = (folder / "README.md").read_text()
    assert "0.432" in card
    assert all(name in card for name in (model.family.classifier, model.family.masked_lm))
    assert ('from_pretrained("path/to/this/folder/masked_lm")' in card) == (model.config.model_type == "modernbert")
    for file in folder.rglob("*.json"):
        assert str(tmp_path) not in file.read_text()
    assert str(tmp_path) not in card


def test_figures_of_another_step_do_not_pass_for_those_of_the_release(trained, tmp_path):
    """A run may save more often than it validates."""
    run, _ = trained
    folder = release(write_checkpoint(run, 5, run / "checkpoints/step-00000003"), tmp_path / "release")
    card = (folder / "README.md").read_text()
    assert "before training and at step 3, the last validated step before these weights:" in card
    assert "| | step 0 | step 3 |" in card
    assert "model-index" not in card
    card = (release(run / "checkpoints/step-00000003", folder) / "README.md").read_text()
    assert "before training and at this checkpoint:" in card
    assert "model-index" in card


def test_one_checkpoint_can_be_released_and_a_harmed_one_not(trained, tmp_path):
    run, _ = trained
    whole = run / "checkpoints/step-00000003"
    assert (release(whole, tmp_path / "release") / "model.safetensors").exists()
    (whole / "weights.safetensors").write_bytes(b"x")
    with pytest.raises(KinspanError, match=r"weights.safetensors is damaged"):
        release(whole, tmp_path / "other")
    with pytest.raises(KinspanError, match="no checkpoint of whole weights"):
        release(run, tmp_path / "other")


def test_a_checkpoint_is_known_by_its_name_from_wherever_one_looks(trained, tmp_path, monkeypatch):
    run, _ = trained
    monkeypatch.chdir(run / "checkpoints/step-00000003")
    assert release(Path("."), tmp_path / "release").is_dir()
    (run / "checkpoints/step-00000003").rename(run / "checkpoints/best")
    for average in (1, 2):
        with pytest.raises(KinspanError, match=r"checkpoints/best has not the name that its run gave it"):
            release(run / "checkpoints/best", tmp_path / "other", average=average)


def test_nothing_of_the_users_is_overwritten(trained, tmp_path):
    run, _ = trained
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(KinspanError, match="no release"):
        release(run, tmp_path / "mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(KinspanError, match="no release"):
        release(run, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_what_is_no_run_is_one_line(tmp_path):
    with pytest.raises(KinspanError, match="neither a run nor a checkpoint"):
        release(tmp_path, tmp_path / "release")


def test_the_card_says_what_each_objective_asks_and_its_chance(trained, tmp_path):
    run, _ = trained
    facts = json.loads((run / "run.json").read_text())
    nsp = {
        "name": "nsp",
        "share": 0.5,
        "asks": "whether B follows A",
        "negatives": "others",
        "source": "BERT",
        "pairs_per_anchor": 2,
    }
    facts["objectives"] = [facts["objectives"][0] | {"share": 0.5}, nsp]
    (run / "run.json").write_text(json.dumps(facts))
    card = (release(run, tmp_path / "release") / "README.md").read_text()
    assert "whether B follows A (BERT). One pair in 2 is positive, 50% of the pairs. Negatives: others." in card
    assert "predicting the share of positives (35%) gives a pair loss of 0.647" in card


def test_the_card_of_a_run_without_the_pair_loss_says_that_its_head_is_untrained(trained, tmp_path):
    run, _ = trained
    facts = json.loads((run / "run.json").read_text())
    facts["settings"]["pair_weight"] = 0.0
    (run / "run.json").write_text(json.dumps(facts))
    assert "pair head is untrained" in (release(run, tmp_path / "release") / "README.md").read_text()


def test_the_card_of_a_run_without_masked_tokens_claims_no_masked_lm(trained, tmp_path):
    run, _ = trained
    card = (release(run, tmp_path / "release") / "README.md").read_text()
    assert "**SSP** and masked language modelling." in card
    assert "masked-LM head was not trained" not in card
    facts = json.loads((run / "run.json").read_text())
    facts["settings"]["mlm_probability"] = 0.0
    (run / "run.json").write_text(json.dumps(facts))
    card = (release(run, tmp_path / "release") / "README.md").read_text()
    assert "with **SSP**.\n" in card
    assert "masked-LM head was not trained" in card


def write_checkpoint(run, step, like):
    folder = run / f"checkpoints/step-{step:08d}"
    shutil.copytree(like, folder)
    (folder / "state.json").write_text(json.dumps({"step": step}))
    (folder / "engine").mkdir()
    (folder / "engine/optimizer.pt").write_bytes(b"moments")
    files = ["weights.safetensors", "state.json", "engine/optimizer.pt"]
    write_manifest(folder, {name: describe_file(folder / name) for name in files})
    return folder


def test_an_older_step_is_never_released_without_a_word(trained, tmp_path, capsys):
    run, _ = trained
    newer = write_checkpoint(run, 5, run / "checkpoints/step-00000003")
    released = release(run, tmp_path / "release")
    assert json.loads((released / "kinspan.json").read_text())["step"] == 5
    assert "warning" not in capsys.readouterr().out
    (newer / "engine/optimizer.pt").write_bytes(b"moment")
    assert json.loads((release(run, released) / "kinspan.json").read_text())["step"] == 5
    assert "its weights are whole and are released, but no run can resume from it" in capsys.readouterr().out
    (newer / "weights.safetensors").write_bytes(b"x")
    assert json.loads((release(run, released) / "kinspan.json").read_text())["step"] == 3
    said = capsys.readouterr().out
    assert f"left out {newer}: weights.safetensors is damaged; the older step-00000003 is released instead" in said


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
    says = r"release .*/release cannot be written: No space left.*; the disk at /.* MB left"
    with pytest.raises(KinspanError, match=says):
        release(run, released)
    assert {p.name for p in tmp_path.iterdir()} >= {"release"}
    assert not (tmp_path / "release.tmp").exists()
    assert (released / "model.safetensors").exists()


def write_facts(run, figures=None, **changes):
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | changes))
    lines = [json.loads(line) | (figures or {}) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_figures_that_mean_little_are_warned_of(trained, tmp_path, capsys):
    run, _ = trained
    write_facts(run, {"pair_accuracy_positive": 0.0}, validation_documents=2)
    card = (release(run, tmp_path / "release") / "README.md").read_text()
    for text in (capsys.readouterr().out, card):
        assert "the pair head calls no held-out pair positive" in text
        assert "the figures rest on 2 held-out documents" in text
    write_facts(run, {"pair_accuracy_positive": 0.1}, validation_documents=200)
    assert "**Warning:" not in (release(run, tmp_path / "release") / "README.md").read_text()
    assert "warning" not in capsys.readouterr().out
    write_facts(run, total_steps=4)
    release(run, tmp_path / "release")
    assert "warning: the run is not complete: this is step 3 of 4" in capsys.readouterr().out


def test_the_card_of_a_mixture_from_scratch(trained, tmp_path):
    run, _ = trained
    facts = json.loads((run / "run.json").read_text())
    own = facts["objectives"][0] | {"name": "next_paragraph:OBJECTIVE", "share": 0.5}
    source = {"origin": "mine", "documents": 1, "licence": "not stated"}
    write_facts(
        run,
        {"ssp/pair_auc": 0.61, "next_paragraph:OBJECTIVE/pair_auc": 0.72},
        objectives=[facts["objectives"][0] | {"share": 0.5}, own],
        from_scratch=True,
        corpus=facts["corpus"] | {"sources": [source]},
    )
    card = (release(run, tmp_path / "release") / "README.md").read_text()
    assert "# small-ssp-next_paragraph\n" in card
    assert "small trained from scratch with **SSP and next_paragraph**" in card
    assert "continued" not in card
    assert "| ssp/pair_auc | 0.610 | 0.610 |" in card
    assert "| next_paragraph:OBJECTIVE/pair_auc | 0.720 | 0.720 |" in card
    assert "prepare the corpus with `--licence NAME`" in card
