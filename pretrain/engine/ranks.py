"""Communication between the ranks.

Objects and counts travel over gloo groups of our own, so that no rank waits for its device; sums of tensors that lie on
the device travel over the default group.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from errno import EDQUOT, ENOSPC
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import describe_write_error

Value = TypeVar("Value")
TIMEOUT = timedelta(hours=24)  # so long because the watchdog notices a stalled rank much earlier, and names it


def is_distributed() -> bool:
    """Whether there are other ranks."""
    return dist.is_initialized() and dist.get_world_size() > 1


def count() -> int:
    """The number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


@cache
def process_group(name: str) -> Any:
    """The gloo group of that name, which all ranks must make together, at its first use.

    "control" is for the training loop, "writer" for the thread that writes checkpoints: two threads never share a
    group.
    """
    return dist.new_group(backend="gloo", timeout=TIMEOUT)


def barrier() -> None:
    """Waits until all ranks have come here."""
    if is_distributed():
        dist.barrier(group=process_group("control"))


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' tensors, element by element, over the default group."""
    total = values.clone()
    if is_distributed():
        dist.all_reduce(total)
    return total


@dataclass(frozen=True)
class Machines:
    """Groups of this machine's ranks and of all machines' first ranks; ``first`` is the one of this machine."""

    own: Any
    firsts: Any
    first: int


_machines: Machines | None = None


def group_by_machine(local_size: int) -> None:
    """Has ``start_sum`` go by machines where there are several with as many ranks each. All ranks call it.

    gloo sends a sum around all ranks twice, 1,022 times in a row for 512: by machines of 8 it is 14 times within each,
    126 times between them, and 3 times back.
    """
    global _machines
    if _machines:
        return
    sizes = gather(local_size)
    if len(set(sizes)) > 1 or not 1 < local_size < len(sizes):
        return
    own, _ = dist.new_subgroups(group_size=local_size, backend="gloo", timeout=TIMEOUT)
    firsts = dist.new_group(list(range(0, len(sizes), local_size)), backend="gloo", timeout=TIMEOUT)
    _machines = Machines(own, firsts, dist.get_rank() // local_size * local_size)


def _sum_by_machines(total: torch.Tensor, machines: Machines) -> None:
    dist.all_reduce(total, group=machines.own)
    if dist.get_rank() == machines.first:
        dist.all_reduce(total, group=machines.firsts)
    dist.broadcast(total, src=machines.first, group=machines.own)


def _start_by_machines(total: torch.Tensor, machines: Machines) -> Callable[[], list[int]]:
    """In a thread that nobody waits for at the end of the program: after an error others may never begin their part."""
    failures: list[Exception] = []

    def run() -> None:
        try:
            _sum_by_machines(total, machines)
        except Exception as error:  # raised where the sum is waited for
            failures.append(error)

    thread = threading.Thread(target=run, name="counts", daemon=True)
    thread.start()

    def wait() -> list[int]:
        thread.join()
        for error in failures:
            raise error
        return total.tolist()

    return wait


def start_sum(values: list[int]) -> Callable[[], list[int]]:
    """Begins to sum each of the numbers over all ranks, and returns what waits for the sums, without the device."""
    total = torch.tensor(values, dtype=torch.int64)
    if _machines:
        return _start_by_machines(total, _machines)
    work: Any = None
    if is_distributed():
        work = dist.all_reduce(total, group=process_group("control"), async_op=True)

    def wait() -> list[int]:
        if work:
            work.wait()
        return total.tolist()

    return wait


def sum_by_name(sums: torch.Tensor, names: tuple[str, ...]) -> dict[str, float]:
    """The sums of all ranks, by name. ``sums``: ``[len(names)]``, this rank's."""
    return dict(zip(names, sum_over_ranks(sums).tolist(), strict=True))


def gather(value: Value, name: str = "control") -> list[Value]:
    """The values of all ranks, in order of rank."""
    if not is_distributed():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=process_group(name))
    return values


def broadcast_from_rank_0(make: Callable[[], Value]) -> Value:
    """What ``make`` returns on rank 0, for all ranks.

    If ``make`` raises KinspanError or OSError there, all ranks raise KinspanError with that text.
    """
    result: list[Any] = [None, None]  # the value, and the text of an error
    if not is_distributed() or dist.get_rank() == 0:
        try:
            result[0] = make()
        except KinspanError as error:
            result[1] = str(error)
        except OSError as error:
            result[1] = describe_storage_error(error)
    if is_distributed():
        dist.broadcast_object_list(result, src=0, group=process_group("control"))
    if result[1] is not None:
        raise KinspanError(result[1])
    return result[0]


def make_first_on_each_machine(local_rank: int, make: Callable[[], Value]) -> Value:
    """What ``make`` returns on this rank. The first rank of each machine calls it before the others there do, which
    then find in the cache what it has downloaded. A KinspanError of any rank is raised on all."""
    made: list[Value] = []
    for turn in (True, False):
        failure = None
        if (local_rank == 0) == turn:
            try:
                made.append(make())
            except KinspanError as error:
                failure = str(error)
        for text in gather(failure):
            if text:
                raise KinspanError(text)
    return made[0]


def describe_storage_error(error: OSError, folder: Path | None = None) -> str:
    """One line that names the file and the system's reason. ``folder``: where it is where the error names no file"""
    place = Path(error.filename) if error.filename else folder
    if place and error.errno in (ENOSPC, EDQUOT):
        return f"{describe_write_error(place, error)}: make room, and start it again"
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}: mend that, and start it again"


def is_communication_failure(error: BaseException) -> bool:
    """Whether an error is that of a collective: another rank may have ended, or the network failed."""
    text = str(error).lower()
    return (
        not isinstance(error, KinspanError)
        and is_distributed()
        and any(sign in text for sign in ("connection closed", "connection reset", "broken pipe", "gloo", "nccl"))
    )


def describe_communication_failure(error: BaseException) -> str:
    """One line with the cause, which blames nobody."""
    return (
        f"rank {dist.get_rank()}: communication with the other ranks failed ({quote_error(error)}): see what they "
        "said; where they said nothing, look at the network between the machines"
    )
