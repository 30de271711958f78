"""Spreads chunks of work over processes of this machine."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TypeVar

from data_pipeline.core.errors import KinspanError

MAX_WORKERS = 256  # so that a mistyped number does not start thousands of processes
PARENT_SECONDS = 0.5  # how soon a worker notices that the process that started it is gone
WORKER_DIED = "a worker process died (perhaps for lack of memory): use a smaller --num_workers, or fewer cores"

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")


def make_pool(num_workers: int) -> ProcessPoolExecutor:
    """Returns a pool of processes that ignore Ctrl-C, and end with the process that made them."""
    context = multiprocessing.get_context("spawn")  # forking a process that has threads is unsafe
    return ProcessPoolExecutor(num_workers, context, _start_worker, (os.getpid(),))


def _start_worker(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def map_chunks(work: Callable[[Chunk], Result], chunks: Iterable[Chunk], num_workers: int) -> Iterator[Result]:
    """Yields ``work(chunk)`` for each chunk in order, from worker processes; a single worker is this process.

    A few chunks per worker are read at a time, so that memory stays bounded. Raises KinspanError if a worker dies.
    """
    if num_workers == 1:
        yield from map(work, chunks)
        return
    waiting = iter(chunks)
    with make_pool(num_workers) as pool:
        try:
            while window := list(islice(waiting, 8 * num_workers)):
                yield from pool.map(work, window)
        except BrokenProcessPool as error:
            raise KinspanError(WORKER_DIED) from error
