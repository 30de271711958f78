"""Runs over several hosts, by each launcher; see namespaces.py for the hosts."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.materials import ROOT, Materials
from tests.chaos.starts import environment, free_port
from tests.cluster.namespaces import Host, command_on, make_ssh, running, start_sshd, wait_for_all

PORT = "29500"  # of rank 0; each set of hosts has a network of its own
LAUNCHERS = ("plain", "torchrun", "deepspeed")
# Small, and so few steps that a run is over in seconds; see chaos/materials.py for the rest.
# A rank that is cut off is noticed by its silence before the others count as stalled, as by default.
SETTINGS: dict[str, Any] = {"max_steps": 24, "save_steps": 4, "log_steps": 1, "eval_steps": 12, "stall_minutes": 10.0}


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Materials:
    made = Materials(tmp_path_factory.mktemp("materials"))
    made.make()
    return made


def list_flags(settings: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in settings.items()]


def make_commands(
    hosts: Sequence[Host],
    program: Sequence[str],
    launcher: str,
    folder: Path,
    first: dict[str, Sequence[str]] | None = None,
    before: dict[str, Sequence[str]] | None = None,
) -> list[list[str]]:
    """A command line for each host, or, of the deepspeed launcher, for the first alone. One rank per host.

    program: the script, and its arguments
    first:   by a host's name, what is run before its command (see command_on)
    before:  by a host's name, what stands before its command, such as faketime
    """
    first, before, world = first or {}, before or {}, len(hosts)
    if launcher == "deepspeed":
        (folder / "hostfile").write_text("".join(f"{host.name} slots=1\n" for host in hosts))
        flags = ["--hostfile", str(folder / "hostfile"), "--master_addr", hosts[0].address, "--master_port", PORT]
        runner = str(Path(sys.executable).parent / "deepspeed")
        return [command_on(hosts[0], runner, *flags, *program, first=make_ssh(folder))]
    commands = []
    for rank, host in enumerate(hosts):
        own = ["env", f"MASTER_ADDR={hosts[0].name}", f"MASTER_PORT={PORT}", f"WORLD_SIZE={world}"]
        own += [f"RANK={rank}", "LOCAL_RANK=0", sys.executable]
        if launcher == "torchrun":
            flags = ["--nnodes", str(world), "--nproc_per_node", "1", "--rdzv_backend", "c10d", "--rdzv_id", "job"]
            own = [sys.executable, "-m", "torch.distributed.run", *flags]
            own += ["--rdzv_endpoint", f"{hosts[0].name}:{PORT}"]
        wrapped = [*before.get(host.name, ()), *own, *program]
        commands.append(command_on(host, *wrapped, first=first.get(host.name, ())))
    return commands


@contextmanager
def start_on(
    hosts: Sequence[Host], program: Sequence[str], launcher: str, folder: Path, variables: dict[str, str], **harm: Any
) -> Iterator[tuple[list[subprocess.Popen], list[Path]]]:
    """Starts a program on the hosts, one rank each, and yields the processes and their logs.

    variables: of the environment, beside those that all have
    harm:      first and before of make_commands
    """
    env = environment(**variables)
    daemons = []
    if launcher == "deepspeed":
        for tool in ("sshd", "pdsh"):
            if not shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin"):
                pytest.skip(f"{tool} is not installed")
        passed = {name: env[name] for name in ("OMP_NUM_THREADS", "HF_HUB_OFFLINE", "PYTHONPATH") if name in env}
        daemons = [start_sshd(host, folder, **passed, **variables) for host in hosts]
    commands = make_commands(hosts, program, launcher, folder, **harm)
    logs = [folder / f"{launcher}-{number}-{time.monotonic_ns()}.log" for number in range(len(commands))]
    try:
        with running(commands, logs, env=env, cwd=ROOT) as started:
            yield started, logs
    finally:
        for daemon in daemons:
            daemon.kill()  # with all that it started
            daemon.wait()


def run_on(
    hosts: Sequence[Host], program: Sequence[str], launcher: str, folder: Path, seconds: float = 300.0, **harm: Any
) -> tuple[list[int], list[str]]:
    """Runs a program on the hosts to its end: the statuses, and what each printed."""
    with start_on(hosts, program, launcher, folder, {}, **harm) as (started, logs):
        statuses = wait_for_all(started, seconds)
    return statuses, [log.read_text(errors="replace") for log in logs]


def run_here(program: Sequence[str], world: int, folder: Path, seconds: float = 300.0) -> None:
    """The same on this machine alone, as so many plain processes."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(world)}
    lines = [[f"{k}={v}" for k, v in common.items()] + [f"RANK={r}", f"LOCAL_RANK={r}"] for r in range(world)]
    commands = [["env", *variables, sys.executable, *program] for variables in lines]
    logs = [folder / f"here-{rank}-{time.monotonic_ns()}.log" for rank in range(world)]
    with running(commands, logs, env=environment(), cwd=ROOT) as started:
        statuses = wait_for_all(started, seconds)
    assert not any(statuses), logs[0].read_text()
