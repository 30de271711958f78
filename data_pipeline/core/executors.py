"""Spreads chunks of work over processes of this machine."""

import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from data_pipeline.core.errors import KinspanError

MAX_WORKERS = 256  # so that a mistyped number does not start thousands of processes
PARENT_SECONDS = 0.5  # how soon a worker notices that the process that started it is gone
WORKER_DIED = "a worker process died (killed, perhaps for memory): run again with a smaller --num_workers"

_worker: Any = None


def make_pool(num_workers: int, arguments_file: str = "") -> ProcessPoolExecutor:
    """Returns worker processes that leave Ctrl-C to this one, and end when it is gone."""
    context = multiprocessing.get_context("spawn")  # forking a process that has threads is unsafe
    return ProcessPoolExecutor(num_workers, context, _start_worker, (os.getpid(), arguments_file))


def _start_worker(parent: int, arguments_file: str) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if arguments_file:
        with open(arguments_file, "rb") as file:
            make_worker, arguments = pickle.load(file)
        _worker = make_worker(*arguments)


def _work_on(chunk: Any) -> Any:
    return _worker(chunk)


def map_chunks(
    make_worker: Callable[..., Callable], arguments: tuple, chunks: Iterable, num_workers: int
) -> Iterator[Any]:
    """Yields ``make_worker(*arguments)(chunk)`` for each chunk, in the order of ``chunks``, from worker processes.

    ``make_worker`` is called once in each of the ``num_workers`` processes. At most a few chunks per worker are in
    flight at a time, so that memory stays bounded. One worker is a process of its own too, so that this process can
    read while it works. Raises KinspanError where a worker process dies.
    """
    # In a file, because writing megabytes into a new process's pipe hangs where that process dies while starting.
    with tempfile.NamedTemporaryFile() as arguments_file:
        pickle.dump((make_worker, arguments), arguments_file)
        arguments_file.flush()
        pool = make_pool(num_workers, arguments_file.name)
        pending: deque[Future] = deque()
        try:
            for chunk in chunks:
                pending.append(pool.submit(_work_on, chunk))
                if len(pending) > 3 * num_workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise KinspanError(WORKER_DIED) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
