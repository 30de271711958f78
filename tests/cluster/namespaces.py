"""Several "hosts" on this machine: network namespaces at one bridge, each with an address and a host name of its own.

They share the processors, the disk and the clock. A link can be made slow or cut, and a host may see another file or a
full disk in some place. Needs root; the namespaces are removed by themselves, and of what is outside nothing is
changed.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TOOLS = ("ip", "tc", "unshare", "nsenter", "mount")
# Without the last two lines ssh waits for a quarter of an hour for a host that is gone.
SSH = """StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
ServerAliveInterval 10
ServerAliveCountMax 6
"""
MADE = Path("/run/netns")  # where `ip netns` puts them


@dataclass(frozen=True)
class Host:
    """One of the hosts.

    name:      what its programs take for the host's name, such as node0
    address:   in the network of the hosts, such as 10.77.0.1
    namespace: of the network; also the name of the link's end at the switch
    names:     the file that its programs see as /etc/hosts
    """

    name: str
    address: str
    namespace: str
    switch: str
    names: Path


@cache
def find_obstacle() -> str | None:
    """Why this machine cannot have such hosts; None where it can."""
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        return f"there is no {missing[0]} here"
    if os.geteuid():
        return "only root may make network namespaces"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "hostname", "node0"], capture_output=True
    )
    if tried.returncode:
        return f"namespaces are not allowed here: {tried.stderr.decode().strip()}"
    return None


@contextmanager
def make_hosts(count: int, folder: Path) -> Iterator[list[Host]]:
    """Yields ``count`` hosts, node0 and so on, which reach one another. In the end their processes are killed.

    folder: for the file of their names
    """
    stem = f"k{os.getpid():x}"
    switch, names = f"{stem}sw", folder / "hosts"
    hosts = [Host(f"node{n}", f"10.77.0.{n + 1}", f"{stem}n{n}", switch, names) for n in range(count)]
    names.write_text("127.0.0.1 localhost\n" + "".join(f"{h.address} {h.name}\n" for h in hosts))
    with ExitStack() as removed:
        _add_namespace(switch, removed)
        _ip(switch, "link add bridge type bridge")
        _ip(switch, "link set bridge up")
        for host in hosts:
            _add_namespace(host.namespace, removed)
            _ip(switch, f"link add {host.namespace} type veth peer name eth0 netns {host.namespace}")
            _ip(switch, f"link set {host.namespace} master bridge up")
            _ip(host.namespace, f"addr add {host.address}/24 dev eth0")
            _ip(host.namespace, "link set eth0 up")
        yield hosts


def _add_namespace(name: str, removed: ExitStack) -> None:
    _run("ip", "netns", "add", name)
    removed.callback(_remove_namespace, name)
    _ip(name, "link set lo up")


def _remove_namespace(name: str) -> None:
    """Kills what runs in it, and nothing else."""
    for pid in _run("ip", "netns", "pids", name).split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _run("ip", "netns", "del", name)


def _ip(namespace: str, command: str) -> None:
    _run("ip", "-netns", namespace, *command.split())


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def cut_link(host: Host) -> None:
    """The host's cable is pulled: what is sent vanishes, and nobody is told."""
    _ip(host.switch, f"link set {host.namespace} down")


def mend_link(host: Host) -> None:
    _ip(host.switch, f"link set {host.namespace} up")


def slow_link(host: Host, rate: str) -> None:
    """What the host sends goes at this rate, such as 10mbit."""
    _run("tc", "-netns", host.namespace, *f"qdisc add dev eth0 root tbf rate {rate} burst 64kb latency 400ms".split())


