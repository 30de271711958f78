"""What the facts of all hosts say: a function for each check, a named threshold with its reason for each limit."""

from collections.abc import Sequence
from statistics import median

from .facts import Facts
from .report import Finding, compare

# Time services keep hosts within milliseconds of one another: seconds say that none runs, and then it drifts on. S3
# refuses requests that are 15 minutes off, Slurm's munge those of 5; before that, shared storage and logs go astray.
MAX_SKEW = 5.0  # seconds
# A process of two ranks has 130 descriptors open, libraries and devices with it; shards and threads take more.
OWN_DESCRIPTORS = 512
# Two gloo groups of ours, the default group and those that DeepSpeed makes connect with every other rank.
DESCRIPTORS_PER_RANK = 8
# A GPU that starts to train is empty but for its driver's context: what else is there belongs to another process.
MIN_FREE_SHARE = 0.9
# Throttled, or shared with other work: all ranks wait for the slowest one at each step.
SLOW_SHARE = 0.5
ADVICE = {
    "versions": "install the same everywhere, with pip install -c constraints.txt",
    "settings": "give all hosts the same flags and the same --config file",
}


def check_alike(check: str, hosts: dict[str, Facts]) -> list[Finding]:
    """Whether all hosts have the same versions or settings."""
    tables = {host: one.alike[check] for host, one in hosts.items()}
    names = dict.fromkeys(name for table in tables.values() for name in table)
    found = []
    for name in names:
        values = {host: table.get(name, "not installed") for host, table in tables.items()}
        found += compare(check, name, values, ADVICE[check])
    return found


def check_names(facts: Sequence[Facts]) -> list[Finding]:
    """Whether every host has a name of its own: by their names they are told apart here."""
    machines: dict[str, set[str]] = {}
    for one in facts:
        machines.setdefault(one.host, set()).add(one.machine)
    text = "{} machines have this name: give each its own (hostnamectl set-hostname)"
    return [Finding("network", [host], text.format(len(own))) for host, own in machines.items() if len(own) > 1]


def check_devices(facts: Sequence[Facts]) -> list[Finding]:
    """Whether all hosts compute with the same devices, of which no other process holds memory."""
    devices: dict[str, set[str]] = {}
    for one in facts:
        devices.setdefault(one.host, set()).add(one.device)
    kinds = {host: ", ".join(sorted(own)) for host, own in devices.items()}
    found = compare("devices", "what it computes with", kinds, "mend its driver, or leave it out")
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


def check_disks(hosts: dict[str, Facts]) -> list[Finding]:
    """Whether there is room where a run writes."""
    found = []
    for host, one in hosts.items():
        texts = [one.refused] if one.refused else []
        for purpose, folder, free, needed in one.disks:
            if free < needed:
                advice = "start the container with --shm-size 1g" if purpose == "shared memory" else "make room"
                texts += [f"{purpose}, {folder}, has {show_bytes(free)} free, below {show_bytes(needed)}: {advice}"]
        found += [Finding("disk", [host], text) for text in texts]
    return found


def check_room_for_checkpoints(hosts: dict[str, Facts], keep: int, each: int) -> list[Finding]:
    """Whether the output folder has room for as many checkpoints as will be there at a time: one is written before
    the oldest is removed. ``each``: bytes of one"""
    host, one = next(iter(hosts.items()))
    _, folder, free, _ = one.disks[0]
    if free >= (keep + 1) * each:
        return []
    text = (
        f"--output_dir, {folder}, has {show_bytes(free)} free, and {keep + 1} checkpoints of about {show_bytes(each)} "
        "will be there: make room, or lower --keep_checkpoints"
    )
    return [Finding("disk", [host], text)]


def check_descriptors(hosts: dict[str, Facts], num_ranks: int) -> list[Finding]:
    """Whether a process may open as many files and connections as it needs."""
    needed = OWN_DESCRIPTORS + DESCRIPTORS_PER_RANK * num_ranks
    text = (
        f"a process may open {{:,}} files, and needs {needed:,} with {num_ranks} ranks: raise the hard limit "
        "(ulimit -Hn, LimitNOFILE of the service that starts it, or /etc/security/limits.conf)"
    )
    few = {host: one.descriptors for host, one in hosts.items() if one.descriptors < needed}
    return [Finding("descriptors", [host], text.format(own)) for host, own in few.items()]


def check_clocks(offsets: dict[str, float]) -> list[Finding]:
    """Whether the clocks agree. ``offsets``: by how many seconds each host is ahead of the first one"""
    first = next(iter(offsets))
    advice = "start its time service (timedatectl set-ntp true, or chronyc makestep)"
    return [
        Finding("clock", [host], f"its clock is {offset:+,.0f} s from that of {first}: {advice}")
        for host, offset in offsets.items()
        if abs(offset) > MAX_SKEW
    ]


def check_speeds(tflops: dict[str, float]) -> list[Finding]:
    """Whether all hosts compute about as fast. ``tflops``: of the slowest device of each host"""
    usual = median(tflops.values())
    text = (
        f"its slowest device does {{:.3g}} TFLOP/s, and {usual:.3g} are usual here: see whether it is throttled or at "
        "other work (nvidia-smi, top)"
    )
    slow = {host: own for host, own in tflops.items() if own < SLOW_SHARE * usual}
    return [Finding("speed", [host], text.format(own), fatal=False) for host, own in slow.items()]


def show_bytes(count: float) -> str:
    """A number of bytes, such as "3.2 GB"."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.0f} kB"
