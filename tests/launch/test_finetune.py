"""The commands finetune and study by their paths."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification

from data_pipeline.core.errors import KinspanError
from finetune.study import StudyContext, read_study, run_study
from launch.commands import _stages, study
from launch.commands._stages import prepare_pretraining
from launch.kinspan import show
from tests.chaos.starts import environment, free_port
from tests.launch.entries import program_of
from tests.programs import run_program
from tests.synthetic import write_model

ROOT = Path(__file__).resolve().parents[2]
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FAST = ["--epochs=2", "--batch_size=8", "--max_length=32", "--precision=fp32", "--learning_rate=1e-3"]
WORDS = ["river", "stone", "green", "market", "engine", "winter", "paper", "silver", "garden", "music"]


def run(entry, *arguments, cwd):
    return run_program(*program_of(entry), *arguments, cwd=cwd)


def run_ranks(ranks, *arguments):
    """Of launch/finetune.py, by DeepSpeed's launcher."""
    start = ["deepspeed", "--num_accelerators", ranks, "--master_port", free_port(), ROOT / "launch/finetune.py"]
    command = [str(part) for part in (*start, *arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """``small``, a small BERT without dropout, and ``data`` of 5 training, 4 dev and 4 test questions."""
    folder, rng = tmp_path_factory.mktemp("finetune"), random.Random(0)
    write_model(folder / "small", AutoModelForSequenceClassification, num_labels=1, **STILL)
    (folder / "data").mkdir()
    for split, count in {"train": 5, "dev": 4, "test": 4}.items():
        rows = [
            {"question": f"why {k}", "answer": " ".join(rng.choices(WORDS, k=rng.randint(3, 9))), "label": int(not n)}
            for k in range(count)
            for n in range(4)
        ]
        (folder / f"data/{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


def test_it_trains_prints_a_table_and_the_same_command_repeats_it(folder, tmp_path):
    arguments = ["--data", f"files={folder}/data", "--model", folder / "small", "--seeds", "2", *FAST]
    done = run("finetune", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step 6/6  dev" in done.stderr
    table = done.stdout[done.stdout.index("small on files, 2 seed(s)") :]
    assert len([line for line in table.splitlines() if line.startswith("test ")]) == 5  # and BM25, and the start
    assert (tmp_path / "runs/as2/seed-2/best/model.safetensors").is_file()
    assert (tmp_path / "runs/as2/curves.png").is_file()
    again = run("finetune", *arguments, cwd=tmp_path)
    assert again.stdout.endswith(table)
    assert "step " not in again.stderr


PRETRAINED = """
title: With pre-training
settings: {seeds: 1, epochs: 1, max_length: 32, batch_size: 8, precision: fp32}
rows:
  - name: as it is
  - name: SSP first
    stages:
      - pretrain: {objective: ssp, corpus: CORPUS, max_steps: 2, global_batch_size: 5, micro_batch_size: 5,
                   max_length: 32, learning_rate: 1e-2, warmup_steps: 0, eval_pairs: 0, precision: fp32}
"""


def test_a_study_pretrains_first_and_once(folder, tmp_path, tiny_corpus, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(PRETRAINED.replace("CORPUS", str(tiny_corpus)))
    arguments = ["--study", "study.yaml", "--data", f"files={folder}/data", "--model", f"{folder}/small"]
    monkeypatch.setattr(sys, "argv", ["study.py", *arguments])
    show(study.main())
    _, plain, pretrained = json.loads(Path("runs/study/study.json").read_text())["tables"][0]["rows"]
    assert (plain["name"], pretrained["name"]) == ("as it is", "SSP first")
    (stage,) = Path("runs/study/stages").glob("pretrain-*")
    assert json.loads((stage / "summary.json").read_text())["steps"] == 2
    settings = json.loads(Path("runs/study/files/ssp-first/results.json").read_text())["settings"]
    assert settings["model"] == str(stage / "release")
    weights = stage / "release/model.safetensors"
    written = weights.stat().st_mtime_ns
    monkeypatch.setattr("pretrain.run.pretrain", None)  # a finished stage is not run again
    show(study.main())
    assert json.loads(Path("runs/study/study.json").read_text())["tables"][0]["rows"][2] == pretrained
    assert weights.stat().st_mtime_ns == written
    inputs = _stages._fingerprint_inputs
    monkeypatch.setattr(_stages, "_fingerprint_inputs", lambda config: {**inputs(config), "corpora": ["another"]})
    with pytest.raises(TypeError):  # of another corpus at the same place it would be run again
        show(study.main())
    monkeypatch.setattr(_stages, "_fingerprint_inputs", inputs)
    (stage / "release/kinspan.json").unlink()
    with pytest.raises(TypeError):
        show(study.main())


@pytest.mark.parametrize("block", ["{steps: 3}", "{output_dir: x}", "{max_steps: many}", "{max_steps: 0}", "[1]"])
def test_a_pretrain_block_that_cannot_be_meant_is_refused_before_anything_runs(block, tmp_path):
    (tmp_path / "study.yaml").write_text(f"title: T\nrows:\n  - name: row\n    stages:\n      - pretrain: {block}\n")

    def run_file():
        study = read_study(tmp_path / "study.yaml")
        run_study(StudyContext(study, ["files=absent"], tmp_path / "out", pretrain=prepare_pretraining))

    with pytest.raises(KinspanError, match="row"):
        run_file()
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_two_ranks_learn_what_one_does(folder, tmp_path):
    """DeepSpeed's launcher, shares that are not even; each rank scores its part of dev and test."""
    arguments = ["--data", f"files={folder}/data", "--model", folder / "small", "--seeds", 1, *FAST]
    arguments += ["--deepspeed_config", "ds_configs/zero1.json", "--micro_batch_size", 3]
    arguments += ["--output_dir", None]
    results = []
    for ranks in (1, 2):
        arguments[-1] = tmp_path / f"ranks-{ranks}"
        done = run_ranks(2, *arguments) if ranks > 1 else run("finetune", *arguments, cwd=ROOT)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("small on files, 1 seed(s)") == 1
        lines = (tmp_path / f"ranks-{ranks}/seed-1/metrics.jsonl").read_text().splitlines()
        losses = [json.loads(line)["loss"] for line in lines if json.loads(line)["split"] == "train"]
        found = json.loads((tmp_path / f"ranks-{ranks}/results.json").read_text())
        results.append((losses, found["dev"], found["test"]))
    assert results[1][0] == pytest.approx(results[0][0], abs=1e-5)
    assert results[1][1:] == results[0][1:]
