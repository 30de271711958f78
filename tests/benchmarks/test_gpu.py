"""``make gpu``: its runner on checks that hang, fail and leave processes, and all of it with small models."""

import json
import lzma
import os
import re
import subprocess
import sys
import time
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.pack import ALONE, BUILT, WITH_NEEDS, pack_materials
from data_pipeline.core.default_model import default_model

ROOT = Path(__file__).resolve().parents[2]

# Stands in for worker.py, without its imports: a check's name says what it does.
WORKER = """
import json, os, pathlib, subprocess, sys, time
def add(**line):
    with open(sys.argv[1] + "/results.jsonl", "a") as file:
        file.write(json.dumps({"check": name, **line}) + chr(10))
for name in sys.argv[2:]:
    add(what="before", figures={"speed": 1.5}, holds=None)
    if name == "hangs":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print("child", child.pid, flush=True)
        child.wait()
    if name == "crashes":
        os.kill(os.getpid(), 11)
    if name.startswith("meets"):
        pathlib.Path(sys.argv[1], name).touch()
        while len(list(pathlib.Path(sys.argv[1]).glob("meets ?"))) < 2:
            time.sleep(0.01)
    add(outcome="passed")
"""


def test_checks_run_at_once_and_one_that_hangs_or_crashes_costs_no_other_its_result(tmp_path):
    """And what was measured before stands, in the results and in the table."""
    groups = [["meets 1"], ["meets 2"], ["hangs"], ["crashes", "late"]]
    gpu.run_at_once(groups, [sys.executable, "-c", WORKER, str(tmp_path)], tmp_path, time.monotonic() + 5)
    results = gpu.read_results(tmp_path)
    outcomes = {line["check"]: line["outcome"] for line in results if "outcome" in line}
    ended = {"hangs": "ended at its limit", "crashes": "failed: status -11"}
    assert outcomes == {"meets 1": "passed", "meets 2": "passed", **ended}
    child = int((tmp_path / "log.txt").read_text().split()[-1])
    deadline = time.monotonic() + 30  # a killed process takes a moment on a busy machine
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    table = "\n".join(gpu.format_table(["meets 1", "hangs", "late"], results))
    assert table.count("before: speed 1.5") == 2
    assert "late: not begun" in table


def test_only_what_the_machine_lacks_is_installed(tmp_path):
    """Or has in an older version: a package of the machine is never shadowed by the same or an older one."""
    (tmp_path / "wheels").mkdir()
    for name, version in (("newcomer", "1.0"), ("numpy", "0.1"), ("packaging", "9999.0")):
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(tmp_path / "wheels" / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", "")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    assert gpu.install_wheels(tmp_path, tmp_path / "site") == ["newcomer", "packaging"]
    assert {path.name for path in (tmp_path / "site").glob("*.py")} == {"newcomer.py", "packaging.py"}


# What a machine for GPUs has here: PyTorch, transformers, sentence-transformers, and what these need.
MACHINE = """fsspec huggingface-hub jinja2 matplotlib ninja numpy psutil pyarrow pyyaml safetensors scikit-learn scipy
    sentence-transformers tensorboard tokenizers torch tqdm transformers xxhash"""


def test_training_imports_nothing_that_neither_kit_nor_machine_has():
    """Every other package that the project asks for raises when it is imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["rank"], *extras["prepare"], *extras["plots"]]
    needed = {re.match(r"[\w-]+", line)[0].lower().replace("_", "-") for line in asked}
    absent = needed - {*MACHINE.split(), BUILT, WITH_NEEDS, *map(str.lower, ALONE)}
    owners = packages_distributions()
    modules = [name for name in owners if any(o.lower().replace("_", "-") in absent for o in owners[name])]
    assert {"blingfire", "datasets"} <= set(modules)
    program = f"""
import importlib.metadata, sys
find = importlib.metadata.metadata
importlib.metadata.metadata = lambda name: find("absent" if name == "datasets" else name)
sys.modules |= dict.fromkeys({modules!r})  # to import one raises
from benchmarks.dose import run
from benchmarks.gpu import checks, speed, worker
import finetune.training.experiment
import pretrain.run
from finetune.adapt.questions import SELQA
finetune.training.experiment.score_bm25(run.load_split(f"files={{SELQA}}", "test"))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_a_kit_it_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu", "--kit", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match="2"):
        gpu.main()
    assert "--kit" in capsys.readouterr().err


@pytest.mark.slow
def test_everything_with_small_models(tmp_path, helpers):
    """Each check passes on a CPU, and leaves rows."""
    with lzma.open(tmp_path / "documents.jsonl.xz", "wt") as file:
        file.writelines(json.dumps(document) + "\n" for document in helpers.synthetic_documents(60))
    tokenizers = dict.fromkeys(("roberta", "bert"), default_model())
    pack_materials(tmp_path / "kit", tmp_path / "documents.jsonl.xz", 60, tokenizers)
    command = [sys.executable, "-m", "benchmarks.gpu", "--quick", "--kit", str(tmp_path / "kit"), "--output_dir"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(tmp_path / "out")], cwd=ROOT, env=variables, capture_output=True, text=True)
    results = gpu.read_results(tmp_path / "out")
    assert done.returncode == 0, done.stdout
    assert {line["check"] for line in results if "figures" in line} == set(gpu.ALL)
