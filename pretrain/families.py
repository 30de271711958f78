"""The model families that can be trained, and where each keeps its heads.

A family is listed once its packed forward was tested to equal the unpacked one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Family:
    """How one architecture of ``transformers`` is taken apart.

    mlm_head:        the module of the masked-LM model that maps hidden states to vocabulary logits
    mlm_head_name:   its name there, as the weights file has it
    pair_logits:     (sequence classifier, first tokens ``[n, hidden]``) -> logits ``[n]``. The architecture's own
                     head, called on gathered first tokens: it would itself look at position 0 of the row only
    first_position:  the position id of a sequence's first token
    """

    mlm_head: Callable[[nn.Module], nn.Module]
    mlm_head_name: str
    pair_logits: Callable[[nn.Module, torch.Tensor], torch.Tensor]
    first_position: int


def _bert_pair(classifier: nn.Module, first: torch.Tensor) -> torch.Tensor:
    pooled = classifier.bert.pooler(first[:, None])  # type: ignore[union-attr, operator]
    return classifier.classifier(classifier.dropout(pooled))[:, 0]  # type: ignore[operator]


def _roberta_pair(classifier: nn.Module, first: torch.Tensor) -> torch.Tensor:
    return classifier.classifier(first[:, None])[:, 0]  # type: ignore[operator]


FAMILIES: dict[str, Family] = {
    "bert": Family(lambda model: model.cls, "cls", _bert_pair, 0),  # type: ignore[arg-type, return-value]
    "roberta": Family(lambda model: model.lm_head, "lm_head", _roberta_pair, 2),  # type: ignore[arg-type, return-value]
    "electra": Family(lambda model: model.generator_predictions, "generator_predictions", _roberta_pair, 0),  # type: ignore[arg-type, return-value]
}
