"""Running out of memory: recognised, and said with what to do."""

import torch

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_cpu")


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in OUT_OF_MEMORY)


def describe_out_of_memory(micro: int, length: int) -> str:
    return (
        f"out of memory with {micro} pairs of {length} tokens: lower --micro_batch_size below {micro} (the global "
        f"batch stays) or --max_length (now {length}), or use a higher ZeRO stage or ds_configs/offload.json"
    )
