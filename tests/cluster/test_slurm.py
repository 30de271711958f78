"""launch/slurm on a real Slurm of three machines: what is struck down ends as if nothing had been.

Minutes each. They are skipped, with the reason, where no Slurm can be started.
"""

import re
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.materials import Cell
from tests.cluster.jobs import materials as materials
from tests.cluster.slurm import Slurm, find_lack
from tests.pretrain.steps import read_weights, same

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
# What takes the place of launch/pretrain.py in the folder that jobs are submitted from: the same, in slow motion.
SLOW_MOTION = """
import os, runpy, sys, time
sys.path[0] = {root!r}
sys.modules.pop("launch")
from pretrain import run
step = run.train_step
run.train_step = lambda *a, **k: time.sleep({pause} * os.path.exists({folder!r} + "/slow")) or step(*a, **k)
sys.argv[0] = {root!r} + "/launch/pretrain.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""
STEPS = 120
NODES = ("--nodes=2", "--ntasks-per-node=1")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if lack := find_lack():
        pytest.skip(lack)
    started = Slurm.start(tmp_path_factory.mktemp("slurm") / "state", num_nodes=3)
    yield started
    started.stop()


class Job:
    """A batch job of two nodes, in a folder of its own."""

    def __init__(self, slurm, materials, folder, pause=0.0, options=NODES, **variables):
        self.slurm, self.folder, self.output = slurm, folder, folder / "run"
        (folder / "launch").mkdir(parents=True)
        (folder / "launch/__init__.py").touch()
        (folder / "launch/slurm").symlink_to(ROOT / "launch/slurm")
        (folder / "launch/pretrain.py").write_text(SLOW_MOTION.format(root=str(ROOT), folder=str(folder), pause=pause))
        (folder / "slow").touch()
        (folder / "environment.sh").write_text(
            f"export PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={ROOT} OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1\n"
        )
        pace = {"max_steps": STEPS, "save_steps": 10, "eval_steps": 60, "stall_minutes": 5}
        settings = materials.settings(Cell(), self.output, **pace)
        settings["deepspeed_config"] = ROOT / settings["deepspeed_config"]
        flags = [f"--{name}={value}" for name, value in settings.items()]
        given = {"NODE_ENVIRONMENT": str(folder / "environment.sh"), **variables}
        command = ["sbatch", "--parsable", "--job-name=tiny", *options]
        environment = {**slurm.environment, **given}
        self.number = slurm.call(*command, "launch/slurm/pretrain.sbatch", *flags, cwd=folder, env=environment)

    @property
    def said(self):
        """What the batch script has said so far."""
        path = self.folder / f"tiny-{self.number}.out"
        return path.read_text() if path.exists() else ""

    @property
    def logs(self):
        """What the ranks have said, each start's and rank's after the other."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("logs/**/*.log")))

    @property
    def step(self):
        return max(map(int, re.findall(r"step (\d+)/", self.logs)), default=0)

    @property
    def state(self):
        return self.slurm.call("squeue", "--noheader", "--jobs", self.number, "--states=all", "--format=%T")

    def hurry(self):
        """Ends the slow motion."""
        (self.folder / "slow").unlink()

    def wait(self, true, seconds=300):
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, f"{self.state}\n{self.said}\n{self.logs[-3000:]}"
            time.sleep(0.5)

    def finish(self, seconds=500):
        self.wait(lambda: self.state in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"), seconds)
        assert self.state == "COMPLETED", f"{self.said}\n{self.logs[-3000:]}"
        return read_weights(self.output, STEPS)

    @property
    def starts(self):
        return self.said.count("\nstart ") + self.said.startswith("start ")


@pytest.fixture(scope="module")
def uninterrupted(slurm, materials, tmp_path_factory):
    """The weights of two ranks on two nodes that nothing happened to."""
    job = Job(slurm, materials, tmp_path_factory.mktemp("plain") / "job")
    weights = job.finish()
    assert job.starts == 1
    assert "2 rank(s)" in job.logs
    return weights


def test_a_requeue_and_three_time_limits_later_the_weights_are_the_same(slurm, materials, uninterrupted, tmp_path):
    options = [*NODES, "--time=2", "--signal=B:USR1@5"]  # which is 85 to 115 s after the start
    job = Job(slurm, materials, tmp_path / "job", pause=3.0, options=options)
    job.wait(lambda: job.step >= 9)
    slurm.call("scontrol", "requeue", job.number)
    job.wait(lambda: job.said.count("queued again") >= 3, 900)
    job.hurry()
    weights = job.finish()
    assert "DUE TO JOB REQUEUE" in job.said
    assert job.said.count("asked to stop: the ranks write a checkpoint and end") >= 4  # at the requeue, too
    assert "was lost" not in job.said  # as by a signal to the start before
    assert job.starts >= 5
    assert "Traceback" not in job.logs
    assert same(weights, uninterrupted)


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_launcher_on_each_node_is_stopped_and_goes_on(launcher, slurm, materials, uninterrupted, tmp_path):
    job = Job(slurm, materials, tmp_path / "job", pause=0.1, LAUNCHER=launcher)
    job.wait(lambda: job.step >= 30)
    slurm.call("scancel", "--batch", "--signal=USR1", job.number)
    job.wait(lambda: "queued again" in job.said, 100)
    assert "stopped at step" in job.logs
    weights = job.finish()
    assert job.starts == 2
    assert same(weights, uninterrupted)


def test_a_job_of_higher_priority_comes_first(slurm, materials, uninterrupted, tmp_path):
    """What it preempts writes a checkpoint in the time of grace, and goes on afterwards."""
    job = Job(slurm, materials, tmp_path / "job", pause=0.1)
    job.wait(lambda: job.step >= 30)
    slurm.call("srun", "--partition=urgent", "--nodes=3", "--exclusive", "sleep", "1", timeout=100)
    weights = job.finish()
    assert "stopped at step" in job.logs
    assert job.starts == 2
    assert same(weights, uninterrupted)


def test_a_machine_that_disappears_is_named_and_the_others_go_on(slurm, materials, tmp_path):
    """It is the last of three; two are left, which is another number of ranks."""
    job = Job(slurm, materials, tmp_path / "job", pause=0.1, options=["--nodes=2-3", "--exclusive"])
    job.wait(lambda: job.step >= 60)
    began = time.monotonic()
    slurm.lose_node("node3")
    try:
        named = re.compile(r"error: rank 2 \(process \d+ on node3\) has given no sign of life for 60 s")
        job.wait(lambda: named.search(job.said), 300)
        assert time.monotonic() - began < 220  # 60 s of silence, 60 s of srun for the other ranks, 32 s for the node
        weights = job.finish()
    finally:
        slurm.restore_node("node3")
    assert "queued again" in job.said
    assert " on node[1-2]: 1 ranks" in job.said
    assert weights
