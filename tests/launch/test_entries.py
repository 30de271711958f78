"""The entries, run by their paths as users run them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from data_pipeline.core.errors import KinspanError
from launch.kinspan import show
from tests.launch.entries import MODULES, module_of, program_of
from tests.programs import run_program

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = sorted(MODULES)


def run(path, *arguments, cwd):
    """In a process of its own from the first import on, for what is about that; all else by ``run_program``."""
    command, env = [sys.executable, str(path), *map(str, arguments)], {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=120)


@pytest.mark.parametrize("entry", ENTRIES)
def test_help_teaches(entry, tmp_path):
    done = run_program(*program_of(entry), "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 12


def test_a_refusal_is_one_line_and_status_2(tmp_path):
    done = run(*program_of("evaluate"), "--run", "absent", "--qrels", "absent\x1b[31m", cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.strip().isprintable()  # a terminal would turn red


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of the packages that is not installed."""
    folder = tmp_path_factory.mktemp("copied")
    for package in ("pretrain", "finetune", "serve", "objectives", "data_pipeline", "launch", "ds_configs"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.parametrize("entry", ["prepare", "pretrain", "finetune", "preflight", "kinspan"])
def test_no_entry_shadows_a_package(entry, copied, tmp_path):
    """Runs a copy that is not installed, from a folder of its own, with each way of naming the script."""
    probe = tmp_path / "probe.py"
    probe.write_text(
        "import runpy, sys\n"
        f"sys.path[0] = {str(copied / 'launch')!r}\n"
        f"runpy.run_path({str(copied / 'launch' / entry)!r} + '.py', run_name='probe')\n"
        "import pretrain, data_pipeline\n"
        "print(pretrain.__file__, data_pipeline.__file__)\n"
    )
    done = run_program(probe, cwd=copied)
    assert done.stdout.split() == [str(copied / p / "__init__.py") for p in ("pretrain", "data_pipeline")], done.stderr


def test_spawned_workers_find_the_packages(tmp_path, helpers):
    documents = helpers.write_jsonl(tmp_path / "d.jsonl", helpers.synthetic_documents(12))
    command = [ROOT / "launch/prepare.py", "--input", documents, "--output_dir", "corpus", "--num_workers"]
    done = run(*command, 2, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "documents read" in done.stdout
    assert (tmp_path / "corpus/manifest.json").exists()
    again = run_program(*command, 1, cwd=tmp_path)
    assert "already holds this corpus" in again.stdout


REFUSED = [  # entry, arguments, and what the message must name
    ("prepare", ["--input", "absent.jsonl", "--output_dir", "x"], "absent.jsonl"),
    ("inspect_pairs", ["--corpus", "absent"], "absent"),
    ("inspect_pairs", ["--start", str(2**48)], "--start"),
    ("release", ["--run_dir", "absent", "--output_dir", "x"], "absent"),
    ("pretrain", ["--micro_batch_size", "9", "--global_batch_size", "8"], "--micro_batch_size"),
    ("finetune", ["--data", "wikiqa=nowhere"], "wikiqa=nowhere"),
    ("finetune", ["--data", "files=x", "--learning_rate", "0"], "--learning_rate 0.0"),
    ("status", ["absent"], "absent"),
    ("build_asnq", ["--train", "absent.jsonl", "--output_dir", "asnq"], "--train absent.jsonl"),
    ("train_adapters", ["--corpus", "a", "--task", "3/2"], "--task 3/2"),
    ("study", ["--study", "absent.yaml", "--data", "files=."], "absent.yaml"),
    ("evaluate", ["--model", "all-MiniLM-L6-v2"], "--data"),
    ("mine", ["--data", "files=absent", "--output_dir", "x"], "files=absent"),
]


@pytest.mark.parametrize(("entry", "arguments", "names"), REFUSED)
def test_bad_input_is_refused_by_name_in_one_line(entry, arguments, names, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [entry, *arguments])
    with pytest.raises(KinspanError, match=re.escape(names)) as caught:
        show(module_of(entry).main())
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


TORCHLESS = [  # arguments of kinspan, and what the message must name
    ("pretrain --corpus absent", "absent"),
    ("pretrain --objective ssq", "ssq"),
    ("pretrain --model ./absent", "--model"),
    ("pretrain --deepspeed_config absent", "--deepspeed_config absent"),
    ("finetune --data selqa=. --model ./absent", "--model"),
    ("finetune --data selqa=. --deepspeed_config absent", "--deepspeed_config absent"),
    ("adapt --documents python-docs --output_dir x --budget 5", "--budget 5"),
    ("adapt --documents python-docs --output_dir x --questions absent", "--questions absent"),
    ("evaluate --data selqa=. --model ./absent", "--model"),
    ("index --answers absent --output_dir x", "absent"),
    ("search --index absent question", "absent"),
]


def test_refusals_come_before_torch_is_imported(tmp_path):
    probe = tmp_path / "probe.py"
    probe.write_text(
        "import sys\nfrom launch import kinspan\nfrom data_pipeline.core.errors import KinspanError\n"
        f"for words, name in {TORCHLESS}:\n"
        "    sys.argv = ['kinspan', *words.split()]\n"
        "    try:\n        list(kinspan.run_command())\n"
        "    except KinspanError as error:\n        assert name in str(error), error\n"
        "    else:\n        raise AssertionError(words)\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    done = run(probe, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_dry_run_writes_nothing_and_needs_no_deepspeed(default_corpus, tmp_path):
    probe = tmp_path / "probe.py"
    arguments = ["pretrain.py", "--corpus", str(default_corpus), "--output_dir", "run", "--max_steps", "5", "--dry_run"]
    probe.write_text(
        "import runpy, sys\n"
        f"sys.argv = {arguments!r}\n"
        f"runpy.run_path({str(ROOT / 'launch/pretrain.py')!r}, run_name='__main__')\n"
        "assert 'deepspeed' not in sys.modules\n"
    )
    done = run(probe, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tokens     " in done.stdout
    assert list(tmp_path.iterdir()) == [probe]
