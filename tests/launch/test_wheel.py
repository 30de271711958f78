"""The wheel, installed into an environment of its own, and used from a folder that is not the clone."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from urllib.request import urlopen

import pytest
from transformers import AutoModel

from tests.chaos.starts import free_port
from tests.synthetic import write_model

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*command, cwd):
    done = subprocess.run([*map(str, command)], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def programs(tmp_path):
    """The programs of an environment that has the wheel, and this environment's libraries but not its project."""
    shutil.copytree(ROOT, tmp_path / "source", ignore=shutil.ignore_patterns(".*", "build", "runs", "corpora"))
    pip = sys.executable, "-m", "pip", "-q"
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, tmp_path / "source", cwd=tmp_path)
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    programs = tmp_path / "env/bin"
    run(*pip, "--python", programs / "python", "install", "--no-deps", *tmp_path.glob("*.whl"), cwd=tmp_path)
    (packages,) = tmp_path.glob("env/lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return programs


@pytest.mark.slow
def test_the_wheel_works_outside_the_clone(programs, tmp_path):
    kinspan, texts = programs / "kinspan", tmp_path / "texts.jsonl"
    write_model(tmp_path / "small", AutoModel)
    adapt = "adapt --documents python-docs --model small --budget 320pairs --output_dir adapted"
    run(kinspan, *adapt.split(), cwd=tmp_path)
    assert (tmp_path / "adapted/release/model.safetensors").is_file()
    deepspeed = [programs / "python", "-m", "deepspeed.launcher.runner", "--num_accelerators", "2", "--module"]
    settings = "--corpus adapted/corpus --model small --max_steps 1 --global_batch_size 4 --eval_pairs 0 --output_dir r"
    run(*deepspeed, "--master_port", free_port(), "launch.pretrain", *settings.split(), cwd=tmp_path)
    assert json.loads((tmp_path / "r/summary.json").read_text())["world_size"] == 2
    texts.write_text("".join(json.dumps({"id": n, "text": f"River {n} flows."}) + "\n" for n in range(3)))
    run(kinspan, "index", "--answers", texts, "--output_dir", "index", cwd=tmp_path)
    command = [kinspan, "serve", "--index", "index", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as service:
        ready = next(line for line in service.stderr if "ready: " in line)
        with urlopen(ready.split("ready: ")[1].strip()) as page:
            assert b"</html>" in page.read()
        service.terminate()
