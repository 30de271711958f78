"""A real Slurm on this machine, for tests: a controller, and nodes that are as separate as machines are.

Each node is a slurmd in namespaces of its own: network (a cable to a bridge), host name, processes, mounts. The files
are shared, as on a cluster. It needs root and the packages slurmctld, slurmd, slurm-client, munge and iproute2; it
touches no file outside its folder, which it leaves with the logs of Slurm, and leaves nothing else behind.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
import zlib
from contextlib import suppress
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "munged", "ip", "unshare")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
STARTED = 90.0  # seconds that all nodes may take to report to the controller
ENDED = 10.0  # seconds that a daemon may take to end

CONFIG = """\
ClusterName=kinspan
SlurmctldHost={host}({network}.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=20
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/spool/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=30
MinJobAge=600
SchedulerParameters=sched_interval=5,batch_sched_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""
# A node's init: it names the machine, and becomes slurmd.
NODE = """\
hostname {name}
mount --bind {folder}/hosts /etc/hosts
ip link set lo up
export SLURM_CONF={folder}/slurm.conf
exec slurmd -D -N {name} >>{folder}/{name}.out 2>&1
"""


def find_lack() -> str | None:
    """Why no Slurm can be had here, for a test to be skipped with; None where it can."""
    if missing := [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid():
        return "only root can make machines of namespaces"
    if subprocess.run(["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "true"]).returncode:
        return "namespaces cannot be made here"
    return None


class Slurm:
    """A Slurm whose state lies in ``folder``."""

    def __init__(self, folder: Path, nodes: list[str], network: str) -> None:
        self.folder, self.nodes, self.network = folder, nodes, network
        self.processes: dict[str, int] = {}  # by name: munged, slurmctld and the nodes
        self.tag = f"{zlib.crc32(str(folder).encode()) % 0xFFFF:04x}"  # names of network devices have 15 characters

    @classmethod
    def start(cls, folder: Path, num_nodes: int) -> "Slurm":
        """Starts the daemons, and waits until all nodes are idle."""
        folder.mkdir(parents=True)
        number = zlib.crc32(str(folder).encode()) % 250
        nodes = [f"node{n}" for n in range(1, num_nodes + 1)]
        slurm = cls(folder.resolve(), nodes, f"10.213.{number}")
        try:
            slurm._write_files()
            slurm._start_daemons()
            slurm.wait_for_nodes(num_nodes)
        except BaseException:
            slurm.stop()
            raise
        return slurm

    @property
    def environment(self) -> dict[str, str]:
        """What makes sbatch, srun and the others speak to this Slurm."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return {**kept, "PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(self, *command: str, **options: object) -> str:
        """What a command of Slurm's prints; raises CalledProcessError where it fails."""
        arguments: dict = {"env": self.environment, "check": True, "capture_output": True, "text": True, **options}
        return subprocess.run(command, **arguments).stdout.strip()

    def _write_files(self) -> None:
        folder = self.folder
        (folder / "state").mkdir()
        for name in self.nodes:
            (folder / "spool" / name).mkdir(parents=True)
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        lines = [
            f"NodeName={name} NodeAddr={self.network}.{10 + n} CPUs=4 RealMemory=100000 State=UNKNOWN"
            for n, name in enumerate(self.nodes)
        ]
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        facts = {"host": socket.gethostname(), "network": self.network, "port": port}
        (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, nodes="\n".join(lines), **facts))
        hosts = [f"{self.network}.{10 + n} {name}" for n, name in enumerate(self.nodes)]
        # The plugin is loaded although nothing here asks for control groups, and that of version 2 wants them mounted.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))

    def _start_daemons(self) -> None:
        folder = self.folder
        call("ip", "link", "add", f"ks{self.tag}", "type", "bridge")
        call("ip", "addr", "add", f"{self.network}.1/24", "dev", f"ks{self.tag}")
        call("ip", "link", "set", f"ks{self.tag}", "up")
        files = {name: f"munge.{name}" for name in ("key", "pid", "log", "seed")}
        paths = [f"--{name}-file={folder}/{file}" for name, file in files.items()] + [f"--socket={folder}/munge.socket"]
        self._start("munged", ["munged", "--foreground", "--force", *paths])
        wait_until(lambda: (folder / "munge.socket").exists(), ENDED, "munged has not started")
        self._start("slurmctld", ["slurmctld", "-D"])
        for name in self.nodes:
            self.start_node(name)

    def _start(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.out").open("a") as log:
            started = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self.processes[name] = started.pid

    def start_node(self, name: str) -> None:
        """Starts a machine: its namespaces, its cable, its slurmd."""
        space, cable = f"ks{self.tag}-{name}", f"k{self.tag}{name}"
        call("ip", "netns", "add", space)
        call("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
        call("ip", "link", "set", cable, "master", f"ks{self.tag}", "up")
        address = f"{self.network}.{10 + self.nodes.index(name)}/24"
        call("ip", "-n", space, "addr", "add", address, "dev", "eth0")
        call("ip", "-n", space, "link", "set", "eth0", "up")
        own = ["unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"]
        program = NODE.format(name=name, folder=self.folder)
        self._start(name, ["ip", "netns", "exec", space, *own, "sh", "-ec", program])

    def lose_node(self, name: str) -> None:
        """Makes a machine disappear: nobody hears of it that its processes are gone, because its cable is pulled."""
        with suppress(subprocess.CalledProcessError):
            call("ip", "link", "delete", f"k{self.tag}{name}")
        kill(self.processes.pop(name), signal.SIGKILL)  # unshare, which takes all processes of the machine with it
        wait_until(lambda: not self._lives_in(name), ENDED, f"{name} has not ended")
        call("ip", "netns", "delete", f"ks{self.tag}-{name}")

    def restore_node(self, name: str) -> None:
        """Starts a machine that was lost, and waits until Slurm counts on it."""
        self.start_node(name)
        wait_until(lambda: self.find_state(name) == "idle", STARTED, f"{name} does not come back")

    def _lives_in(self, name: str) -> bool:
        return bool(call("ip", "netns", "pids", f"ks{self.tag}-{name}"))

    def find_state(self, name: str) -> str:
        return self.call("sinfo", "--noheader", "--nodes", name, "--partition", "train", "--format", "%T")

    def wait_for_nodes(self, count: int) -> None:
        def ready() -> bool:
            try:
                states = self.call("sinfo", "--noheader", "--Node", "--partition", "train", "--format", "%T").split()
            except subprocess.CalledProcessError:
                return False
            return states.count("idle") == count

        wait_until(ready, STARTED, f"the nodes are not ready; see {self.folder}/*.log")

    def stop(self) -> None:
        """Ends the daemons and all that they run, and removes the network."""
        with suppress(subprocess.CalledProcessError):
            self.call("scancel", "--full", "--state", "RUNNING")
        for name in [n for n in self.processes if n in self.nodes]:
            kill(self.processes[name], signal.SIGKILL)
        for name in ("slurmctld", "munged"):
            if name in self.processes:
                kill(self.processes[name], signal.SIGTERM)
        for name in self.nodes:
            for command in (("link", "delete", f"k{self.tag}{name}"), ("netns", "delete", f"ks{self.tag}-{name}")):
                with suppress(subprocess.CalledProcessError):
                    call("ip", *command)
        with suppress(subprocess.CalledProcessError):
            call("ip", "link", "delete", f"ks{self.tag}")
        self.processes.clear()


def call(*command: str) -> str:
    """What a command of the system's prints."""
    return subprocess.run(
        command, env={**os.environ, "PATH": PATH}, check=True, capture_output=True, text=True
    ).stdout.strip()


def kill(process: int, number: int) -> None:
    """Ends a process, and waits until it is gone; kills it where it takes too long."""
    with suppress(ProcessLookupError):
        os.kill(process, number)
        deadline = time.monotonic() + ENDED
        while _is_alive(process):
            if time.monotonic() > deadline:
                os.kill(process, signal.SIGKILL)
            time.sleep(0.05)


def _is_alive(process: int) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(process, os.WNOHANG)
    return Path(f"/proc/{process}").exists()


def wait_until(true: object, seconds: float, complaint: str) -> None:
    """Waits for a condition; raises TimeoutError with ``complaint`` where it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError(complaint)
        time.sleep(0.2)
