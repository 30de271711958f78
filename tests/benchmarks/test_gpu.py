"""``make gpu``: its runner on checks that hang, fail and leave processes, and all of it with small models."""

import json
import os
import re
import subprocess
import sys
import time
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from benchmarks.gpu.kit import install_wheels
from benchmarks.gpu.pack import ALONE, BUILT, WITH_NEEDS
from benchmarks.gpu.plan import NAMES, STAGES, Check
from benchmarks.gpu.report import write_report
from benchmarks.gpu.runner import ENDED, FAILED, NO_TIME, PASSED, run_checks

ROOT = Path(__file__).resolve().parents[2]

# What worker.py is, in a few lines that import nothing: a check's function is run as code.
WORKER = """
import json, subprocess, sys
line = sys.stdin.readline()
def row(what, **figures):
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps({"type": "row", "check": told["check"], "what": what, "figures": figures, "holds": None}))
        file.write(chr(10))
if line:
    told = json.loads(line)
    exec(told["function"])
"""
SLEEP = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"


def run(tmp_path, *stages, seconds=60.0, tell=lambda line: None):
    program = [sys.executable, "-c", WORKER, str(tmp_path / "results.jsonl")]
    return run_checks(stages, program, {}, tmp_path, time.monotonic() + seconds, tell)


def test_a_check_that_hangs_or_fails_costs_no_other_its_result(tmp_path):
    """And what they had found before stands, in the results and in the table."""
    hangs = f"row('before it hung', speed=1.5); child = {SLEEP}; print('child', child.pid, flush=True); child.wait()"
    checks = [
        Check("measures", "row('some', **{'TFLOP/s': 394.0, 'bf16 product, TFLOP/s': 788.0})", 30),
        Check("hangs", hangs, 3),
        Check("fails", "row('one', speed=2.5); raise ValueError('not this way')", 30),
        Check("crashes", "import os; print('last words', flush=True); os.kill(os.getpid(), 11)", 30),
        Check("passes", "row('other', speed=3.5)", 30),
    ]
    outcomes = run(tmp_path, *([check] for check in checks))
    assert [o.outcome for o in outcomes] == [PASSED, ENDED, FAILED, FAILED, PASSED]
    assert [o.error for o in outcomes] == ["", "", "ValueError: not this way", "signal 11; last words", ""]
    child = int((tmp_path / "log.txt").read_text().split("child ")[1].split()[0])
    assert not is_running(child)
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [x["check"] for x in lines] == ["measures"] * 2 + ["hangs"] * 2 + ["fails"] * 2 + ["crashes"] + [
        "passes"
    ] * 2
    table = write_report(tmp_path, outcomes, 1.0)
    for part in ("fails: failed", "ValueError: not this way", "before it hung: speed 1.5", "one: speed 2.5"):
        assert part in table
    assert "% of the measured product 50" in table
    assert json.loads((tmp_path / "summary.json").read_text())["checks"][1]["outcome"] == ENDED
    assert not list(tmp_path.glob("worker-*"))


def is_running(pid):
    """Not so for a process that has ended and was not waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_does_not_fit_is_not_begun(tmp_path):
    """A check is ended when it takes twice its time; one that needs more than is left is skipped, with a line."""
    checks = [Check("long", "import time; time.sleep(60)", 0.5), Check("late", "row('never')", 300)]
    lines = []
    outcomes = run(tmp_path, [checks[0]], [checks[1]], seconds=100.0, tell=lines.append)
    assert [o.outcome for o in outcomes] == [ENDED, NO_TIME]
    assert "never" not in (tmp_path / "results.jsonl").read_text()
    assert re.fullmatch(r"late: skipped: it takes 300 s of \d+ left", lines[-1])


def test_the_checks_of_a_stage_run_at_once_and_one_after_it_has_its_time(tmp_path):
    """The two of a stage wait for each other; what comes before a check is not begun in the seconds kept for it."""
    meet = """
import pathlib, time
folder = pathlib.Path(sys.argv[1]).parent
(folder / told["check"]).touch()
while not all((folder / name).exists() for name in ("one", "two")):
    time.sleep(0.01)
"""
    together, after = [Check("one", meet, 50), Check("two", meet, 50)], Check("left out", "pass", 50)
    kept = Check("kept", "pass", 50, reserved=1000)
    assert [outcome.outcome for outcome in run(tmp_path, together)] == [PASSED] * 2
    outcomes = run(tmp_path, [after], [kept], seconds=900.0)
    assert [outcome.outcome for outcome in outcomes] == [NO_TIME, PASSED]


def test_the_plan_begins_with_what_is_right():
    assert {check.function.split(":")[0] for check in STAGES[0]} == {"correctness", "updates"}
    assert len(set(NAMES)) == len(NAMES)


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
    assert install_wheels(tmp_path, tmp_path / "site") == ["newcomer", "packaging"]
    assert {path.name for path in (tmp_path / "site").glob("*.py")} == {"newcomer.py", "packaging.py"}


# What a machine for GPUs has here: PyTorch, transformers, sentence-transformers, and what these need; see pack.py.
MACHINE = """fsspec huggingface-hub jinja2 ninja numpy psutil pyarrow pyyaml safetensors scikit-learn scipy
    sentence-transformers tensorboard tokenizers torch tqdm transformers"""


def test_training_imports_nothing_that_neither_kit_nor_machine_has():
    """Every other package that the project asks for raises when it is imported."""
    needed = {re.match(r"[\w-]+", line)[0].lower().replace("_", "-") for line in read_dependencies()}
    given = {*MACHINE.split(), BUILT, WITH_NEEDS, *ALONE}
    absent = needed - given
    owners = packages_distributions()
    modules = [name for name in owners if any(o.lower().replace("_", "-") in absent for o in owners[name])]
    assert {"bm25s", "blingfire", "datasets"} <= set(modules)
    program = f"""
import sys
sys.modules |= dict.fromkeys({modules!r})  # to import one raises
from benchmarks.gpu import correctness, speed, updates, waits
import launch.commands._stages, pretrain.run
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def read_dependencies():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


def test_without_a_kit_it_says_how_to_pack_one(tmp_path):
    done = run_command("--kit", str(tmp_path / "none"))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("by `make gpu-kit`")


def run_command(*flags, timeout=60):
    command = [sys.executable, "-m", "benchmarks.gpu", *flags]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=timeout)


@pytest.mark.slow
def test_everything_with_small_models(tmp_path, helpers):
    """Each check passes on a CPU, and leaves rows."""
    from benchmarks.gpu.pack import pack_materials
    from data_pipeline.core.default_model import default_model

    documents = helpers.synthetic_documents(60)
    source = helpers.write_jsonl(tmp_path / "documents.jsonl", documents)
    tokenizers = dict.fromkeys(("roberta", "bert"), default_model())
    pack_materials(tmp_path / "kit", source, 60, tokenizers)
    flags = ("--quick", "--kit", str(tmp_path / "kit"), "--output_dir", str(tmp_path / "out"))
    done = run_command(*flags, timeout=1400)
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert not [check for check in summary["checks"] if check["outcome"] != PASSED], done.stdout
    assert {row["check"] for row in summary["rows"]} == set(NAMES)