def command_on(host: Host, *command: str, first: Sequence[str] = ()) -> list[str]:
    """The command line that runs ``command`` on the host.

    first: lines of shell that are run before, in mounts of this command's own: see hide, fill_disk
    """
    script = "\n".join(
        ["set -e", f"hostname {host.name}", f"mount --bind {host.names} /etc/hosts", *first, 'exec "$@"']
    )
    alone = ["--pid", "--fork", "--kill-child", "--mount-proc"]  # programs of other hosts are not seen
    inside = ["unshare", "--mount", "--uts", *alone, "bash", "-c", script, "bash"]
    return ["nsenter", f"--net={MADE / host.namespace}", *inside, *command]


def show_instead(place: Path, other: Path) -> str:
    """For ``first``: the host sees ``other`` where the rest sees ``place``."""
    return f"mount --bind {other} {place}"


def fill_disk(place: Path, size: str = "1m") -> str:
    """For ``first``: the host's ``place`` is on a disk of its own, of this size."""
    return f"mount -t tmpfs -o size={size} tmpfs {place}"


def make_ssh(folder: Path) -> list[str]:
    """For ``first``: root's ssh knows a key, and asks no questions. ``start_sshd`` takes the same folder."""
    place = folder / "ssh"
    if not place.exists():
        place.mkdir(mode=0o700)
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / "id_ed25519"))
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / "host_key"))
        shutil.copy(place / "id_ed25519.pub", place / "authorized_keys")
        (place / "config").write_text(SSH)
    home = Path.home() / ".ssh"
    return [f"mkdir -p {home}", f"mount --bind {place} {home}"]


def start_sshd(host: Host, folder: Path, **variables: str) -> subprocess.Popen:
    """The host's sshd, which ends with the host. ``variables``: of the programs that it starts"""
    settings = [f"HostKey={folder / 'ssh/host_key'}", f"AuthorizedKeysFile={folder / 'ssh/authorized_keys'}"]
    settings += ["StrictModes=no", "UsePAM=no", "PermitRootLogin=yes", "PidFile=none", f"ListenAddress={host.address}"]
    settings += ["SetEnv=" + " ".join(f"{name}={value}" for name, value in variables.items())] if variables else []
    flags = [part for setting in settings for part in ("-o", setting)]
    first = ["mkdir -p /run/sshd", *make_ssh(folder)]
    daemon = str(shutil.which("sshd") or "/usr/sbin/sshd")  # it demands to be called by its whole path
    command = command_on(host, daemon, "-D", "-e", "-f", "/dev/null", *flags, first=first)
    log = (folder / f"sshd-{host.name}.log").open("w")
    started = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    _wait_for_port(host)
    return started


def _wait_for_port(host: Host) -> None:
    look = f"until (: < /dev/tcp/{host.address}/22) 2> /dev/null; do sleep 0.05; done"
    subprocess.run(command_on(host, "bash", "-c", look), check=True, timeout=60)


@contextmanager
def running(
    commands: Sequence[Sequence[str]], logs: Sequence[Path], **options: object
) -> Iterator[list[subprocess.Popen]]:
    """The commands at the same time, each with its own log; in the end those that still run are killed."""
    started: list[subprocess.Popen] = []
    try:
        for command, log in zip(commands, logs, strict=True):
            with log.open("w") as file:
                common = {"stdout": file, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, **options}
                started.append(subprocess.Popen(command, start_new_session=True, **common))  # type: ignore[call-overload]
        yield started
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for_all(started: Sequence[subprocess.Popen], seconds: float) -> list[int]:
    """Their statuses. Raises TimeoutExpired where they are not over by then."""
    deadline = time.monotonic() + seconds
    return [process.wait(max(0.1, deadline - time.monotonic())) for process in started]


def time_ends(started: Sequence[subprocess.Popen], seconds: float) -> list[float]:
    """After how many seconds each ended, ``seconds`` of one that did not."""
    began = time.monotonic()
    ends: dict[int, float] = {}
    while len(ends) < len(started) and time.monotonic() - began < seconds:
        for number, process in enumerate(started):
            if process.poll() is not None:
                ends.setdefault(number, time.monotonic() - began)
        time.sleep(0.1)
    return [ends.get(number, seconds) for number in range(len(started))]
