"""The model families that can be trained, where each keeps its heads, and what it is released as.

A family is listed once its forward here was tested to equal that of ``transformers`` on unpacked pairs.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from .packing import Packing
from .relative import encode_deberta, encode_mpnet


@dataclass(frozen=True)
class Family:
    """Tells how one architecture of ``transformers`` is taken apart and put together again.

    classifier:       the class that a release names as its own: the encoder with one logit a pair
    mlm_head:         the modules of the masked-LM model that map hidden states to vocabulary logits, in order
    pair_logits:      (sequence classifier, first tokens ``[n, hidden]``) -> logits ``[n]``, by the architecture's own
                      head
    first_position:   config -> the position id of a sequence's first token
    encode:           how its encoder runs on a packed row, where its attention does not go through the attention
                      interface
    token_types:      whether its forward takes token type ids
    masked_lm_folder: where in a release the masked-LM model lies, if its head shares names with the classifier's
    """

    classifier: str
    masked_lm: str
    mlm_head: tuple[str, ...]
    pair_logits: Callable[[PreTrainedModel, Tensor], Tensor]
    first_position: Callable[[PreTrainedConfig], int] = lambda config: 0
    encode: Callable[[PreTrainedModel, dict[str, Tensor], Packing], Tensor] | None = None
    token_types: bool = True
    masked_lm_folder: str = ""

    def mlm_head_of(self, masked_lm: PreTrainedModel) -> nn.Sequential:
        """Returns the masked-LM head as one module, whose parameters keep their names in ``masked_lm``."""
        return nn.Sequential(OrderedDict((name, getattr(masked_lm, name)) for name in self.mlm_head))


def _bert_pair(classifier: PreTrainedModel, first: Tensor) -> Tensor:
    pooled = classifier.bert.pooler(first[:, None])
    return classifier.classifier(classifier.dropout(pooled))[:, 0]


def _albert_pair(classifier: PreTrainedModel, first: Tensor) -> Tensor:
    pooled = classifier.albert.pooler_activation(classifier.albert.pooler(first))
    return classifier.classifier(classifier.dropout(pooled))[:, 0]


def _deberta_pair(classifier: PreTrainedModel, first: Tensor) -> Tensor:
    pooled = classifier.pooler(first[:, None])
    return classifier.classifier(classifier.dropout(pooled))[:, 0]


def _modernbert_pair(classifier: PreTrainedModel, first: Tensor) -> Tensor:
    return classifier.classifier(classifier.drop(classifier.head(first)))[:, 0]


def _head_that_takes_the_first(classifier: PreTrainedModel, first: Tensor) -> Tensor:
    return classifier.classifier(first[:, None])[:, 0]


FAMILIES: dict[str, Family] = {
    "roberta": Family(
        "RobertaForSequenceClassification",
        "RobertaForMaskedLM",
        ("lm_head",),
        _head_that_takes_the_first,
        first_position=lambda config: config.pad_token_id + 1,
    ),
    "bert": Family("BertForSequenceClassification", "BertForMaskedLM", ("cls",), _bert_pair),
    "electra": Family(
        "ElectraForSequenceClassification",
        "ElectraForMaskedLM",
        ("generator_predictions", "generator_lm_head"),
        _head_that_takes_the_first,
    ),
    "albert": Family("AlbertForSequenceClassification", "AlbertForMaskedLM", ("predictions",), _albert_pair),
    "mpnet": Family(
        "MPNetForSequenceClassification",
        "MPNetForMaskedLM",
        ("lm_head",),
        _head_that_takes_the_first,
        first_position=lambda config: 2,
        encode=encode_mpnet,
        token_types=False,
    ),
    "deberta-v2": Family(
        "DebertaV2ForSequenceClassification", "DebertaV2ForMaskedLM", ("cls",), _deberta_pair, encode=encode_deberta
    ),
    "modernbert": Family(
        "ModernBertForSequenceClassification",
        "ModernBertForMaskedLM",
        ("head", "decoder"),
        _modernbert_pair,
        token_types=False,
        masked_lm_folder="masked_lm",
    ),
}
