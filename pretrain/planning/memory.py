"""How much memory training takes, by formula: for the parameters and their optimizer, and for activations.

DeepSpeed's communication buckets, the CUDA context, the masked-LM loss's copies in fp32 (1 GB at most), and what the
allocator loses to fragmentation are not counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
MOMENTS = 8  # Adam's two, in fp32
MASTER = 4  # the fp32 copy that ZeRO updates; fp32 runs have it, too
DRAWING = 8  # the softmax and its padded copy, in fp32, for each entry of the vocabulary: see objectives/rtd.py
ACCUMULATED = {"fp32": 4, "bf16": 4, "fp16": 2}  # gradients; runtime.engine has those of bf16 added up in fp32


@dataclass(frozen=True)
class States:
    """Bytes on one GPU; ``host``: bytes of the machine's memory for that GPU."""

    weights: float
    gradients: float
    master: float
    moments: float
    host: float = 0.0

    @property
    def on_gpu(self) -> float:
        return self.weights + self.gradients + self.master + self.moments


def compute_states(
    parameters: int, stage: int, precision: str, gpus: int, offload: bool = False, frozen: int = 0
) -> States:
    """Memory for P parameters with AdamW on N GPUs (Rajbhandari et al., 2020, "ZeRO", section 3).

    Stage 0 keeps weights, gradients and moments whole on every GPU, 16 P bytes. Stage 1 divides the moments and the
    fp32 master copy among the GPUs, stage 2 the gradients too, and stage 3 the weights too.

    offload: gradients, master copy and moments lie in the machine's memory
    frozen:  so many more parameters are not trained, and have weights alone
    """
    whole, share = float(parameters), parameters / gpus
    weights = BYTES[precision] * (share + frozen / gpus if stage == 3 else whole + frozen)
    gradients = ACCUMULATED[precision] * (share if stage >= 2 else whole)
    master = MASTER * share if stage else 0.0
    moments = MOMENTS * (share if stage else whole)
    if offload:
        return States(weights, 0.0, 0.0, 0.0, host=gradients + master + moments)
    return States(weights, gradients, master, moments)


def estimate_activations(
    encoders: Iterable[Any], tokens: int, masked: int, precision: str, sampled: bool = False
) -> float:
    """Estimates the bytes that the backward pass of a micro-batch needs.

    encoders: the configs of the encoders that run
    masked:   so many of the tokens are projected onto the vocabulary
    sampled:  replacements are drawn for the masked tokens, as replaced-token detection does

    Each token takes ``(8 h + 2 f) b + 2 h`` per layer, h being the hidden size, f the inner size and b the bytes of a
    number: Korthikanti et al., 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.1,
    without the attention matrices, which flash attention does not keep. Each masked token takes ``V b`` for its logits
    over the V entries of the vocabulary, and ``8 V`` more where a replacement is drawn.
    """
    size, layers, vocabulary = BYTES[precision], 0.0, 0
    for config in encoders:
        each = (8 * config.hidden_size + 2 * config.intermediate_size) * size + 2 * config.hidden_size
        layers += each * config.num_hidden_layers * getattr(config, "inner_group_num", 1)
        vocabulary = config.vocab_size
    return tokens * layers + masked * vocabulary * (size + (DRAWING if sampled else 0))
