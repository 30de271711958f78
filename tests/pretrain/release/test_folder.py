"""What lies in a release besides the model: the card's metadata, the curves, and who may read it."""

import json
import os
import stat

import pytest
from huggingface_hub import ModelCard
from matplotlib.image import imread

from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer
from pretrain.release.card import CardOverrides
from pretrain.release.folder import CARD, FACTS, copy_model, refuse_unwritable, set_ranking_length
from pretrain.release.release import release
from tests.fake_hub import find_faults
from tests.synthetic import short_tokenizer

ALL = CardOverrides("apache-2.0", "google-bert/bert-base-uncased", ("me/texts",), ("en",), "me/ranker")


def read_card(folder):
    return ModelCard((folder / "README.md").read_text())


def test_the_hub_takes_the_card_and_reads_what_was_stated(trained, tmp_path):
    folder = release(trained[0], tmp_path / "release")
    assert not find_faults((folder / "README.md").read_text())
    data = read_card(folder).data
    assert (data.license, data.base_model, data.datasets, data.language) == ("unknown", None, None, None)
    folder = release(trained[0], folder, overrides=ALL)
    card = (folder / "README.md").read_text()
    assert 'CrossEncoder("me/ranker", max_length=' in card
    assert not find_faults(card)
    data = read_card(folder).data
    assert (data.license, data.base_model) == ("apache-2.0", "google-bert/bert-base-uncased")
    assert (data.datasets, data.language) == (["me/texts"], ["en"])
    assert (data.library_name, data.pipeline_tag) == ("sentence-transformers", "text-ranking")


def test_a_release_can_rank_by_more_tokens_than_it_was_trained_on(trained, tmp_path):
    folder = release(trained[0], tmp_path / "release")
    for _ in range(2):
        set_ranking_length(folder, 99)
        assert json.loads((folder / FACTS).read_text())["max_length"] == 99
        assert load_tokenizer(str(folder)).model_max_length == 99
        assert "max_length=99)" in (folder / CARD).read_text()


def test_the_run_tells_its_base_model(trained, tmp_path):
    run, _ = trained
    facts = json.loads((run / "run.json").read_text())
    facts["model"]["hub_name"] = "FacebookAI/roberta-base"
    (run / "run.json").write_text(json.dumps(facts))
    assert read_card(release(run, tmp_path / "release")).data.base_model == "FacebookAI/roberta-base"
    (run / "run.json").write_text(json.dumps(facts | {"from_scratch": True}))
    assert read_card(release(run, tmp_path / "release")).data.base_model is None


def test_others_can_read_it_whatever_the_umask(trained, tmp_path):
    before = os.umask(0o077)
    try:
        folder = release(trained[0], tmp_path / "release")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in folder.rglob("*") if p.is_file()}
    assert modes == {0o644}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    (folder / "config.json").chmod(0o444)  # as in a store of models
    folder.chmod(0o555)
    copy_model(folder, tmp_path / "copy")
    assert {stat.S_IMODE((tmp_path / "copy" / name).stat().st_mode) for name in (".", "config.json")} == {0o755, 0o644}


def test_a_tokenizer_that_meets_a_full_disk_is_refused_and_a_fault_of_ours_is_not(tmp_path):
    with pytest.raises(KinspanError, match=str(tmp_path)), refuse_unwritable(tmp_path):
        load_tokenizer(short_tokenizer()).backend_tokenizer.save("/dev/full")
    with pytest.raises(ValueError, match="ours"), refuse_unwritable(tmp_path):
        raise ValueError("ours")


def test_a_link_to_a_folder_stays_one(trained, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "release").symlink_to(tmp_path / "disk")
    release(trained[0], release(trained[0], tmp_path / "release"))  # and is replaced where it leads
    assert (tmp_path / "release").is_symlink()
    assert (tmp_path / "disk" / FACTS).is_file()


def test_the_curves_are_a_picture_that_the_card_shows(trained, tmp_path):
    folder = release(trained[0], tmp_path / "release")
    height, width, _ = imread(folder / "training_curve.png").shape
    assert width > 2 * height
    assert "![Training curves](training_curve.png)" in (folder / "README.md").read_text()
    (trained[0] / "metrics.jsonl").unlink()
    folder = release(trained[0], tmp_path / "release")
    assert not (folder / "training_curve.png").exists()
    assert "training_curve" not in (folder / "README.md").read_text()
