"""Which numbers a run computes with."""

import torch

from data_pipeline.errors import KinspanError


def choose_precision(wanted: str, zero_stage: int) -> str:
    """One of "fp32", "bf16" and "fp16"; ``wanted`` may also be "auto", which is resolved for this machine.

    Without ZeRO, DeepSpeed never scales the loss in fp16, and gives no access to an fp32 copy of bf16 weights.
    """
    on_gpu = torch.cuda.is_available()
    if not zero_stage:
        if wanted in ("bf16", "fp16"):
            raise KinspanError(f"--precision {wanted} needs ZeRO 1 or higher: use ds_configs/zero1.json")
        return "fp32"
    if wanted == "auto":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False) if on_gpu else _has_bf16_processor()
        return "bf16" if has_bf16 else "fp32"
    if wanted == "fp16" and not on_gpu:
        raise KinspanError("--precision fp16 needs a GPU: use bf16 or fp32 here")
    return wanted


def _has_bf16_processor() -> bool:
    """Whether this processor multiplies bf16 matrices faster than fp32 ones: Intel's AVX-512 without AMX halves the
    speed."""
    capabilities = torch.cpu.get_capabilities()
    is_intel = "Intel" in capabilities.get("cpu_name", "")
    return bool(capabilities.get("amx_bf16") or (capabilities.get("avx512_bf16") and not is_intel))
