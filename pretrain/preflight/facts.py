"""What each rank knows of its host, as far as it can be known without the other ranks."""

import hashlib
import math
import os
import platform
import re
import resource
import shutil
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import psutil
import torch

from data_pipeline.errors import quote_error
from data_pipeline.files import BESIDE_THE_PACKAGES
from data_pipeline.remote.address import is_remote
from data_pipeline.sources import list_paths
from data_pipeline.verification import find_cache
from pretrain.config import ALIKE, PretrainConfig
from pretrain.planning.corpora import list_sources
from pretrain.runtime.settings import settings_of_identity
from pretrain.runtime.world import read_world

PACKAGES = ("data_pipeline", "objectives", "pretrain", "finetune", "launch")  # whose source is hashed
OUTPUT, CACHE, TEMPORARY, SHARED_MEMORY = "--output_dir", "the cache", "temporary files", "shared memory"


@dataclass(frozen=True)
class Facts:
    """What one rank says of itself and its host.

    versions:     of Python, of each package that kinspan needs (None: not installed), of CUDA's parts, and a hash of
                  the source
    device:       what it computes with
    device_bytes: memory of the device, in all and free; of a processor that of the host
    cores:        that this process may use
    disks:        where it will write: folder and free bytes, by purpose
    descriptors:  how many files a process may open at most
    settings:     those that all ranks must agree on
    machine:      names the running machine, whatever it calls itself
    """

    host: str
    rank: int
    local_rank: int
    versions: dict[str, str | None]
    device: str
    device_bytes: tuple[int, int]
    cores: int
    disks: dict[str, tuple[str, int]]
    descriptors: int
    settings: dict[str, Any]
    machine: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def first_of_each_host(facts: Sequence[Facts]) -> dict[str, Facts]:
    """The lowest rank's facts of each host, in order of rank."""
    found: dict[str, Facts] = {}
    for one in facts:
        found.setdefault(one.host, one)
    return found


def collect_facts(config: PretrainConfig) -> Facts:
    """The facts of this rank."""
    world = read_world(os.environ)
    device, memory = _find_device(world.local_rank)
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    agreed = {**settings_of_identity(config), **{name: getattr(config, name) for name in ALIKE}}
    return Facts(
        host=socket.gethostname(),
        rank=world.rank,
        local_rank=world.local_rank,
        versions=find_versions(),
        device=device,
        device_bytes=memory,
        cores=len(os.sched_getaffinity(0)),
        disks=find_disks(config),
        descriptors=descriptors if descriptors != resource.RLIM_INFINITY else 1 << 30,
        settings=agreed,
        machine=_name_machine(),
    )


def _name_machine() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def find_versions() -> dict[str, str | None]:
    """The versions that must be equal everywhere."""
    try:
        needed = [
            re.split(r"[^\w-]", line, maxsplit=1)[0] for line in requires("kinspan") or [] if "extra ==" not in line
        ]
    except PackageNotFoundError:  # it runs from its source
        needed = ["deepspeed", "transformers", "tokenizers", "numpy", "pyarrow", "safetensors"]
    found: dict[str, str | None] = {"python": platform.python_version(), "kinspan's source": _hash_source()}
    found |= {name: _find_version(name) for name in sorted(needed) if name != "torch"}
    found["torch"] = torch.__version__  # with the CUDA that it was built for
    if torch.cuda.is_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        driver = Path("/proc/driver/nvidia/version")
        found["nvidia driver"] = driver.read_text().splitlines()[0] if driver.exists() else None
    return found


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _hash_source() -> str:
    """Names the code of kinspan itself: two checkouts have one version."""
    digest = hashlib.sha256()
    for path in sorted(path for name in PACKAGES for path in (BESIDE_THE_PACKAGES / name).rglob("*.py")):
        digest.update(f"{path.relative_to(BESIDE_THE_PACKAGES)}\n".encode() + path.read_bytes())
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


def find_disks(config: PretrainConfig) -> dict[str, tuple[str, int]]:
    """The folders that a run writes to, and their free bytes."""
    remote = any(map(is_remote, list_paths(list_sources(config))))
    cache = Path(config.cache_dir) if remote and config.cache_dir else find_cache()
    places = {OUTPUT: Path(config.output_dir), CACHE: cache, TEMPORARY: Path(tempfile.gettempdir())}
    if read_world(os.environ).local_size > 1:
        places[SHARED_MEMORY] = Path("/dev/shm")
    return {purpose: (str(place), _find_free(place)) for purpose, place in places.items()}


def _find_free(place: Path) -> int:
    """The free bytes where this folder is, or will be."""
    there = next(path for path in [place.absolute(), *place.absolute().parents] if path.exists())
    return shutil.disk_usage(there).free


def show_bytes(count: float) -> str:
    """A number of bytes, such as "3.2 GB"."""
    if not math.isfinite(count):
        return "no end of bytes"
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.0f} kB"
