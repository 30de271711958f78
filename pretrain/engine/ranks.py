"""Communication between the ranks.

Objects and counts are exchanged over separate gloo groups, so that no rank waits for its device; tensors on the device
are summed over the default group.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from data_pipeline.core.errors import KinspanError, quote_error

Value = TypeVar("Value")
FAILURES = ("connection closed", "connection reset", "broken pipe", "gloo", "nccl")  # in errors of collectives
TIMEOUT = timedelta(hours=24)  # long, because the watchdog notices a stalled rank much earlier, and names it


def is_distributed() -> bool:
    """Returns whether there are other ranks."""
    return dist.is_initialized() and dist.get_world_size() > 1


def count() -> int:
    """Returns the number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


@cache
def process_group(name: str) -> dist.ProcessGroup:
    """Returns the gloo group "control", or "writer" for checkpoints. All ranks make its first call together."""
    return dist.new_group(backend="gloo", timeout=TIMEOUT)


def extend_timeouts(group: dist.ProcessGroup) -> None:
    """Gives the default group and this one TIMEOUT, else NCCL ends the process after 10 minutes, naming no rank."""
    for each in (None, group):
        dist.distributed_c10d._set_pg_timeout(TIMEOUT, each)


def barrier() -> None:
    """Waits until all ranks have called this."""
    if is_distributed():
        dist.barrier(group=process_group("control"))


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Returns the sum of all ranks' tensors, element by element, over the default group."""
    total = values.clone()
    if is_distributed():
        dist.all_reduce(total)
    return total


def start_sum(values: list[int]) -> Callable[[], list[int]]:
    """Starts to sum each value over all ranks; returns a function that waits for the sums and returns them."""
    total = torch.tensor(values, dtype=torch.int64)
    work = dist.all_reduce(total, group=process_group("control"), async_op=True) if is_distributed() else None

    def wait() -> list[int]:
        if work:
            work.wait()
        return total.tolist()

    return wait


def sum_by_name(sums: torch.Tensor, names: tuple[str, ...]) -> dict[str, float]:
    """Returns the sums of all ranks, by name. ``sums``: ``[len(names)]``, this rank's."""
    return dict(zip(names, sum_over_ranks(sums).tolist(), strict=True))


def gather(value: Value, name: str = "control") -> list[Value]:
    """Returns the values of all ranks, in order of rank, by the process group ``name``."""
    if not is_distributed():
        return [value]
    values = [value] * dist.get_world_size()
    dist.all_gather_object(values, value, group=process_group(name))
    return values


def broadcast_from_rank_0(make: Callable[[], Value]) -> Value:
    """Returns on all ranks the result of ``make`` on rank 0, or raises its KinspanError or OSError as KinspanError."""
    result: list[Value | KinspanError | None] = [None]
    if not is_distributed() or dist.get_rank() == 0:
        try:
            result[0] = make()
        except KinspanError as error:
            result[0] = KinspanError(str(error))  # not its subclass, which pickle may fail to restore
        except OSError as error:
            result[0] = KinspanError(quote_error(error))
    if is_distributed():
        dist.broadcast_object_list(result, src=0, group=process_group("control"))
    if isinstance(result[0], KinspanError):
        raise result[0]
    return cast(Value, result[0])


def make_first_on_each_machine(local_rank: int, make: Callable[[], Value]) -> Value:
    """Calls ``make`` on each machine's first rank, then on the others. If one raises KinspanError, all ranks do."""
    made: list[Value] = []
    for is_first in (True, False):
        failure = None
        if (local_rank == 0) == is_first:
            try:
                made.append(make())
            except KinspanError as error:
                failure = str(error)
        if message := next(filter(None, gather(failure)), None):
            raise KinspanError(message)
    return made[0]


class CommunicationFailure(KinspanError):
    """Raised when a collective failed, as the network broke or another rank ended; the watchdog finds out which."""


@contextmanager
def report_failures() -> Iterator[None]:
    """Raises CommunicationFailure if a collective fails in the block."""
    try:
        yield
    except RuntimeError as error:
        if not is_distributed() or not any(sign in str(error).lower() for sign in FAILURES):
            raise
        failure = f"rank {dist.get_rank()}: communication with the other ranks failed: {quote_error(error)}"
        raise CommunicationFailure(failure) from error
