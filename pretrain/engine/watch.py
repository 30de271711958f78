"""A watchdog in each rank: detects ranks that died, fell silent or hang, names them, writes stacks, and ends all ranks.

Each rank publishes a heartbeat in the process group's store: how many places in the training code it has entered, and
the last one. One thread publishes it and reads those of others; it hangs if rank 0, which holds the store, does. A
second thread judges them and never waits. If Python itself hangs, ``faulthandler`` writes stacks and ends the process.
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

import torch.distributed as dist

from data_pipeline.core.progress import write_at_once
from pretrain.engine import ranks
from pretrain.engine.run_folder import STACKS
from pretrain.engine.stop import Stopped, is_running

STATUS = 70  # EX_SOFTWARE of sysexits.h
BEAT = 1.0  # seconds between two heartbeats, and between two checks
SILENCE = 60.0  # seconds without a heartbeat after which a rank counts as dead
FAREWELL = 4.0  # seconds that the other ranks get to write their stacks before the first one ends
SETTING_UP = "the set-up"  # ranks may exit here (set-up errors) without counting as dead
VERDICT = "verdict"  # key in the store


@dataclass
class Heartbeat:
    """Describes a rank to the others.

    machine: ranks with the same value see each other's processes
    places:  number of places that training has entered
    place:   the last of them
    untimed: training may stay there for any time
    """

    rank: int
    host: str
    machine: str
    process: int
    number: int = 0
    places: int = 0
    place: str = SETTING_UP
    untimed: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.process} on {self.host})"


class Watch:
    """Watches the other ranks from this one. The training loop calls ``enter``, the threads call the other methods.

    stall_seconds: the ranks count as stalled if none enters a new place for this long
    store:         the key-value store that all ranks share; None for a single rank
    """

    def __init__(
        self, folder: Path, rank: int, world: int, stall_seconds: float, store: dist.Store | None = None
    ) -> None:
        self.folder, self.stall_seconds, self.store = folder, stall_seconds, store
        self.beat = Heartbeat(rank, socket.gethostname(), name_machine(), os.getpid())
        self.watched_ranks = [r for r in range(world) if r != rank] if rank == 0 else [0]
        self.beats = {rank: self.beat}
        self.beat_times = dict.fromkeys([rank, *self.watched_ranks], time.monotonic())
        self.places: list[int] = []
        self.last_progress = time.monotonic()
        self.is_leaving = False
        self.verdict: str | None = None

    def enter(self, place: str, untimed: bool = False) -> None:
        """Notes that training has reached ``place``. ``untimed``: it may stay there for any time"""
        self.beat.place, self.beat.untimed, self.beat.places = place, untimed, self.beat.places + 1

    def talk(self) -> None:
        """Publishes this rank's heartbeat, and reads the verdict and the heartbeats of others."""
        if self.store is None:
            return
        self.beat.number += 1
        with suppress(RuntimeError):  # rank 0 is gone, which its silence will show
            self.store.set(f"heartbeat/{self.beat.rank}", json.dumps(asdict(self.beat)))
            if self.store.check([VERDICT]):
                self.verdict = self.store.get(VERDICT).decode()
            for rank in self.watched_ranks:
                if self.store.check([f"heartbeat/{rank}"]):
                    beat = Heartbeat(**json.loads(self.store.get(f"heartbeat/{rank}")))
                    if beat != self.beats.get(rank):
                        self.beats[rank], self.beat_times[rank] = beat, time.monotonic()

    def look(self) -> str | None:
        """Returns what is wrong according to the heartbeats read so far, or None."""
        faulthandler.dump_traceback_later(max(SILENCE, self.stall_seconds), exit=True, file=2)  # unless called again
        return self.verdict or self.judge(time.monotonic())

    def judge(self, now: float) -> str | None:
        """Returns a verdict if a rank died or fell silent, or on rank 0 if all stall; while leaving, only if silent."""
        for rank in self.watched_ranks:
            beat = self.beats.get(rank)
            is_local = beat and beat.machine == self.beat.machine and beat.place != SETTING_UP
            if beat and is_local and not self.is_leaving and not is_running(beat.process):
                return f"{beat} has died, at {beat.place}"
            if now - self.beat_times[rank] > SILENCE:
                silence = f"has given no sign of life for {SILENCE:.0f} s, as seen from {self.beat.host}"
                return f"{beat or f'rank {rank}'} {silence}; it was at {beat.place if beat else SETTING_UP}"
        return self.judge_places(now) if self.beat.rank == 0 and not self.is_leaving else None

    def judge_places(self, now: float) -> str | None:
        """Returns a verdict if no rank enters new places. It names the last rank, for which the others wait."""
        beats = list(self.beats.values())
        places = [beat.places for beat in beats]
        if places != self.places or any(beat.untimed for beat in beats):
            self.places, self.last_progress = places, now
        if now - self.last_progress <= self.stall_seconds:
            return None
        last = min(beats, key=lambda beat: beat.places)
        who = "every rank" if places.count(last.places) == len(beats) > 1 else str(last)
        return f"{who} has stalled at {last.place}: no rank made progress for {self.stall_seconds:g} s"

    def end(self, verdict: str) -> None:
        """Publishes and prints the verdict, writes the stacks and ends the process; the other ranks do the same."""
        publisher = threading.Thread(target=self._publish, args=(verdict,), daemon=True)
        publisher.start()
        publisher.join(FAREWELL)
        try:
            with suppress(OSError):
                (self.folder / STACKS).mkdir(exist_ok=True)
                with (self.folder / STACKS / f"rank-{self.beat.rank}.txt").open("w") as file:
                    faulthandler.dump_traceback(file)
            text = f"[rank {self.beat.rank}] error: {verdict}; stacks are in {self.folder / STACKS}"
            os.write(2, f"{text}\n".encode())  # not sys.stderr, which another thread may have redirected
            time.sleep(FAREWELL)
        finally:
            os._exit(STATUS)

    def _publish(self, verdict: str) -> None:
        with suppress(RuntimeError):
            if self.store is not None:
                self.store.set(VERDICT, verdict)

    def leave(self) -> None:
        """Ends the watch on all ranks together, because a process that exits earlier would seem to have died."""
        self.is_leaving = True
        ranks.barrier()


