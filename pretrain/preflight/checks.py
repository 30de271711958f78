"""What the facts of all hosts say: a function for each check, a named threshold with its reason for each limit."""

from collections.abc import Sequence
from statistics import median

from data_pipeline.remote.address import is_remote
from data_pipeline.sources import list_paths
from pretrain.config import DataSettings
from pretrain.planning.corpora import list_sources
from pretrain.runtime.run_folder import shorten

from .facts import CACHE, OUTPUT, SHARED_MEMORY, TEMPORARY, Facts, first_of_each_host, show_bytes
from .report import Finding, compare

# Time services keep hosts within milliseconds of one another: seconds say that none runs, and then it drifts on. S3
# refuses requests that are 15 minutes off, Slurm's munge those of 5; before that, shared storage and logs go astray.
MAX_SKEW = 5.0  # seconds
# Below it, not even the logs, pages and curves of a long run have room; checkpoints are counted apart.
MIN_OUTPUT = 1e9  # bytes
# What is written beside a run: marks of verified shards, compiled kernels, a launcher's files.
MIN_ELSEWHERE = 100e6  # bytes
# NCCL and gloo's shared-memory path take some ten megabytes for each pair of ranks; a container has 64 MB in all unless
# its shared memory was asked for (docker's --shm-size).
MIN_SHARED_MEMORY = 512e6  # bytes
# A process of two ranks has 130 descriptors open, libraries and devices with it; shards and threads take more.
OWN_DESCRIPTORS = 512
# Two gloo groups of ours, the default group and those that DeepSpeed makes connect with every other rank.
DESCRIPTORS_PER_RANK = 8
# A GPU that starts to train is empty but for its driver's context: what else is there belongs to another process.
MIN_FREE_SHARE = 0.9
# Throttled, or shared with other work: all ranks wait for the slowest one at each step.
SLOW_SHARE = 0.5


def check_names(facts: Sequence[Facts]) -> list[Finding]:
    """Whether every host has a name of its own: by their names they are told apart here."""
    machines: dict[str, set[str]] = {}
    for one in facts:
        machines.setdefault(one.host, set()).add(one.machine)
    return [
        Finding("network", [host], f"{len(own)} machines have this name: give each its own (hostnamectl set-hostname)")
        for host, own in machines.items()
        if len(own) > 1
    ]


def check_versions(facts: Sequence[Facts]) -> list[Finding]:
    """Whether all hosts have the same versions, and the same source of kinspan."""
    hosts = first_of_each_host(facts)
    names = dict.fromkeys(name for one in facts for name in one.versions)
    return [
        finding
        for name in names
        for finding in compare(
            "versions",
            name,
            {host: one.versions.get(name) for host, one in hosts.items()},
            "install the same everywhere, with pip install -c constraints.txt",
            lambda value: value or "not installed",
        )
    ]


def check_settings(facts: Sequence[Facts]) -> list[Finding]:
    """Whether all ranks were given the same settings."""
    hosts = first_of_each_host(facts)
    return [
        finding
        for name in facts[0].settings
        for finding in compare(
            "settings",
            f"--{name}",
            {host: one.settings[name] for host, one in hosts.items()},
            "give all hosts the same flags and the same --config file",
            shorten,
        )
    ]


def check_devices(facts: Sequence[Facts]) -> list[Finding]:
    """Whether all hosts compute with the same devices and as many, of which no other process holds memory."""
    of_host: dict[str, list[str]] = {}
    for one in facts:
        of_host.setdefault(one.host, []).append(one.device)
    kinds = {host: ", ".join(sorted(set(devices))) for host, devices in of_host.items()}
    found = compare("devices", "what it computes with", kinds, "mend its driver, or leave it out")
    ranks = {host: len(devices) for host, devices in of_host.items()}
    found += compare(
        "devices", "the number of its ranks", ranks, "start as many on each, unless that is meant", fatal=False
    )
    cores = {host: one.cores for host, one in first_of_each_host(facts).items()}
    found += compare(
        "devices",
        "the number of cores of a process",
        cores,
        "a batch system may bind tasks to cores: ask for as many on each host (srun --cpus-per-task)",
        fatal=False,
    )
    for one in facts:
        total, free = one.device_bytes
        if not total:
            text = f"rank {one.rank} computes with {one.device}: see nvidia-smi, or leave the host out"
            found.append(Finding("devices", [one.host], text))
        elif one.device != "processor" and free < MIN_FREE_SHARE * total:
            text = (
                f"of the {total / 1e9:.0f} GB of GPU {one.local_rank} {(total - free) / 1e9:.0f} GB are in use: "
                "another process is there (nvidia-smi names it), end it or leave the host out"
            )
            found.append(Finding("devices", [one.host], text))
    return found


