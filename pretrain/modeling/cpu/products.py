"""Linear layers on a processor, whose products of matrices in fp32 go to the faster of torch's two libraries.

torch takes MKL, which uses AVX2 alone on processors that are not Intel's: with AVX-512 oneDNN is twice as fast
(benchmarks/RESULTS.md, training step).
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@cache
def prefers_onednn() -> bool:
    """Returns whether products of matrices in fp32 are faster by oneDNN on this processor."""
    return torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns ``x @ weight.T + bias`` in fp32 by oneDNN: ``[..., in]`` and ``[out, in]``, both of any strides."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Product(torch.autograd.Function):
    """A linear layer by ``multiply``, and its gradients likewise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad, rows = (tensor.reshape(-1, tensor.shape[-1]) for tensor in (grads[0], x))
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            multiply(grads[0], weight.T) if of_x else None,
            multiply(grad.T, rows.T) if of_weight else None,
            grad.sum(0) if of_bias else None,
        )


class Linear(nn.Linear):
    """torch's linear layer, which multiplies by oneDNN where that is faster."""

    def forward(self, x: Tensor) -> Tensor:
        on_host = x.device.type == "cpu" and x.dtype == self.weight.dtype == torch.float32
        if on_host and x.numel() and not torch.is_autocast_enabled("cpu"):
            return _Product.apply(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)


def replace_linear(model: nn.Module) -> None:
    """Makes Linear of torch's linear layers in a model, where that is faster; their parameters stay as they are."""
    if prefers_onednn():
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = Linear
