"""A run of several corpora, one of them remote: its figures stand apart, and it resumes as any other."""

import json
import shutil

import pytest
import yaml

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError
from pretrain.config import PretrainConfig
from pretrain.run import pretrain
from tests.pretrain.steps import read_lines, read_log, read_weights, same

STEPS = 12
SETTINGS = {"max_steps": STEPS, "save_steps": 4, "eval_steps": 4, "eval_pairs": 60, "log_steps": 4, "max_length": 48}
SETTINGS |= {"global_batch_size": 20, "micro_batch_size": 20, "precision": "fp32"}


@pytest.fixture
def recipe(tiny_corpus, other_corpus, make_model, tmp_path):
    """A recipe whose corpora are links, so that their names tell them apart."""
    (tmp_path / "wiki").symlink_to(tiny_corpus)
    (tmp_path / "news").symlink_to(other_corpus)
    corpora = [f"file://{tmp_path}/wiki=3,ssp:2+nsp:1", f"{tmp_path}/news=1"]
    given = {"corpus": corpora, "objective": "psd", "model": str(make_model()), "output_dir": str(tmp_path / "run")}
    given |= SETTINGS | {"cache_dir": str(tmp_path / "cache"), "cache_gb": 1}

    def write(**changes):
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(given | changes))
        return parse(PretrainConfig, "", argv=["--config", str(tmp_path / "recipe.yaml")])

    return write


def test_a_run_of_two_corpora(recipe, tmp_path, caplog):
    caplog.set_level("INFO")
    folder = tmp_path / "run"
    summary = pretrain(recipe())
    for split in ("train", "validation"):
        line = read_lines(folder, split)[-1]
        assert {name.rpartition("/")[0] for name in line if "/" in name} == {"wiki", "wiki/ssp", "wiki/nsp", "news"}
        shares = {"wiki": 0.75, "news": 0.25}
        mean = sum(share * line[f"{name}/pair_loss"] for name, share in shares.items())
        assert line["pair_loss"] == pytest.approx(mean, rel=0.02)
    assert "wiki/pair_auc" in read_lines(folder, "validation")[-1]
    record = (folder / "run.json").read_text()
    assert str(tmp_path) not in record
    facts = json.loads(record)
    assert [(part["name"], part["share"]) for part in facts["corpus"]["corpora"]] == [("wiki", 0.75), ("news", 0.25)]
    assert [part["weight"] for part in facts["identity"]["corpus_content"]] == [2, 1, 1]
    assert summary["corpus_fingerprint"] == facts["corpus"]["fingerprint"]
    whole, logged = read_weights(folder, STEPS), read_log(folder, "train", "news/pair_loss")

    (folder / "summary.json").unlink()
    shutil.rmtree(folder / f"checkpoints/step-{STEPS:08d}")
    pretrain(recipe())
    assert "resuming from" in caplog.text
    assert same(whole, read_weights(folder, STEPS))
    assert logged == read_log(folder, "train", "news/pair_loss")

    swapped = [f"{tmp_path}/news=3,ssp:2+nsp:1", f"{tmp_path}/wiki=1"]
    with pytest.raises(KinspanError, match=r"--output_dir .*--corpus"):
        pretrain(recipe(corpus=swapped))
