"""Which rank this process is, of how many, and where rank 0 is: the one place that reads the launchers' variables.

| started by | it sets |
|---|---|
| torchrun, accelerate, a PyTorchJob | RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT |
| deepspeed | the same, but LOCAL_SIZE and CROSS_SIZE (the number of machines) in place of LOCAL_WORLD_SIZE |
| srun, a task for each rank | SLURM_PROCID, SLURM_LOCALID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST |
| nobody | nothing: a world of one rank |

It imports no torch, so that a command can refuse a world that cannot be at once.
"""

import os
import re
import socket
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import psutil

from data_pipeline.core.errors import KinspanError

DEFAULT_PORT = "29500"  # of the launchers
LOOPBACK = "127.0.0.1"
DEEPSPEED_VARIABLE = "CROSS_SIZE"
LAUNCHER = "deepspeed.launcher.launch"
# Ports that Linux does not give out by itself.
FIRST_PORT, NUM_PORTS = 10_000, 22_000
COUNTS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class World(NamedTuple):
    """Holds where this rank is; rank 0 listens at host and port, which is None where there is but this rank."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    local_size: int = 1
    host: str = LOOPBACK
    port: str | None = None


def read_launcher_variables() -> tuple[int, int, int]:
    """Returns rank, local rank and world size; 0, 0 and 1 without a launcher."""
    return read_world(os.environ)[:3]


def read_world(env: Mapping[str, str]) -> World:
    """Returns the world of a process with these variables; those of a launcher count before those of ``srun``."""
    if "RANK" in env:
        world = _read_launcher(env)
    elif _count(env, "SLURM_STEP_NUM_TASKS", 1) > 1:
        world = _read_slurm(env)
    else:
        return World()
    if not 0 <= world.local_rank <= world.rank < world.size:
        raise KinspanError(
            f"the launcher's variables cannot be: rank {world.rank} of {world.size}, local rank {world.local_rank}; "
            "unset RANK, LOCAL_RANK and WORLD_SIZE, or give those of one launcher"
        )
    return world


def _read_launcher(env: Mapping[str, str]) -> World:
    size = _count(env, "WORLD_SIZE", 1)
    local_size = _count(env, "LOCAL_WORLD_SIZE", _count(env, "LOCAL_SIZE", size))
    port = env.get("MASTER_PORT") or (DEFAULT_PORT if size > 1 else None)
    if env.get(DEEPSPEED_VARIABLE) == "1" and port == DEFAULT_PORT:
        port = _choose_port()
    rank, local_rank = _count(env, "RANK", 0), _count(env, "LOCAL_RANK", 0)
    return World(rank, local_rank, size, local_size, env.get("MASTER_ADDR") or LOOPBACK, port)


def _read_slurm(env: Mapping[str, str]) -> World:
    """Returns a task of ``srun`` as a rank; all meet at the first machine, at a port derived from the step."""
    size = _count(env, "SLURM_STEP_NUM_TASKS", 1)
    on_machines = expand_counts(env.get("SLURM_STEP_TASKS_PER_NODE", str(size)))
    node = _count(env, "SLURM_NODEID", 0)
    if node >= len(on_machines):
        raise KinspanError(f"SLURM_NODEID is {node}, but SLURM_STEP_TASKS_PER_NODE has {len(on_machines)} machines")
    host = env.get("MASTER_ADDR") or find_first_host(env.get("SLURM_STEP_NODELIST", "")) or LOOPBACK
    if host == LOOPBACK and len(on_machines) > 1:
        raise KinspanError(
            "srun started tasks on several machines, and SLURM_STEP_NODELIST does not name the first: add a line "
            "before srun: export MASTER_ADDR=$(scontrol show hostnames | head -n 1)"
        )
    step = f"{env.get('SLURM_JOB_ID')}.{env.get('SLURM_STEP_ID')}"
    rank, local_rank = _count(env, "SLURM_PROCID", 0), _count(env, "SLURM_LOCALID", 0)
    return World(rank, local_rank, size, on_machines[node], host, env.get("MASTER_PORT") or derive_port(step))


def adopt_world() -> World:
    """Sets the variables that torch and DeepSpeed read, in this process, as ``read_world`` says; returns that."""
    world = read_world(os.environ)
    os.environ |= {
        "RANK": str(world.rank),
        "LOCAL_RANK": str(world.local_rank),
        "WORLD_SIZE": str(world.size),
        "MASTER_ADDR": world.host,
        "MASTER_PORT": world.port or _free_port(),
    }
    if world.size > 1:
        os.environ["LOCAL_WORLD_SIZE"] = str(world.local_size)
    return world


def find_first_host(hosts: str) -> str:
    """Returns the first name in a list of Slurm's: gpu01 of ``gpu[01-03,07],login``."""
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", hosts).partition(",")[0]


def expand_counts(text: str) -> list[int]:
    """Returns the numbers in Slurm's ``8(x2),4``: 8, 8 and 4."""
    return [int(count) for count, times in COUNTS.findall(text) for _ in range(int(times or 1))]


def derive_port(name: str) -> str:
    """Returns a port that everybody who knows the name derives alike."""
    return str(FIRST_PORT + zlib.crc32(name.encode()) % NUM_PORTS)


def _choose_port() -> str:
    """Returns a port by the launcher's process number, for DeepSpeed's launcher gives the same one to all runs."""
    above = psutil.Process().parents()
    launcher = next((process for process in above if LAUNCHER in process.cmdline()), None)
    if launcher is None:
        return DEFAULT_PORT
    name = str(launcher.pid)
    with suppress(OSError):  # containers may share ports, but not this
        name += os.readlink("/proc/self/ns/pid")
    return derive_port(name)


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return str(probe.getsockname()[1])


def _count(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise KinspanError(f"the variable {name} is {text!r}, and must be a number: unset it") from None
