"""A watchdog in each rank, which notices ranks that died or stalled, names them, prints stacks, and ends all ranks.

The training loop marks where it is. One thread publishes these heartbeats through the store of the process group: rank
0 listens to all ranks, the others to rank 0. A second judges what was heard, and never waits for another rank. A third,
of rank 0, writes its heartbeat into the run's folder. Intervals are measured with each process's own monotonic clock.
"""

import faulthandler
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from pretrain.engine import ranks
from pretrain.engine.history import ENDED, is_alive, name_system, note, write_heartbeat
from pretrain.engine.stop import Stopped

STATUS = 70  # EX_SOFTWARE of sysexits.h
BEAT = 1.0  # seconds between two heartbeats, and between two looks at them
SILENCE = 60.0  # seconds without a heartbeat after which a rank of another machine counts as dead
FAREWELL = 4.0  # seconds that the other ranks get to print their stacks before the first one ends
SHOWN = 10.0  # seconds between two heartbeats in the run's folder
START, SETTING_UP = "the start", "the set-up"  # where a rank that refuses may end before the others refuse, too
STACKS = "stacks"  # the folder in the run's folder where stacks are written


@dataclass
class Heartbeat:
    """What a rank publishes about itself.

    system:  ranks with the same ``system`` see each other's processes
    number:  of this heartbeat
    marks:   how many marks the training loop has passed
    place:   what the loop said at the last one
    patient: the loop may stay at this place for as long as it likes
    """

    rank: int
    host: str
    system: str
    process: int
    number: int = 0
    marks: int = 0
    place: str = START
    patient: bool = False

    @property
    def is_under_way(self) -> bool:
        """Whether the set-up is over: the folder is this run's, and no rank ends by itself before the others."""
        return self.place not in (START, SETTING_UP)

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.process} on {self.host})"


class Verdict(NamedTuple):
    """What is wrong, and whether the stacks tell more about it."""

    text: str
    stacks: bool


