"""The vocabulary projection on a GPU, with as many columns as matrix units like.

Of an odd number of columns, such as RoBERTa's 50,265, cuBLAS multiplies by kernels that read one number at a time.
"""

import torch
import torch.nn.functional as F
from torch import nn

ALIGNED = 64  # columns; NVIDIA, "Matrix Multiplication Background User's Guide", section 4


class AlignedLinear(nn.Linear):
    """torch's linear layer, with further outputs of -inf up to a multiple of ALIGNED: a softmax gives those nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added = -self.out_features % ALIGNED
        weight = F.pad(self.weight, (0, 0, 0, added))
        bias = x.new_zeros(self.out_features) if self.bias is None else self.bias
        return F.linear(x, weight, F.pad(bias, (0, added), value=-torch.inf))


def align_vocabulary(model: nn.Module, vocab_size: int) -> None:
    """Makes AlignedLinear of a model's projections to the vocabulary; their parameters stay as they are."""
    if vocab_size % ALIGNED:
        for module in model.modules():
            if type(module) is nn.Linear and module.out_features == vocab_size:
                module.__class__ = AlignedLinear