def check_disks(facts: Sequence[Facts]) -> list[Finding]:
    """Whether there is room where a run writes."""
    least = {OUTPUT: MIN_OUTPUT, CACHE: MIN_ELSEWHERE, TEMPORARY: MIN_ELSEWHERE, SHARED_MEMORY: MIN_SHARED_MEMORY}
    found = []
    for host, one in first_of_each_host(facts).items():
        for purpose, (folder, free) in one.disks.items():
            if free < least[purpose]:
                advice = "start the container with --shm-size 1g" if purpose == SHARED_MEMORY else "make room"
                text = f"{purpose}, {folder}, has {show_bytes(free)} free, below {show_bytes(least[purpose])}: {advice}"
                found.append(Finding("disk", [host], text))
    return found


def check_room_for_cache(config: DataSettings, facts: Sequence[Facts]) -> list[Finding]:
    """Whether the shards of remote corpora have the room that ``--cache_gb`` promises them."""
    if not any(map(is_remote, list_paths(list_sources(config)))):
        return []
    return [
        Finding(
            "disk",
            [host],
            f"{one.disks[CACHE][0]} has {show_bytes(one.disks[CACHE][1])} free for shards, and --cache_gb is "
            f"{config.cache_gb:g}: make room, lower it, or choose another --cache_dir",
            fatal=False,
        )
        for host, one in first_of_each_host(facts).items()
        if one.disks[CACHE][1] < config.cache_gb * 1e9
    ]


def check_room_for_checkpoints(
    facts: Sequence[Facts], parameters: int, keep: int, bytes_per_parameter: int
) -> list[Finding]:
    """Whether the output folder has room for as many checkpoints as will be there at a time: one is written before
    the oldest is removed."""
    host, one = next(iter(first_of_each_host(facts).items()))
    folder, free = one.disks[OUTPUT]
    each = parameters * bytes_per_parameter
    if free >= (keep + 1) * each:
        return []
    text = (
        f"--output_dir, {folder}, has {show_bytes(free)} free, and {keep + 1} checkpoints of about {show_bytes(each)} "
        "will be there: make room, or lower --keep_checkpoints"
    )
    return [Finding("disk", [host], text)]


def check_descriptors(facts: Sequence[Facts]) -> list[Finding]:
    """Whether a process may open as many files and connections as it needs."""
    needed = OWN_DESCRIPTORS + DESCRIPTORS_PER_RANK * len(facts)
    return [
        Finding(
            "descriptors",
            [host],
            f"a process may open {one.descriptors:,} files, and needs {needed:,} with {len(facts)} ranks: raise the "
            "hard limit (ulimit -Hn, LimitNOFILE of the service that starts it, or /etc/security/limits.conf)",
        )
        for host, one in first_of_each_host(facts).items()
        if one.descriptors < needed
    ]


def check_clocks(offsets: dict[str, float]) -> list[Finding]:
    """Whether the clocks agree. ``offsets``: by how many seconds each host is ahead of the first one"""
    middle = median(offsets.values()) if len(offsets) > 2 else 0.0  # of two, either may be the wrong one
    return [
        Finding(
            "clock",
            [host],
            f"its clock is {abs(offset - middle):,.0f} s {'ahead' if offset > middle else 'behind'}"
            f"{f' of that of {next(iter(offsets))}' if len(offsets) == 2 else ''}: start its time service "
            "(timedatectl set-ntp true, or chronyc makestep)",
        )
        for host, offset in offsets.items()
        if abs(offset - middle) > MAX_SKEW
    ]


def check_speeds(tflops: dict[str, float]) -> list[Finding]:
    """Whether all hosts compute about as fast. ``tflops``: of the slowest device of each host"""
    usual = median(tflops.values())
    return [
        Finding(
            "speed",
            [host],
            f"its slowest device does {own:.3g} TFLOP/s, and {usual:.3g} are usual here: see whether it is throttled "
            "or at other work (nvidia-smi, top)",
            fatal=False,
        )
        for host, own in tflops.items()
        if own < SLOW_SHARE * usual
    ]
