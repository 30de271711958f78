"""Ways to train take turns, an update each, so that what disturbs the machine hits all of them alike.

Each way runs in a process of its own, which waits idle until it is its turn. It prepares its next batch before it says
that it is ready, and that is before the next way's turn begins.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from data_pipeline.core.errors import KinspanError

READY, DONE = "ready", "done"
Way = Callable[[Any, "Turn"], None]


@dataclass(frozen=True)
class Update:
    """What one update took and did: ``tokens`` are real ones, ``losses`` means by name."""

    seconds: float
    tokens: int
    losses: dict[str, float]


class Turn:
    """A way's side of the taking of turns: ``begin`` and ``end`` stand around what counts of an update."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def begin(self) -> None:
        """Waits for this way's turn; the clock then runs."""
        self.connection.send(READY)
        self.connection.recv()
        self.began = time.perf_counter()

    def end(self, tokens: int, losses: dict[str, float] | None = None) -> None:
        """Stops the clock. ``tokens``: real ones, that the update trained on"""
        from pretrain.engine.device import return_freed_memory
        from pretrain.metrics import wait_for_device

        wait_for_device()
        self.connection.send(Update(time.perf_counter() - self.began, tokens, losses or {}))
        return_freed_memory()  # the other ways need it meanwhile


def _run_way(way: Way, case: Any, connection: Connection) -> None:
    way(case, Turn(connection))
    connection.send(DONE)


def take_turns(ways: dict[str, tuple[Way, Any]], rounds: int, say: Callable[[str], None]) -> dict[str, list[Update]]:
    """The updates of each way in ``rounds`` rounds, after one that warms up.

    ways: by name, a function and the case that it is called with; the function takes ``rounds + 1`` turns
    say:  is told of the progress

    Raises KinspanError where a way ends early; its own process has then said why.
    """
    context = get_context("spawn")
    connections, processes = {}, []
    updates: dict[str, list[Update]] = {name: [] for name in ways}
    try:
        for name, (way, case) in ways.items():
            connections[name], theirs = context.Pipe()
            process = context.Process(target=_run_way, args=(way, case, theirs))
            process.start()
            theirs.close()
            processes.append(process)
            _receive(name, connections[name])
        for number in range(rounds + 1):
            for name, connection in connections.items():
                connection.send(None)
                updates[name].append(_receive(name, connection))
                _receive(name, connection)
            spent = ", ".join(f"{name} {done[-1].seconds:.2f} s" for name, done in updates.items())
            say(f"round {number} of {rounds}{' (warms up)' if not number else ''}: {spent}")
    finally:
        for process in processes:
            process.terminate()
            process.join()
    return {name: done[1:] for name, done in updates.items()}


def _receive(name: str, connection: Connection) -> Any:
    try:
        return connection.recv()
    except EOFError as error:
        raise KinspanError(f"{name} ended before its turns were over: see above") from error


def measure_rate(updates: list[Update]) -> float:
    """Real tokens per second over all updates."""
    return sum(u.tokens for u in updates) / sum(u.seconds for u in updates)


def compare(one: list[Update], other: list[Update]) -> tuple[float, float, float]:
    """How many times as fast the first way is: over all rounds, and in the round where it is least and most."""
    each = [(a.tokens / a.seconds) / (b.tokens / b.seconds) for a, b in zip(one, other, strict=True)]
    return measure_rate(one) / measure_rate(other), min(each), max(each)
