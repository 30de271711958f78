"""The device that a rank computes on, its memory, and the precision of computation."""

import ctypes
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from data_pipeline.core.errors import KinspanError

log = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}  # by the names of --precision
VISIBLE = "CUDA_VISIBLE_DEVICES"
DEVICES = Path("/dev")
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
MEASURED_SECONDS = 0.3  # of the processors' use
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_cpu")


def claim_device(local_rank: int) -> None:
    """Selects this rank's GPU, before anything else uses one. Raises KinspanError if GPUs exist but are unusable."""
    if not any(name in os.environ for name in ALLOCATOR):
        os.environ[ALLOCATOR[0]] = "expandable_segments:True"  # batches differ in length, which would fragment memory
    if not torch.cuda.is_available():
        if os.environ.get(VISIBLE) not in ("", "-1") and any(DEVICES.glob("nvidia[0-9]*")):
            cause = f"torch for CUDA {torch.version.cuda} cannot use this machine's GPUs"
            raise KinspanError(f"{cause}: to use the processor, set {VISIBLE} to -1")
        return
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise KinspanError(
            f"local rank {local_rank} has no GPU: {VISIBLE} shows {count} here; under Slurm use --gpus-per-node"
        )
    torch.cuda.set_device(local_rank)


def name_device() -> str:
    """Returns a name such as "NVIDIA H100 80GB HBM3" or "processor, 2 thread(s)"."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"processor, {torch.get_num_threads()} thread(s)"


def set_threads(local_ranks: int = 1) -> None:
    """Lets PyTorch use this rank's share of the processors; a single rank leaves those that are busy to others."""
    if torch.cuda.is_available() or "OMP_NUM_THREADS" in os.environ:
        return
    processors = sorted(os.sched_getaffinity(0))
    threads = max(1, len(processors) // local_ranks)
    if local_ranks == 1 and threads > 1:  # several ranks would see each other
        used = psutil.cpu_times_percent(interval=MEASURED_SECONDS, percpu=True)
        # Programs with a low priority give way. Where numbers of processors have gaps, ``used`` is shorter.
        busy = sum((used[i].user + used[i].system) / 100 for i in processors if i < len(used))
        threads = max(1, threads - round(busy))
        if threads < len(processors):
            log.warning("%d thread(s): other programs keep %.1f of %d processors busy", threads, busy, len(processors))
    torch.set_num_threads(threads)


def choose_precision(requested: str, zero_stage: int) -> str:
    """Returns "fp32", "bf16" or "fp16"; ``requested`` may also be "auto", which is resolved for this machine.

    Without ZeRO, DeepSpeed never scales the loss in fp16, and gives no access to an fp32 copy of bf16 weights.
    """
    on_gpu = torch.cuda.is_available()
    if not zero_stage:
        if requested in ("bf16", "fp16"):
            raise KinspanError(f"--precision {requested} needs ZeRO 1 or higher: use ds_configs/zero1.json")
        return "fp32"
    if requested == "auto":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False) if on_gpu else _has_bf16_processor()
        return "bf16" if has_bf16 else "fp32"
    if requested == "fp16" and not on_gpu:
        raise KinspanError("--precision fp16 needs a GPU: use bf16 or fp32 here")
    return requested


def _has_bf16_processor() -> bool:
    """Returns whether this processor multiplies bf16 faster than fp32: Intel's AVX-512 without AMX halves the speed."""
    capabilities = torch.cpu.get_capabilities()
    is_intel = "Intel" in capabilities.get("cpu_name", "")
    return bool(capabilities.get("amx_bf16") or (capabilities.get("avx512_bf16") and not is_intel))


@contextmanager
def refuse_out_of_memory(message: str) -> Iterator[None]:
    """Raises KinspanError with this message if memory runs out in the block, on the GPU or on the host."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's error for a GPU is a RuntimeError, too
        if isinstance(error, RuntimeError) and not any(sign in str(error).lower() for sign in OUT_OF_MEMORY):
            raise
        raise KinspanError(message) from error


def return_freed_memory() -> None:
    """Makes glibc return freed memory to the system: batches differ in shape, so that the process would grow."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim and not torch.cuda.is_available():
        trim(0)
