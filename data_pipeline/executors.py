"""How chunks of work are spread: one function an executor, all with the signature of ``local``."""

import multiprocessing
import os
import pickle
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from .errors import KinspanError

MOST_WORKERS = 256  # a slip of the keyboard is not to start thousands of processes

_worker: Any = None


def check_workers(num_workers: int) -> None:
    """Raises KinspanError for a number of processes that cannot be meant."""
    if not 1 <= num_workers <= MOST_WORKERS:
        raise KinspanError(f"--num_workers {num_workers}: must be from 1 to {MOST_WORKERS}")


def _start(handed: str) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    with open(handed, "rb") as file:
        make_worker, arguments = pickle.load(file)
    _worker = make_worker(*arguments)


def _call(chunk: Any) -> Any:
    return _worker(chunk)


def local(make_worker: Callable[..., Callable], arguments: tuple, chunks: Iterable, num_workers: int) -> Iterator[Any]:
    """``make_worker(*arguments)(chunk)`` for each chunk, in the order of ``chunks``, in ``num_workers`` processes.

    A few chunks a worker are in flight at a time, so that memory stays bounded. With one worker the work runs
    in one process of its own all the same, while this one reads.
    """
    context = multiprocessing.get_context("spawn")  # fork after threads have started is unsafe
    # By a file: megabytes in a new process's own pipe would hang this one if that process dies while starting.
    with tempfile.NamedTemporaryFile(delete=False) as handed:
        pickle.dump((make_worker, arguments), handed)
    pool = ProcessPoolExecutor(num_workers, context, _start, (handed.name,))
    pending: deque[Future] = deque()
    try:
        for chunk in chunks:
            pending.append(pool.submit(_call, chunk))
            if len(pending) > 3 * num_workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise KinspanError(
            "a worker process died (killed, perhaps for memory): run again with a smaller --num_workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        os.unlink(handed.name)
