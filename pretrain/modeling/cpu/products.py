"""Linear layers on a CPU, which multiply fp32 matrices by the faster of torch's two libraries.

torch uses MKL, which runs only AVX2 on CPUs that are not Intel's; with AVX-512 oneDNN is twice as fast
(benchmarks/RESULTS.md, training step).
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@cache
def prefers_onednn() -> bool:
    """Returns whether oneDNN multiplies fp32 matrices faster than MKL on this CPU."""
    return torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns ``x @ weight.T + bias`` in fp32 by oneDNN, for ``x [..., in]``, ``weight [out, in]`` of any strides."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Product(torch.autograd.Function):
    """Computes a linear layer and its gradients by ``multiply``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad, rows = (tensor.reshape(-1, tensor.shape[-1]) for tensor in (grads[0], x))
        x_needed, weight_needed, bias_needed = ctx.needs_input_grad
        return (
            multiply(grads[0], weight.T) if x_needed else None,
            multiply(grad.T, rows.T) if weight_needed else None,
            grad.sum(0) if bias_needed else None,
        )


class Linear(nn.Linear):
    """torch's linear layer, which multiplies fp32 matrices on a CPU by oneDNN."""

    def forward(self, x: Tensor) -> Tensor:
        is_fp32_on_cpu = x.device.type == "cpu" and x.dtype == self.weight.dtype == torch.float32
        if is_fp32_on_cpu and x.numel() and not torch.is_autocast_enabled("cpu"):
            return _Product.apply(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)


def replace_linear(model: nn.Module) -> None:
    """Turns a model's linear layers into Linear, if that is faster; their parameters are unchanged."""
    if prefers_onednn():
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = Linear
