"""Recognises that memory ran out, says what to do about it, and keeps a process on a CPU from growing."""

import ctypes

import torch

SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_cpu")


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


def describe_out_of_memory(micro: int, length: int) -> str:
    return (
        f"out of memory with {micro} pairs of {length} tokens: lower --micro_batch_size below {micro} (the global "
        f"batch stays) or --max_length (now {length}), or use a higher ZeRO stage or ds_configs/offload.json"
    )


def return_freed_memory() -> None:
    """Has glibc give freed memory back to the system, where tensors lie in the machine's memory.

    Every batch has other shapes, and what glibc keeps of them fits no later one: a process would grow by gigabytes.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim and not torch.cuda.is_available():
        trim(0)
