"""Estimates the memory of training by formula, and its time from the utilisation measured on an H200.

Not counted: DeepSpeed's communication buckets, the CUDA context, the masked-LM loss's copies in fp32 (1 GB at most) and
fragmentation.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
MOMENTS = 8  # bytes per parameter of Adam's two moments, in fp32
MASTER = 4  # bytes per parameter of ZeRO's fp32 copy of the weights, which fp32 runs have, too
SAMPLED = 8  # bytes per logit if replacements are sampled: softmax and padded copy in fp32, see modeling/electra.py
ACCUMULATED = {"fp32": 4, "bf16": 4, "fp16": 2}  # bytes of a gradient; pretrain.engine sums those of bf16 in fp32

# Shares of the peak in bf16, measured with base models in large micro-batches (benchmarks/RESULTS.md, "GPU")
UTILISATION = {"electra": 0.29, "modernbert": 0.17}
OTHER_UTILISATION, WIDTH = 0.34, 768  # RoBERTa-base's; narrower models reach less, in proportion to their hidden size
NODE_GPUS, NVLINK = 8, 200.0  # GPUs per machine, and GB/s between them
HOST_SECONDS = 0.04  # of an update of RoBERTa-base, however few its pairs; the host works ahead of the GPU
SENT_BYTES = 10  # per parameter and update, not overlapped: gradients in fp32 twice, weights in bf16 once


def compute_states(
    parameters: int, stage: int, precision: str, gpus: int, offload: bool = False, frozen: int = 0
) -> tuple[float, float]:
    """Returns the bytes of weights, gradients and AdamW's states: on each GPU, and in host memory for that GPU.

    Rajbhandari et al., 2020, "ZeRO", section 3. Stage 1 divides the moments and the fp32 master copy among the GPUs,
    stage 2 the gradients too, and stage 3 the weights too. ``frozen``: number of further parameters, not trained
    """
    undivided, share = float(parameters), parameters / gpus
    weights = BYTES[precision] * (share + frozen / gpus if stage == 3 else undivided + frozen)
    for_update = ACCUMULATED[precision] * (share if stage >= 2 else undivided)
    for_update += (MASTER + MOMENTS) * share if stage else MOMENTS * undivided
    return (weights, for_update) if offload else (weights + for_update, 0.0)


def estimate_activations(
    encoders: "Iterable[PreTrainedConfig]", tokens: int, masked: int, precision: str, sampled: bool = False
) -> float:
    """Estimates the bytes that the backward pass of a micro-batch needs.

    Each token takes ``(8 h + 2 f) b + 2 h`` per layer, h being the hidden size, f the inner size and b the bytes of a
    number: Korthikanti et al., 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.1,
    without the attention matrices, which flash attention does not keep. Each ``masked`` token takes ``V b`` for its
    logits over the V entries of the vocabulary, and ``8 V`` more where a replacement is ``sampled``.
    """
    size, per_token, vocabulary = BYTES[precision], 0.0, 0
    for config in encoders:
        inner = getattr(config, "hidden_dim", None) or config.intermediate_size  # DistilBERT's name for it
        per_layer = (8 * config.hidden_size + 2 * inner) * size + 2 * config.hidden_size
        per_token += per_layer * config.num_hidden_layers * getattr(config, "inner_group_num", 1)  # for ALBERT
        vocabulary = config.vocab_size  # the same for all encoders
    return tokens * per_token + masked * vocabulary * (size + (SAMPLED if sampled else 0))


def estimate_update(
    flops: float, encoder: "PreTrainedConfig", parameters: int, peak: float, count: int, network: float
) -> float:
    """Estimates the seconds of an update in bf16 with ZeRO 1 on ``count`` GPUs of ``peak`` FLOP/s; network: in GB/s."""
    utilisation = UTILISATION.get(encoder.model_type, OTHER_UTILISATION) * min(1.0, encoder.hidden_size / WIDTH)
    speed = NVLINK if count <= NODE_GPUS else network
    sent = SENT_BYTES * parameters * (count - 1) / count / (speed * 1e9)
    return max(flops / (count * peak * utilisation) + sent, HOST_SECONDS)
