"""The device that a rank computes on: its GPU, or the processor of a machine without one."""

import os
from pathlib import Path

import torch

from data_pipeline.errors import KinspanError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}  # by the names of --precision
VISIBLE = "CUDA_VISIBLE_DEVICES"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # today's name, and the former one


def claim_device(local_rank: int, allow_cpu: bool) -> None:
    """Makes this rank's GPU the current one, before anything else uses a GPU."""
    if not any(name in os.environ for name in ALLOCATOR):
        os.environ[ALLOCATOR[0]] = "expandable_segments:True"  # lengths differ from batch to batch
    if not torch.cuda.is_available():
        if not allow_cpu and os.environ.get(VISIBLE) not in ("", "-1") and list_gpus():
            raise KinspanError(
                f"this machine has GPUs ({', '.join(list_gpus())}), and torch cannot use them: torch was built for "
                f"CUDA {torch.version.cuda}; install a torch for its driver, or train on the processor with --allow_cpu"
            )
        return
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise KinspanError(
            f"local rank {local_rank} has no GPU: {count} are visible on this machine ({VISIBLE} is "
            f"{os.environ.get(VISIBLE, 'not set')}); start as many ranks as GPUs, and under Slurm let each task see "
            "all of its node's (--gpus-per-node in place of --gpus-per-task)"
        )
    torch.cuda.set_device(local_rank)


def list_gpus() -> list[str]:
    return sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))


def describe_device() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"processor, {torch.get_num_threads()} thread(s)"


def set_product_precision(tf32: bool, deterministic: bool) -> None:
    """How a GPU multiplies fp32 matrices: in TF32, at eight times the speed, or in full precision."""
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high" if tf32 and not deterministic else "highest")
