"""Strikes at a run's processes, and harm to its files."""

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from .starts import Start

KILL, TERM, INT, USR1 = signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1
Blow = tuple[str, int]  # at whom, with which signal

# Of each kind: the blows, and whether it asks for a checkpoint (else it takes the process away)
KINDS: dict[str, tuple[tuple[Blow, ...], bool]] = {
    "kill -9 a rank": ((("rank", KILL),), False),
    "kill -9 deepspeed": ((("deepspeed", KILL),), True),  # the ranks notice, and stop with a checkpoint
    "kill -9 launch.py": ((("launch.py", KILL),), True),
    "kill -9 all": ((("all", KILL),), False),
    "TERM a rank": ((("rank", TERM),), True),
    "TERM deepspeed": ((("deepspeed", TERM),), True),
    "TERM launch.py": ((("launch.py", TERM),), True),
    "TERM all": ((("all", TERM),), True),
    "INT all": ((("all", INT),), True),
    "USR1 a rank": ((("rank", USR1),), True),
    "TERM a rank, kill -9 all": ((("rank", TERM), ("all", KILL)), False),
    "TERM all, TERM all": ((("all", TERM), ("all", TERM)), True),
    "USR1 a rank, kill -9 a rank": ((("rank", USR1), ("rank", KILL)), False),
    "INT all, TERM launch.py": ((("all", INT), ("launch.py", TERM)), True),
}
BY_HAND = [kind for kind, (blows, _) in KINDS.items() if all(whom in ("rank", "all") for whom, _ in blows)]
MOMENTS = ("checkpoint", "checkpoint", "checkpoint", "step", "start")


@dataclass
class Fault:
    """kind, and when: at ``moment`` number ``number``, after ``delay`` seconds; ``gap`` seconds between two blows."""

    kind: str
    moment: str = "step"
    number: int = 1
    delay: float = 0.0
    gap: float = 0.0
    rank: int = 0
    pause = 0.001  # seconds between looks when it is close

    @property
    def asks(self) -> bool:
        """Whether a run in training is to end with a checkpoint of its last step."""
        return KINDS[self.kind][1]

    @property
    def at_launcher(self) -> bool:
        return any(whom != "rank" for whom, _ in KINDS[self.kind][0])

    def close(self, start: "Start") -> bool:
        return self.moment == "start" or start.first_step is not None

    def aim(self, start: "Start") -> Iterator[bool]:
        """True once the moment has come and there is somebody to hit."""
        if self.moment != "start":
            while start.first_step is None:
                yield False
            self.targets(start)  # looks for the processes now: it takes longer than a checkpoint
        if self.moment == "checkpoint":
            seen: set[str] = set()
            while len(seen) < self.number:
                seen.update(start.writing())
                if len(seen) < self.number:
                    yield False
        at = start.began if self.moment == "start" else time.monotonic()
        while time.monotonic() - at < self.delay:
            yield False
        while not self.targets(start):
            yield False
        yield True

    def targets(self, start: "Start") -> dict[str, list[psutil.Process]]:
        """The processes by name; empty until all are there."""
        if not hasattr(self, "hit"):
            whom = {who for who, _ in KINDS[self.kind][0]}
            hit = {who: start.processes(who) for who in whom}
            if "rank" in hit and self.rank >= len(hit["rank"]):
                return {}
            if not all(hit.values()):
                return {}
            if "rank" in hit:
                hit["rank"] = [hit["rank"][self.rank]]
            if "all" in hit and start.launcher == "deepspeed":
                hit["all"] += start.processes("rank")
            self.hit = hit
        return self.hit

    def strike(self, start: "Start") -> None:
        from .starts import signals

        for number, (whom, what) in enumerate(KINDS[self.kind][0]):
            if number:
                time.sleep(self.gap)
            signals(self.hit[whom], what)


def random_fault(rng: random.Random, launcher: str, world: int, kind: str, starting: float) -> Fault:
    """A fault of this kind at a random moment. starting: seconds that a start by hand takes"""
    moment = rng.choice(MOMENTS)
    alone = launcher != "deepspeed" and world > 1 and "all" not in {whom for whom, _ in KINDS[kind][0]}
    if moment == "start" and alone:
        moment = "step"  # with no launcher to end them, the others wait for a rank that never came to join
    delay = {"checkpoint": 0.06, "step": 0.4, "start": starting * (3 if launcher == "deepspeed" else 1)}[moment]
    if moment == "start" and {whom for whom, _ in KINDS[kind][0]} == {"deepspeed"}:
        moment = "step"  # ranks notice its death only if they have seen it alive: else the run goes on to its end
    rank = rng.randrange(world)
    gap = rng.choice((0.02, 0.2, 2.2))
    return Fault(kind, moment, rng.randint(1, 3), rng.random() * delay, rng.random() * gap, rank)


def flip(path: Path) -> None:
    """Turns over one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


HARMS = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: path.write_bytes(b""),
    "bit-flipped": flip,
    "gone": Path.unlink,
}
