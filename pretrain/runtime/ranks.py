"""What the ranks tell each other: over gloo groups of their own, so that no device is waited for."""

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from data_pipeline.errors import KinspanError

Value = TypeVar("Value")
PATIENCE = timedelta(hours=24)  # a stalled rank is the watchdog's to notice, which names it


def several() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1


@cache
def group(name: str) -> Any:
    """The group of that name, made at the first call by all ranks: "control" for the training loop, "writer" for the
    thread that writes checkpoints. Two threads must never share one."""
    return dist.new_group(backend="gloo", timeout=PATIENCE)


def barrier() -> None:
    if several():
        dist.barrier(group=group("control"))


def total(values: list[int]) -> list[int]:
    """Each of the numbers summed over all ranks."""
    if not several():
        return values
    tensor = torch.tensor(values, dtype=torch.int64)
    dist.all_reduce(tensor, group=group("control"))
    return tensor.tolist()


def gathered(value: Value, name: str = "control") -> list[Value]:
    """What each rank says, in order of rank."""
    if not several():
        return [value]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value, group=group(name))
    return everyone


def from_rank_0(make: Callable[[], Value]) -> Value:
    """What ``make`` returns on rank 0, for all ranks. A KinspanError there, or a file that cannot be read or written,
    is raised by all of them, as a KinspanError."""
    said: list[Any] = [None, None]
    if not several() or dist.get_rank() == 0:
        try:
            said[0] = make()
        except KinspanError as error:
            said[1] = str(error)
        except OSError as error:
            said[1] = storage_error(error)
    if not several():
        if said[1] is not None:
            raise KinspanError(said[1])
        return said[0]
    dist.broadcast_object_list(said, src=0, group=group("control"))
    if said[1] is not None:
        raise KinspanError(said[1])
    return said[0]


def storage_error(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}: mend that, and start it again"


def lost(error: BaseException) -> bool:
    """Whether an error says that another rank is gone."""
    text = str(error).lower()
    return several() and any(
        sign in text for sign in ("connection closed", "connection reset", "broken pipe", "gloo", "nccl")
    )
