"""A watchdog in each rank: notices ranks that died or stalled, names them, prints the stacks, and ends all.

Each rank's training loop marks where it is. A thread tells rank 0 through the store of the process group; rank 0
listens to all, the others to rank 0. Another thread judges what was heard, and waits for nobody. Intervals are taken
with this process's own monotonic clock, so that machines need not agree on the time and a changed clock does nothing.
"""

import faulthandler
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch.distributed as dist

from pretrain.runtime import ranks

from .stop import Stopped

STATUS = 70  # EX_SOFTWARE of sysexits.h
BEAT = 1.0  # seconds between two looks
SILENCE = 60.0  # seconds without a sign of life until a rank of another machine counts as dead
FAREWELL = 4.0  # seconds for the other ranks to print their stacks before the first one leaves
STACKS = "stacks"  # folder of a run


@dataclass
class Sign:
    """What a rank tells. where: ranks of one ``where`` see each other's processes;  patient: it may stay at this place
    for as long as it likes"""

    rank: int
    host: str
    where: str
    process: int
    number: int = 0
    marks: int = 0
    place: str = "the start"
    patient: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.process} on {self.host})"


class Verdict(NamedTuple):
    text: str
    stacks: bool  # worth printing


class Watch:
    """``mark`` is called by the training loop, all else by the thread.

    stall_seconds: for how long no rank may come a mark further
    store:         what the ranks talk through; None: this rank is alone
    """

    def __init__(self, folder: Path, rank: int, world: int, stall_seconds: float, store: Any = None) -> None:
        self.folder, self.stall_seconds, self.store = folder, stall_seconds, store
        self.own = Sign(rank, socket.gethostname(), _where(), os.getpid())
        self.listens_to = [r for r in range(world) if r != rank] if rank == 0 else [0]
        self.heard = {rank: self.own}
        self.news = dict.fromkeys([rank, *self.listens_to], time.monotonic())
        self.marks: list[int] = []
        self.left = False
        self.verdict: Verdict | None = None
        self.moved = time.monotonic()

    def mark(self, place: str, patient: bool = False) -> None:
        own = self.own
        own.place, own.patient, own.marks = place, patient, own.marks + 1

    def talk(self) -> None:
        """Tells where this rank is, and hears where the others are. It may take for ever: rank 0 keeps the store."""
        if self.store is None:
            return
        self.own.number += 1
        self.store.set(f"sign/{self.own.rank}", json.dumps(asdict(self.own)))
        if self.store.check(["verdict"]):
            self.verdict = Verdict(*json.loads(self.store.get("verdict")))
        for rank in self.listens_to:
            if self.store.check([f"sign/{rank}"]):
                self.hear(Sign(**json.loads(self.store.get(f"sign/{rank}"))))

    def look(self) -> Verdict | None:
        """What is wrong, by what was heard so far."""
        if self.left:
            return None
        return self.verdict or self.judge(time.monotonic())

    def hear(self, sign: Sign) -> None:
        if sign != self.heard.get(sign.rank):
            self.heard[sign.rank], self.news[sign.rank] = sign, time.monotonic()

    def judge(self, now: float) -> Verdict | None:
        for rank in self.listens_to:
            sign = self.heard.get(rank)
            if sign and sign.where == self.own.where and not _lives(sign.process):
                return Verdict(f"{sign} has died, at {sign.place}", False)
            if now - self.news[rank] > SILENCE:
                where = f"; it was at {sign.place}" if sign else ""
                return Verdict(f"{sign or f'rank {rank}'} has given no sign of life for {SILENCE:.0f} s{where}", True)
        return self.judge_marks(now) if self.own.rank == 0 else None

    def judge_marks(self, now: float) -> Verdict | None:
        """Whether no rank has come further for too long. Those with the fewest marks are waited for by the others."""
        signs = list(self.heard.values())
        marks = [sign.marks for sign in signs]
        if marks != self.marks or any(sign.patient for sign in signs):
            self.marks, self.moved = marks, now
        if now - self.moved <= self.stall_seconds:
            return None
        behind = [sign for sign in signs if sign.marks == min(marks)]
        who = "every rank" if len(behind) == len(signs) > 1 else ", ".join(map(str, behind))
        text = f"{who} has stalled at {behind[0].place}: no rank came further for {self.stall_seconds:g} s"
        return Verdict(f"{text}; the stacks are in {self.folder / STACKS}", True)

    def end(self, verdict: Verdict) -> None:
        """Tells the other ranks, prints verdict and stacks, as they then do, and ends the process."""
        teller = threading.Thread(target=self._tell, args=(verdict,), daemon=True)
        teller.start()
        teller.join(FAREWELL)
        try:
            if verdict.stacks:
                self.write_stacks()
            text = f"[rank {self.own.rank}] error: {verdict.text}; the same command again goes on"
            os.write(2, f"{text}\n".encode())  # sys.stderr may be another's for the moment
            time.sleep(FAREWELL)
        finally:
            os._exit(STATUS)

    def _tell(self, verdict: Verdict) -> None:
        with suppress(RuntimeError):
            if self.store is not None:
                self.store.set("verdict", json.dumps(verdict))

    def write_stacks(self) -> None:
        with suppress(OSError):
            faulthandler.dump_traceback(2)
            (self.folder / STACKS).mkdir(exist_ok=True)
            with (self.folder / STACKS / f"rank-{self.own.rank}.txt").open("w") as file:
                faulthandler.dump_traceback(file)

    def wait_for_verdict(self) -> None:
        """Gives the thread time to find out which rank is gone; it then ends this process."""
        time.sleep(SILENCE + 2 * FAREWELL)

    def leave(self) -> None:
        """No rank's process ends before all have left: it would seem to have died."""
        self.left = True
        ranks.barrier()


def _where() -> str:
    """Names the running machine and its space of process numbers: containers may share a host name, not that."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} {os.getpid()}"  # none sees another


def _lives(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def watch_ranks(folder: Path, rank: int, world: int, stall_seconds: float) -> Iterator[Watch]:
    """Watches while the block runs. All ranks enter together."""
    ranks.barrier()
    store = None
    if ranks.is_distributed():
        default: Any = dist.distributed_c10d._get_default_store()
        store = dist.PrefixStore("watch", default.clone())  # a connection of its own: calls take turns on one
    watch, done = Watch(folder, rank, world, stall_seconds, store), threading.Event()

    def talk_on() -> None:
        while not done.wait(BEAT):
            with suppress(RuntimeError):  # rank 0 is gone: its silence will tell
                watch.talk()

    def look_on() -> None:
        while not done.wait(BEAT):
            verdict = watch.look()
            if verdict:
                watch.end(verdict)

    threading.Thread(target=talk_on, daemon=True).start()
    looker = threading.Thread(target=look_on, daemon=True)
    looker.start()
    try:
        try:
            yield watch
        except Stopped:
            watch.leave()
            raise
        watch.leave()  # not after an error, of which the others are to hear
    finally:
        done.set()
        looker.join()
