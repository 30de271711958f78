"""Hours of training on GPUs: arithmetic over the utilisation that an H200 reached, and the gradients' way."""

from typing import Any

from pretrain.metrics import PEAK_TFLOPS

# Shares of the peak in bf16, measured with base models in large micro-batches (benchmarks/RESULTS.md, "GPU")
UTILISATION = {"electra": 0.29, "modernbert": 0.17}
OF_OTHERS, WIDTH = 0.34, 768  # RoBERTa-base's; narrower models reach less in proportion: MiniLM's 384 0.19
SHOWN = ("A100", "H100", "H200")
NODE, NVLINK = 8, 200.0  # GPUs of a machine, and GB/s between them
SENT = 10  # bytes per parameter and update, not overlapped: gradients in fp32 twice, weights in bf16 once


def estimate_update(flops: float, encoder: Any, parameters: int, gpu: str, count: int, network: float) -> float:
    """Returns the seconds of an update in bf16 with ZeRO 1.

    flops:   of the whole update
    encoder: its config
    network: GB/s between machines
    """
    utilisation = UTILISATION.get(encoder.model_type, OF_OTHERS) * min(1.0, encoder.hidden_size / WIDTH)
    speed = NVLINK if count <= NODE else network
    sent = SENT * parameters * (count - 1) / count / (speed * 1e9)
    return flops / (count * PEAK_TFLOPS[gpu] * 1e12 * utilisation) + sent
