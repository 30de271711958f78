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


def is_distributed() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1


@cache
def process_group(name: str) -> Any:
    """The group of that name, made at the first call by all ranks: "control" for the training loop, "writer" for the
    thread that writes checkpoints. Two threads must never share one."""
    return dist.new_group(backend="gloo", timeout=PATIENCE)


def barrier() -> None:
    if is_distributed():
        dist.barrier(group=process_group("control"))


def sum_integers(values: list[int]) -> list[int]:
    """Each of the numbers summed over all ranks."""
    if not is_distributed():
        return values
    tensor = torch.tensor(values, dtype=torch.int64)
    dist.all_reduce(tensor, group=process_group("control"))
    return tensor.tolist()


def gather(value: Value, name: str = "control") -> list[Value]:
    """What each rank says, in order of rank."""
    if not is_distributed():
        return [value]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value, group=process_group(name))
    return everyone


def broadcast_from_rank_0(make: Callable[[], Value]) -> Value:
    """What ``make`` returns on rank 0, for all ranks. A KinspanError there, or a file that cannot be read or written,
    is raised by all of them, as a KinspanError."""
    said: list[Any] = [None, None]
    if not is_distributed() or dist.get_rank() == 0:
        try:
            said[0] = make()
        except KinspanError as error:
            said[1] = str(error)
        except OSError as error:
            said[1] = describe_storage_error(error)
    if not is_distributed():
        if said[1] is not None:
            raise KinspanError(said[1])
        return said[0]
    dist.broadcast_object_list(said, src=0, group=process_group("control"))
    if said[1] is not None:
        raise KinspanError(said[1])
    return said[0]


def describe_storage_error(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}: mend that, and start it again"


def is_peer_failure(error: BaseException) -> bool:
    """Whether an error says that another rank is gone."""
    text = str(error).lower()
    return is_distributed() and any(
        sign in text for sign in ("connection closed", "connection reset", "broken pipe", "gloo", "nccl")
    )


def sum_by_name(stats: torch.Tensor, names: tuple[str, ...]) -> dict[str, float]:
    """The sums of all ranks, by name."""
    total = stats.clone()
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(total)
    return dict(zip(names, total.tolist(), strict=True))