class Watch:
    """What one rank knows of all. The training loop calls ``mark``, the threads call the other methods.

    stall_seconds: the longest time in which no rank passes a mark before they count as stalled
    store:         the key-value store that all ranks reach; None where this rank is alone
    """

    def __init__(self, folder: Path, rank: int, world: int, stall_seconds: float, store: Any = None) -> None:
        self.folder, self.stall_seconds, self.store = folder, stall_seconds, store
        self.own = Heartbeat(rank, socket.gethostname(), name_system(), os.getpid())
        self.listens_to = [r for r in range(world) if r != rank] if rank == 0 else [0]
        self.heard = {rank: self.own}
        self.news = dict.fromkeys([rank, *self.listens_to], time.monotonic())
        self.marks: list[int] = []
        self.left = False
        self.verdict: Verdict | None = None
        self.moved = self.marked = time.monotonic()

    def mark(self, place: str, patient: bool = False) -> None:
        """Says that the training loop has come to ``place``. ``patient``: it may stay there without end"""
        own, was_under_way = self.own, self.own.is_under_way
        own.place, own.patient, own.marks = place, patient, own.marks + 1
        self.marked = time.monotonic()
        if own.rank == 0 and not was_under_way:
            self.show()  # at once, so that a run that ends soon is told from one that never began

    def show(self) -> None:
        """Writes where rank 0 is, and since how many seconds; not before the set-up is over, as the folder may be
        another run's."""
        if not self.own.is_under_way:
            return
        at_place = round(time.monotonic() - self.marked, 1)
        write_heartbeat(self.folder, {**asdict(self.own), "seconds_there": at_place, "every": SHOWN})

    def talk(self) -> None:
        """Publishes this rank's heartbeat, and reads those of others. It hangs where rank 0, which keeps the store,
        hangs."""
        if self.store is None:
            return
        self.own.number += 1
        with suppress(RuntimeError):  # rank 0 is gone, which its silence will show
            self.store.set(f"heartbeat/{self.own.rank}", json.dumps(asdict(self.own)))
            if self.store.check(["verdict"]):
                self.verdict = Verdict(*json.loads(self.store.get("verdict")))
            for rank in self.listens_to:
                if self.store.check([f"heartbeat/{rank}"]):
                    self.hear(Heartbeat(**json.loads(self.store.get(f"heartbeat/{rank}"))))

    def look(self) -> Verdict | None:
        """What is wrong, judged by what was heard so far; None where nothing is."""
        return self.verdict or self.judge(time.monotonic())

    def hear(self, beat: Heartbeat) -> None:
        """Notes a heartbeat, and the time where it is a new one."""
        if beat != self.heard.get(beat.rank):
            self.heard[beat.rank], self.news[beat.rank] = beat, time.monotonic()

    def judge(self, now: float) -> Verdict | None:
        """Whether a rank that this one listens to has died or fallen silent; on rank 0, whether all have stalled.

        While leaving, a rank checks only for silence: a machine may be lost while the others wait for it.
        """
        for rank in self.listens_to:
            beat = self.heard.get(rank)
            here = beat and beat.system == self.own.system and beat.is_under_way
            if beat and here and not self.left and not is_alive(beat.process):
                return Verdict(f"{beat} has died, at {beat.place}", False)
            if now - self.news[rank] > SILENCE:
                where = f"; it was at {beat.place}" if beat else ""
                seen = f", as seen from {self.own.host}"  # which may be the one that has lost its network
                who = beat or f"rank {rank}"
                return Verdict(f"{who} has given no sign of life for {SILENCE:.0f} s{seen}{where}", True)
        return self.judge_marks(now) if self.own.rank == 0 and not self.left else None

    def judge_marks(self, now: float) -> Verdict | None:
        """Whether no rank has passed a mark for too long. The others wait for the one that has passed the fewest."""
        beats = list(self.heard.values())
        marks = [beat.marks for beat in beats]
        if marks != self.marks or any(beat.patient for beat in beats):
            self.marks, self.moved = marks, now
        if now - self.moved <= self.stall_seconds:
            return None
        behind = [beat for beat in beats if beat.marks == min(marks)]
        who = "every rank" if len(behind) == len(beats) > 1 else ", ".join(map(str, behind))
        text = f"{who} has stalled at {behind[0].place}: no rank came further for {self.stall_seconds:g} s"
        return Verdict(f"{text}; the stacks are in {self.folder / STACKS}", True)

    def end(self, verdict: Verdict) -> None:
        """Publishes the verdict, prints it and the stacks, and ends the process. The other ranks then do the same."""
        teller = threading.Thread(target=self._tell, args=(verdict,), daemon=True)
        teller.start()
        teller.join(FAREWELL)
        try:
            if verdict.stacks:
                self.write_stacks()
            text = f"[rank {self.own.rank}] error: {verdict.text}; the same command again goes on"
            os.write(2, f"{text}\n".encode())  # not sys.stderr, which another thread may have redirected
            time.sleep(FAREWELL)
        finally:
            os._exit(STATUS)

    def _tell(self, verdict: Verdict) -> None:
        with suppress(RuntimeError):
            if self.store is not None:
                self.store.set("verdict", json.dumps(verdict))
        if self.own.rank == 0 and self.own.is_under_way:
            note(self.folder, ENDED, why=verdict.text)

    def write_stacks(self) -> None:
        """Writes the stack of every thread to stderr and to the run's folder."""
        with suppress(OSError):
            faulthandler.dump_traceback(2)
            (self.folder / STACKS).mkdir(exist_ok=True)
            with (self.folder / STACKS / f"rank-{self.own.rank}.txt").open("w") as file:
                faulthandler.dump_traceback(file)

    def wait_for_verdict(self, cause: str) -> None:
        """Prints the cause of a failure, and gives the threads time to find out whether a rank is gone and end this
        process."""
        os.write(2, f"{cause}\n".encode())
        time.sleep(SILENCE + 2 * FAREWELL)

    def leave(self) -> None:
        """Ends the watch, by all ranks together: the process of one that ended earlier would seem to have died."""
        self.left = True
        ranks.barrier()


@contextmanager
def watch_ranks(folder: Path, rank: int, world: int, stall_seconds: float) -> Iterator[Watch]:
    """Watches all ranks while the block runs. They enter it together."""
    store = None
    if ranks.is_distributed():
        default: Any = dist.distributed_c10d._get_default_store()
        # torchrun's store may outlive its ranks: those that it starts again are not to read the last ones' verdict.
        name = ranks.broadcast_from_rank_0(lambda: f"watch/{uuid.uuid4()}")
        store = dist.PrefixStore(name, default.clone())  # a connection of our own: calls on one take turns
    watch, done = Watch(folder, rank, world, stall_seconds, store), threading.Event()
    watch.heard = {beat.rank: beat for beat in ranks.gather(watch.own)} | {rank: watch.own}  # to name any by its host

    def repeat(action: Callable[[], Any], is_rare: bool = False) -> threading.Thread:
        def work() -> None:
            if is_rare:
                action()
            while not done.wait(SHOWN if is_rare and watch.own.is_under_way else BEAT):
                action()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def look() -> None:
        if verdict := watch.look():
            watch.end(verdict)

    if rank == 0:
        repeat(watch.show, is_rare=True)
    repeat(watch.talk)
    looker = repeat(look)
    try:
        try:
            yield watch
        except Stopped:
            watch.leave()
            raise
        watch.leave()  # not after an error: the other ranks are to notice that this one has ended
    finally:
        done.set()
        looker.join()