_active: list[Watch] = []  # this process's watch


def note_place(place: str, untimed: bool = False) -> None:
    """Calls ``Watch.enter`` of this process's watch, if there is one."""
    for watch in _active:
        watch.enter(place, untimed)


@contextmanager
def watch_ranks(folder: Path, rank: int, world: int, stall_seconds: float) -> Iterator[None]:
    """Watches all ranks while the block runs. They enter it together."""
    store = None
    if ranks.is_distributed():
        # torchrun's store may outlive its ranks: restarted ranks must not read the verdict on the last ones.
        name = ranks.broadcast_from_rank_0(lambda: f"watch/{uuid.uuid4()}")
        default = dist.distributed_c10d._get_default_store()
        store = dist.PrefixStore(name, default.clone())  # type: ignore[attr-defined]  # a connection for this thread
    watch, done = Watch(folder, rank, world, stall_seconds, store), threading.Event()
    watch.beats = {beat.rank: beat for beat in ranks.gather(watch.beat)} | {rank: watch.beat}  # to know all hosts

    def repeat(action: Callable[[], None]) -> None:
        while not done.wait(BEAT):
            action()

    def look() -> None:
        if verdict := watch.look():
            watch.end(verdict)

    talker, looker = (threading.Thread(target=repeat, args=(act,), daemon=True) for act in (watch.talk, look))
    talker.start()
    looker.start()
    _active.append(watch)
    try:
        try:
            with ranks.report_failures():
                yield
        except Stopped:
            watch.leave()
            raise
        except ranks.CommunicationFailure as failure:
            write_at_once(str(failure))
            time.sleep(SILENCE + 2 * FAREWELL)  # in which the threads end this process if a rank has died
            watch.end(str(failure))  # a batch job would not start again after a KinspanError's status
        watch.leave()  # not after an error: the other ranks must notice that this one has ended
    finally:
        _active.clear()
        done.set()
        looker.join()
        talker.join(FAREWELL)  # at Python's exit a thread that is still in the store's C++ aborts the process
        faulthandler.cancel_dump_traceback_later()


def name_machine() -> str:
    """Returns a name of the machine and its process namespace; containers may share a host name, but not this."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} {os.getpid()}"  # then each rank counts as on another machine
