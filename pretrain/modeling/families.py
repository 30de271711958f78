"""The model families that can be trained, with the parts of ``transformers``' models that training and releases need.

Tests compare each family's forward pass with that of ``transformers`` on unpacked pairs.
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
    """Describes one architecture of ``transformers``.

    classifier:       its class of sequence classifiers, as which a model is released
    masked_lm:        its class of masked-LM models
    mlm_head:         names of the modules of a masked-LM model that map hidden states to vocabulary logits, in order
    pair_logits:      (classifier, hidden states of first tokens ``[n, hidden]``) -> logits ``[n]``, by the pair head
    first_position:   config -> the position id of a sequence's first token
    encode:           runs the encoder on a packed row, if its attention does not use the attention interface
    token_types:      whether its forward takes token type ids
    masked_lm_folder: subfolder for the masked-LM model in a release, if its head shares names with the classifier's
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
    return classifier.classifier(classifier.dropout(classifier.bert.pooler(first[:, None])))[:, 0]


def _albert_pair(classifier: PreTrainedModel, first: Tensor) -> Tensor:
    pooled = classifier.albert.pooler_activation(classifier.albert.pooler(first))
    return classifier.classifier(classifier.dropout(pooled))[:, 0]


def _deberta_pair(classifier: PreTrainedModel, first: Tensor) -> Tensor:
    return classifier.classifier(classifier.dropout(classifier.pooler(first[:, None])))[:, 0]


def _modernbert_pair(classifier: PreTrainedModel, first: Tensor) -> Tensor:
    return classifier.classifier(classifier.drop(classifier.head(first)))[:, 0]


def _distilbert_pair(classifier: PreTrainedModel, first: Tensor) -> Tensor:
    return classifier.classifier(classifier.dropout(classifier.pre_classifier(first).relu()))[:, 0]


def _first_token_pair(classifier: PreTrainedModel, first: Tensor) -> Tensor:
    return classifier.classifier(first[:, None])[:, 0]


FAMILIES: dict[str, Family] = {
    **{
        model_type: Family(
            f"{name}ForSequenceClassification",
            f"{name}ForMaskedLM",
            ("lm_head",),
            _first_token_pair,
            first_position=lambda config: config.pad_token_id + 1,
        )
        for model_type, name in (("roberta", "Roberta"), ("xlm-roberta", "XLMRoberta"), ("camembert", "Camembert"))
    },
    "bert": Family("BertForSequenceClassification", "BertForMaskedLM", ("cls",), _bert_pair),
    "distilbert": Family(
        "DistilBertForSequenceClassification",
        "DistilBertForMaskedLM",
        ("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
        _distilbert_pair,
        token_types=False,
    ),
    "electra": Family(
        "ElectraForSequenceClassification",
        "ElectraForMaskedLM",
        ("generator_predictions", "generator_lm_head"),
        _first_token_pair,
    ),
    "albert": Family("AlbertForSequenceClassification", "AlbertForMaskedLM", ("predictions",), _albert_pair),
    "mpnet": Family(
        "MPNetForSequenceClassification",
        "MPNetForMaskedLM",
        ("lm_head",),
        _first_token_pair,
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
