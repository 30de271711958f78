"""Reads the launchers' variables: the rank of this process, the number of ranks, and the address of rank 0.

| started by | it sets |
|---|---|
| torchrun, accelerate, a PyTorchJob | RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT |
| deepspeed | the same, but LOCAL_SIZE and CROSS_SIZE (the number of machines) in place of LOCAL_WORLD_SIZE |
| srun, a task for each rank | SLURM_PROCID, SLURM_LOCALID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST |
| nobody | nothing: a world of one rank |

``read_world`` does not import torch, so that a command can refuse impossible variables at once.
"""

import os
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import psutil

from data_pipeline.core.errors import KinspanError

DEFAULT_PORT = "29500"  # the default of all launchers
LOOPBACK = "127.0.0.1"
DEEPSPEED_VARIABLE = "CROSS_SIZE"
LAUNCHER = "deepspeed.launcher.launch"
# Linux never assigns these ports by itself.
FIRST_PORT, NUM_PORTS = 10_000, 22_000
COUNTS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class World(NamedTuple):
    """Locates this rank, and rank 0, which listens at ``host`` and ``port``; a single rank may have no port."""

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
    """Returns the world that these environment variables describe; a launcher's take precedence over ``srun``'s."""
    if "RANK" in env:
        world = _read_launcher(env)
    elif _read_int(env, "SLURM_STEP_NUM_TASKS", 1) > 1:
        world = _read_slurm(env)
    else:
        return World()
    if not 0 <= world.local_rank <= world.rank < world.size:
        raise KinspanError(
            f"the launcher's variables are invalid: rank {world.rank} of {world.size}, local rank {world.local_rank}; "
            "unset RANK, LOCAL_RANK and WORLD_SIZE, or give those of one launcher"
        )
    return world


def _read_launcher(env: Mapping[str, str]) -> World:
    size = _read_int(env, "WORLD_SIZE", 1)
    local_size = _read_int(env, "LOCAL_WORLD_SIZE", _read_int(env, "LOCAL_SIZE", size))
    port = env.get("MASTER_PORT") or (DEFAULT_PORT if size > 1 else None)
    if env.get(DEEPSPEED_VARIABLE) == "1" and port == DEFAULT_PORT:
        port = _choose_port()
    rank, local_rank = _read_int(env, "RANK", 0), _read_int(env, "LOCAL_RANK", 0)
    return World(rank, local_rank, size, local_size, env.get("MASTER_ADDR") or LOOPBACK, port)


def _read_slurm(env: Mapping[str, str]) -> World:
    """Returns the world of a task of ``srun``; rank 0 is on the first machine, its port depends on the job step."""
    size = _read_int(env, "SLURM_STEP_NUM_TASKS", 1)
    tasks_per_node = expand_counts(env.get("SLURM_STEP_TASKS_PER_NODE", str(size)))
    node = _read_int(env, "SLURM_NODEID", 0)
    if node >= len(tasks_per_node):
        raise KinspanError(f"SLURM_NODEID is {node}, but SLURM_STEP_TASKS_PER_NODE has {len(tasks_per_node)} machines")
    host = env.get("MASTER_ADDR") or find_first_host(env.get("SLURM_STEP_NODELIST", "")) or LOOPBACK
    if host == LOOPBACK and len(tasks_per_node) > 1:
        raise KinspanError(
            "srun started tasks on several machines, and SLURM_STEP_NODELIST does not name the first: add a line "
            "before srun: export MASTER_ADDR=$(scontrol show hostnames | head -n 1)"
        )
    job_step = f"{env.get('SLURM_JOB_ID')}.{env.get('SLURM_STEP_ID')}"
    rank, local_rank = _read_int(env, "SLURM_PROCID", 0), _read_int(env, "SLURM_LOCALID", 0)
    return World(rank, local_rank, size, tasks_per_node[node], host, env.get("MASTER_PORT") or derive_port(job_step))


def adopt_world() -> World:
    """Sets this process's variables for torch and DeepSpeed to the values of ``read_world``, and returns these."""
    from torch.distributed.elastic.utils.distributed import get_free_port

    world = read_world(os.environ)
    os.environ |= {
        "RANK": str(world.rank),
        "LOCAL_RANK": str(world.local_rank),
        "WORLD_SIZE": str(world.size),
        "MASTER_ADDR": world.host,
        "MASTER_PORT": world.port or str(get_free_port()),
    }
    if world.size > 1:
        os.environ["LOCAL_WORLD_SIZE"] = str(world.local_size)
    return world


def find_first_host(hosts: str) -> str:
    """Returns the first host in a node list of Slurm: gpu01 in ``gpu[01-03,07],login``."""
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", hosts).partition(",")[0]


def expand_counts(text: str) -> list[int]:
    """Returns the numbers in Slurm's ``8(x2),4``: 8, 8 and 4."""
    return [int(count) for count, times in COUNTS.findall(text) for _ in range(int(times or 1))]


def derive_port(name: str) -> str:
    """Returns a port that depends on the name alone, so that all ranks derive the same one."""
    return str(FIRST_PORT + zlib.crc32(name.encode()) % NUM_PORTS)


def _choose_port() -> str:
    """Derives a port from the process id of DeepSpeed's launcher, which gives all runs the same port."""
    launcher = next((process for process in psutil.Process().parents() if LAUNCHER in process.cmdline()), None)
    if launcher is None:
        return DEFAULT_PORT
    name = str(launcher.pid)
    with suppress(OSError):  # containers may share ports, but not this namespace
        name += os.readlink("/proc/self/ns/pid")
    return derive_port(name)


def _read_int(env: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(env.get(name, default))
    except ValueError:
        raise KinspanError(f"the variable {name} is {env[name]!r}, and must be a number: unset it") from None
