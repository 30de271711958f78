"""What each rank knows of its host, as far as it can be known without the other ranks."""

import hashlib
import os
import platform
import re
import resource
import shutil
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import psutil
import torch

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import PROJECT_ROOT
from data_pipeline.core.settings import settings_of_identity
from data_pipeline.remote.address import is_remote
from data_pipeline.sources import list_paths
from data_pipeline.verification import find_cache
from pretrain.config import MUST_MATCH_ACROSS_RANKS, PretrainConfig
from pretrain.engine.run_folder import open_folder
from pretrain.engine.world import read_world
from pretrain.planning.corpora import list_sources

PACKAGES = ("data_pipeline", "objectives", "pretrain", "finetune", "launch")  # whose source is hashed
# Below it, not even the logs, pages and curves of a long run have room; checkpoints are counted apart.
MIN_OUTPUT = 1e9  # bytes
# What is written beside a run: marks of verified shards, compiled kernels, a launcher's files.
MIN_ELSEWHERE = 100e6  # bytes
# NCCL and gloo's shared-memory path take some ten megabytes for each pair of ranks; a container has 64 MB in all unless
# its shared memory was asked for (docker's --shm-size).
MIN_SHARED_MEMORY = 512e6  # bytes


@dataclass(frozen=True)
class Facts:
    """What one rank says of itself and its host.

    machine:      names the running machine, whatever it calls itself
    alike:        what must be the same everywhere, by check: versions and settings
    device_bytes: memory of the device, in all and free; of a processor that of the host
    disks:        where it will write, the output folder first: the purpose, the folder, its bytes free and needed
    refused:      why it cannot write to the output folder; empty where it can
    """

    host: str
    machine: str
    rank: int
    local_rank: int
    alike: dict[str, dict[str, Any]]
    device: str
    device_bytes: tuple[int, int]
    disks: list[tuple[str, str, float, float]]
    refused: str
    descriptors: int


def collect_facts(config: PretrainConfig) -> Facts:
    """The facts of this rank."""
    world = read_world(os.environ)
    device, memory = _find_device(world.local_rank)
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    agreed = {**settings_of_identity(config), **{name: getattr(config, name) for name in MUST_MATCH_ACROSS_RANKS}}
    settings = {f"--{name}": value for name, value in agreed.items()}
    refused = ""
    try:
        open_folder(config.output_dir)
    except KinspanError as error:
        refused = str(error)
    return Facts(
        host=socket.gethostname(),
        machine=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        rank=world.rank,
        local_rank=world.local_rank,
        alike={"versions": find_versions(), "settings": settings},
        device=device,
        device_bytes=memory,
        disks=find_disks(config, world.local_size),
        refused=refused,
        descriptors=descriptors if descriptors != resource.RLIM_INFINITY else 1 << 30,
    )


def find_versions() -> dict[str, str]:
    """The versions that must be equal everywhere."""
    try:
        needed = [
            re.split(r"[^\w-]", line, maxsplit=1)[0] for line in requires("kinspan") or [] if "extra ==" not in line
        ]
    except PackageNotFoundError:  # it runs from its source
        needed = ["deepspeed", "transformers", "tokenizers", "numpy", "pyarrow", "safetensors"]
    found = {"python": platform.python_version(), "kinspan's source": _hash_source()}
    for name in sorted(needed):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    found["torch"] = torch.__version__  # with the CUDA that it was built for
    if torch.cuda.is_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        with suppress(OSError):
            found["nvidia driver"] = Path("/sys/module/nvidia/version").read_text().strip()
    return found


def _hash_source() -> str:
    """Names the code of kinspan itself: two checkouts have one version."""
    digest = hashlib.sha256()
    for path in sorted(path for name in PACKAGES for path in (PROJECT_ROOT / name).rglob("*.py")):
        digest.update(f"{path.relative_to(PROJECT_ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _find_device(local_rank: int) -> tuple[str, tuple[int, int]]:
    """The device's name, and the bytes of its memory, in all and free; none of a device that cannot be used."""
    if not torch.cuda.is_available():
        memory = psutil.virtual_memory()
        return "processor", (memory.total, memory.available)
    if local_rank >= (count := torch.cuda.device_count()):
        return f"no GPU of its own, since its local rank is {local_rank} and it sees {count}", (0, 0)
    try:
        free, total = torch.cuda.mem_get_info(local_rank)
    except RuntimeError as error:  # CUDA's, of a GPU that is broken, or another process's alone
        return f"a GPU that fails ({quote_error(error)})", (0, 0)
    return torch.cuda.get_device_name(local_rank), (total, free)


def find_disks(config: PretrainConfig, local_size: int) -> list[tuple[str, str, float, float]]:
    """The folders that a run writes to."""
    remote = any(map(is_remote, list_paths(list_sources(config))))
    cache = Path(config.cache_dir) if remote and config.cache_dir else find_cache()
    places = [("--output_dir", Path(config.output_dir), MIN_OUTPUT), ("the cache", cache, MIN_ELSEWHERE)]
    places += [("temporary files", Path(tempfile.gettempdir()), MIN_ELSEWHERE)]
    if local_size > 1:
        places += [("shared memory", Path("/dev/shm"), MIN_SHARED_MEMORY)]
    disks: list[tuple[str, str, float, float]] = []
    for purpose, place, needed in places:
        there = next(path for path in [place.absolute(), *place.absolute().parents] if path.exists())
        disks.append((purpose, str(place), shutil.disk_usage(there).free, needed))
    return disks
