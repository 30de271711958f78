"""Ranks of a few processes that import torch alone, and what the environment says of them."""

import os
import resource
import socket
import subprocess
import sys

import pytest

from data_pipeline.errors import KinspanError
from pretrain.runtime.engine import raise_descriptor_limit, read_launcher_variables

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_WORLD_SIZE")
SLURM = {"SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}
SLURM |= {"SLURM_PROCID": "11", "SLURM_LOCALID": "3"}
COUNT = """
import os
import torch.distributed as dist
from pretrain.runtime import ranks
dist.init_process_group("gloo")
counts = []
for name in ("control", "writer"):
    ranks.process_group(name)
    ranks.gather(None, name)
    counts.append(len(os.listdir("/proc/self/fd")))
print(counts[1] - counts[0])
"""


@pytest.fixture
def environment(monkeypatch):
    for name in (*VARIABLES, *SLURM):
        monkeypatch.setenv(name, "")  # so that what the test sets is taken back
        monkeypatch.delenv(name)
    return monkeypatch


def test_a_task_of_srun_is_a_rank(environment):
    for name, value in {**SLURM, "MASTER_ADDR": "node-1"}.items():
        environment.setenv(name, value)
    assert read_launcher_variables() == (11, 3, 16)
    assert os.environ["LOCAL_WORLD_SIZE"] == "8"


def test_the_launcher_counts_and_not_the_task_that_it_is(environment):
    for name, value in {**SLURM, "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}.items():
        environment.setenv(name, value)
    assert read_launcher_variables() == (1, 1, 4)


def test_a_batch_script_without_srun_is_one_rank(environment):
    environment.setenv("SLURM_NTASKS", "16")
    environment.setenv("SLURM_PROCID", "0")
    assert read_launcher_variables() == (0, 0, 1)


def test_tasks_on_several_machines_must_know_the_first(environment):
    for name, value in SLURM.items():
        environment.setenv(name, value)
    with pytest.raises(KinspanError, match="export MASTER_ADDR="):
        read_launcher_variables()


def test_as_many_descriptors_as_the_system_allows():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_group_takes_one_descriptor_per_other_rank():
    """And a few for itself. So two groups of 512 ranks need more than the usual limit of 1,024."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {**os.environ, "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, "-c", COUNT]
    started = [
        subprocess.Popen(command, env={**common, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    for process in started:
        assert 2 <= int(process.communicate(timeout=100)[0]) <= 6
