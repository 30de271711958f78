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

READY = "ready"
Way = Callable[[Any, "Turn"], None]


@dataclass(frozen=True)
class Update:
    """Seconds of an update, its real tokens, and its mean losses by name."""

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

    def end(self, tokens: int, losses: dict[str, float]) -> None:
        """Stops the clock."""
        import torch

        from pretrain.engine.device import return_freed_memory

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.connection.send(Update(time.perf_counter() - self.began, tokens, losses))
        return_freed_memory()  # the other ways need it meanwhile


def _run_way(way: Way, case: Any, connection: Connection) -> None:
    way(case, Turn(connection))
    connection.send(READY)


def take_turns(ways: dict[str, Way], case: Any, rounds: int) -> dict[str, list[Update]]:
    """Returns the updates of each way in ``rounds`` rounds, after one that warms up; a way takes ``rounds + 1`` turns.

    Raises KinspanError where a way ends early; its own process has then said why.
    """
    context = get_context("spawn")
    connections, processes = {}, []
    updates: dict[str, list[Update]] = {name: [] for name in ways}
    try:
        for name, way in ways.items():
            connections[name], theirs = context.Pipe()
            processes.append(context.Process(target=_run_way, args=(way, case, theirs)))
            processes[-1].start()
            theirs.close()
            _receive(name, connections[name])
        for _ in range(rounds + 1):
            for name, connection in connections.items():
                connection.send(None)
                updates[name].append(_receive(name, connection))
                _receive(name, connection)
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
    """Returns the real tokens per second over all updates."""
    return sum(u.tokens for u in updates) / sum(u.seconds for u in updates)


def compare(ours: list[Update], theirs: list[Update]) -> tuple[float, float, float]:
    """Returns how many times as fast ours is: over all rounds, and in the round where it is least and most."""
    each = [(a.tokens / a.seconds) / (b.tokens / b.seconds) for a, b in zip(ours, theirs, strict=True)]
    return measure_rate(ours) / measure_rate(theirs), min(each), max(each)
