"""The average of a run's last checkpoints, whose noise from single updates partly cancels.

Izmailov et al., 2018, "Averaging Weights Leads to Wider Optima and Better Generalization". Whether it helps depends on
the run: docs/releases.md has a run whose ranking it harmed.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file


def average_weights(checkpoints: Sequence[Path]) -> dict[str, torch.Tensor]:
    """The mean of each tensor over the checkpoints, in fp32; they are summed in fp64 and read one after another.

    Raises ValueError where the checkpoints hold different tensors.
    """
    first, *others = checkpoints
    weights = load_file(str(first / "weights.safetensors"))
    if not others:
        return weights
    sums = {name: tensor.double() for name, tensor in weights.items()}
    for checkpoint in others:
        more = load_file(str(checkpoint / "weights.safetensors"))
        if more.keys() != sums.keys():
            raise ValueError(f"{checkpoint} holds other tensors than {first}")
        for name, tensor in more.items():
            sums[name] += tensor
    return {name: (total / len(checkpoints)).to(weights[name].dtype) for name, total in sums.items()}
