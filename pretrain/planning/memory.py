"""How much memory training takes, by formula: what DeepSpeed keeps of the parameters, and a micro-batch's activations.

Not counted: DeepSpeed's communication buckets, the CUDA context, and what the allocator loses to fragmentation.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
MOMENTS = 8  # Adam's two, in fp32
MASTER = 4  # the fp32 copy that ZeRO updates, in fp32 runs too
DRAWING = 8  # an entry's softmax and its padded copy, in fp32, see rtd.sample
ACCUMULATED = {"fp32": 4, "bf16": 4, "fp16": 2}  # gradients: bf16 ones are added up in fp32, see engine.full_settings


@dataclass(frozen=True)
class States:
    """Bytes of one GPU, and in ``host`` those of the machine's memory for it."""

    weights: float
    gradients: float
    master: float
    moments: float
    host: float = 0.0

    @property
    def on_gpu(self) -> float:
        return self.weights + self.gradients + self.master + self.moments


def compute_states(parameters: int, stage: int, precision: str, gpus: int, offload: bool = False) -> States:
    """Of P parameters with AdamW on N GPUs (Rajbhandari et al., 2020, "ZeRO", section 3).

    Stage 0 keeps weights, gradients and moments whole on every GPU, 16 P bytes. Stage 1 keeps P/N of the moments and of
    the fp32 master copy; stage 2 of the gradients too; stage 3 of the weights too. Bytes a parameter: weights 4 in
    fp32, else 2; gradients 4, in fp16 2; master copy 4; moments 8.

    offload: gradients, master copy and moments lie in the machine's memory, and the GPU has the weights alone
    """
    whole, share = float(parameters), parameters / gpus
    weights = BYTES[precision] * (share if stage == 3 else whole)
    gradients = ACCUMULATED[precision] * (share if stage >= 2 else whole)
    master = MASTER * share if stage else 0.0
    moments = MOMENTS * (share if stage else whole)
    if offload:
        return States(weights, 0.0, 0.0, 0.0, host=gradients + master + moments)
    return States(weights, gradients, master, moments)


def estimate_activations(
    encoders: Iterable[Any], tokens: int, masked: int, precision: str, sampled: bool = False
) -> float:
    """Bytes that the backward pass of a micro-batch needs, an estimate.

    encoders: the configs of the encoders that run;  tokens: in the micro-batch;  masked: those that the vocabulary is
    projected for;  sampled: whether replacements are drawn for these, as replaced-token detection does

    For each token and layer ``(8 h + 2 f) b + 2 h``, h being the hidden size, f the inner size and b the bytes of a
    number: the inputs of the matrices, of GELU and of LayerNorm, and a byte for each of two dropouts. With f = 4 h and
    b = 2 these are the 34 h of Korthikanti et al., 2022, "Reducing Activation Recomputation in Large Transformer
    Models", section 4.1, without their attention matrices, which flash attention does not keep. For each masked token
    ``V (b + 8)``: its logits over the V entries of the vocabulary, in fp32 their log-softmax and its gradient; and
    ``8 V`` more where a replacement is drawn: the softmax in fp32, and its copy padded to whole blocks.
    """
    size, layers, vocabulary = BYTES[precision], 0.0, 0
    for config in encoders:
        each = (8 * config.hidden_size + 2 * config.intermediate_size) * size + 2 * config.hidden_size
        layers += each * config.num_hidden_layers * getattr(config, "inner_group_num", 1)
        vocabulary = config.vocab_size
    return tokens * layers + masked * vocabulary * (size + 8 + (DRAWING if sampled else 0))
