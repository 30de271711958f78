"""Everything that a sequence classifier has above its encoder; families differ in where they keep it."""

from typing import Any

import torch
from torch import nn

POOLER = "pooler"  # in the encoder's module, but of the head: only pairs are read through it


def list_head_modules(classifier: Any) -> list[nn.Module]:
    """The modules that map the hidden state of the first token to logits, in the order of the forward pass."""
    encoder = classifier.base_model
    pooler = getattr(encoder, POOLER, None)
    others = [module for module in classifier.children() if module is not encoder]
    return [pooler, *others] if isinstance(pooler, nn.Module) else others


def redraw_head(classifier: Any, seed: int) -> None:
    """Draws all parameters above the encoder anew, as the architecture initialises them, and leaves the encoder."""
    torch.manual_seed(seed)
    for module in list_head_modules(classifier):
        for parameter in module.parameters():
            parameter._is_hf_initialized = False  # type: ignore[attr-defined]  # else it would be left as it was loaded
        module.apply(classifier._init_weights)


def find_last_layer(classifier: Any) -> nn.Linear:
    """Returns the layer that gives the logits."""
    *_, last = (module for module in classifier.classifier.modules() if isinstance(module, nn.Linear))
    return last


def fold_two_labels(classifier: Any) -> None:
    """Makes one logit of two: that of label 1 less that of label 0, on which alone their softmax depends."""
    last = find_last_layer(classifier)
    with torch.no_grad():
        last.weight = nn.Parameter(last.weight[1:] - last.weight[:1])
        last.bias = nn.Parameter(last.bias[1:] - last.bias[:1])
    last.out_features = 1
    classifier.config.num_labels = classifier.num_labels = 1
