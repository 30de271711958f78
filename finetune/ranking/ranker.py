"""The cross-encoder that fine-tuning trains: a sequence classifier with one logit, over packed pairs."""

import json
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object
from data_pipeline.tokenizers import load_tokenizer, load_tokenizer_as_it_is
from pretrain.modeling import attention
from pretrain.modeling.adapters.folder import find_model, is_adapter, load_adapted
from pretrain.modeling.adapters.layers import AdaptedNorm
from pretrain.modeling.encoder import encode_packed, prepare_encoder
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.limits import count_positions
from pretrain.modeling.pair_model import (
    build_fresh,
    fold_two_labels,
    holds_no_weights,
    load_config,
    load_part,
    read_config,
    redraw_head,
    silence_transformers,
    start_at_base_rate,
)
from pretrain.release.folder import FACTS, write_max_length
from pretrain.release.release import make_release_config

from .kinds import CLASSIFIER, DEFAULT_LENGTH, UNLIMITED, read_settings, refuse_fusion

log = logging.getLogger(__name__)

FRESH_SEED = 1_000_003  # added to the seed of fresh weights, see load_ranker


class Ranker(nn.Module):
    """Scores (question, candidate) pairs; a score above 0 says that the candidate answers the question.

    classifier: the architecture's own sequence classifier with one logit, encoder included
    """

    def __init__(self, classifier: PreTrainedModel) -> None:
        super().__init__()
        self.classifier = classifier
        self.family = FAMILIES[classifier.config.model_type]
        prepare_encoder(self, classifier.base_model)

    def forward(self, **inputs: Any) -> torch.Tensor:
        """Returns logits ``[n]`` of a packed batch, see encode.EncodedPairs.pack."""
        hidden = encode_packed(self.classifier.base_model, inputs)
        return self.family.pair_logits(self.classifier, hidden[inputs["starts"][:-1].long()]).float()


def load_ranker(name_or_dir: str, seed: int = 0, positive_share: float = 0.5, fresh_head: bool = False) -> Ranker:
    """Returns the model to fine-tune, in fp32, and logs which of its weights are new.

    name_or_dir:    a release, an adapter beside its base, another weights folder, a hub name, or a folder with a
                    config alone, from which training starts from scratch. A head of two labels is folded into one logit
    seed:           seed of fresh weights
    positive_share: share of answers among the training pairs, which a fresh head predicts at first
    fresh_head:     replace everything above the encoder by fresh weights
    """
    if is_adapter(name_or_dir):
        if fresh_head:
            raise KinspanError(f"--fresh_head does not go with the adapter {name_or_dir}")
        return Ranker(load_adapted(name_or_dir, attn_implementation=attention.NAME))
    refuse_fusion(name_or_dir)
    config = load_config(name_or_dir)
    # Not the seed itself, from which pre-training may have drawn the head that its encoder was trained with.
    torch.manual_seed(FRESH_SEED + seed)
    if holds_no_weights(name_or_dir):
        classifier = build_fresh(AutoModelForSequenceClassification, config, name_or_dir)
        start_at_base_rate(classifier, positive_share)
        log.info("%s holds no weights: the model starts from scratch", name_or_dir)
        return Ranker(classifier)
    stored = AutoConfig.from_pretrained(name_or_dir, trust_remote_code=False)
    is_classifier = next(iter(stored.architectures or []), "").endswith(CLASSIFIER)
    if is_classifier and not fresh_head and getattr(stored, "classifier_pooling", "cls") != "cls":
        log.warning("%s: its head was trained on the mean of the tokens, and reads the first token here", name_or_dir)
    has_two_labels = not fresh_head and is_classifier and stored.num_labels == 2  # any other head starts fresh
    if has_two_labels:
        config.num_labels = 2
    options = {"config": config, "attn_implementation": attention.NAME, "dtype": torch.float32}
    classifier, missing = load_part(AutoModelForSequenceClassification, name_or_dir, options)
    if has_two_labels:
        fold_two_labels(classifier)
        log.info("the two labels of the head are folded into one logit: label 1 less label 0")
    if fresh_head:
        redraw_head(classifier, FRESH_SEED + seed)
    if fresh_head or missing:
        log.info("the pair head of %s starts fresh", name_or_dir)
        start_at_base_rate(classifier, positive_share)
    return Ranker(classifier)


def can_pack(name_or_dir: str) -> bool:
    """Returns whether a classifier can read packed pairs: it is one of FAMILIES, its head reads the first token, and
    sentence-transformers puts no prompt before its questions."""
    config = AutoConfig.from_pretrained(name_or_dir, trust_remote_code=False)
    family, prompt = FAMILIES.get(config.model_type), read_settings(name_or_dir).get("default_prompt_name")
    is_known = family is not None and config.architectures == [family.classifier] and config.num_labels in (1, 2)
    return is_known and getattr(config, "classifier_pooling", "cls") == "cls" and not prompt


def load_trained_ranker(name_or_dir: str) -> Ranker:
    """Returns an adapter, or a model that ``can_pack`` accepts; a head of two labels is folded into one logit."""
    silence_transformers()
    if is_adapter(name_or_dir):
        return Ranker(load_adapted(name_or_dir, attn_implementation=attention.NAME))
    options = {"attn_implementation": attention.NAME, "dtype": torch.float32}
    classifier, missing = load_part(AutoModelForSequenceClassification, name_or_dir, options)
    if missing:
        raise KinspanError(f"--model {name_or_dir} has no weights for {missing[-1]}: fine-tune it first")
    if classifier.config.num_labels == 2:
        fold_two_labels(classifier)
    return Ranker(classifier)


def check_no_bottlenecks(ranker: Ranker, name_or_dir: str) -> None:
    """Raises KinspanError for a model with bottlenecks, which ``transformers`` could not load from a folder."""
    if any(isinstance(module, AdaptedNorm) for module in ranker.modules()):
        raise KinspanError(f"--model {name_or_dir}: bottlenecks cannot be fine-tuned: give their base, or LoRA")


def load_own_tokenizer(name_or_dir: str) -> PreTrainedTokenizerBase:
    """Returns the tokenizer as the folder has it, so that scores equal CrossEncoder's; an adapter's as in training."""
    return (load_tokenizer if is_adapter(name_or_dir) else load_tokenizer_as_it_is)(find_model(name_or_dir))


def find_max_length(name_or_dir: str) -> int:
    """Returns a model's maximum length in tokens, of a pair or, for a bi-encoder, of a text.

    It is that of a release's training, or of settings for sentence-transformers; else the smaller of its tokenizer's
    maximum, which fine-tuning writes, and its positions; or 512.
    """
    place, facts = find_model(name_or_dir), Path(name_or_dir) / FACTS
    length = read_object(facts, "release it again").get("max_length") if facts.is_file() else None
    if length := length or read_settings(place, "sentence_bert_config.json").get("max_seq_length"):
        return length
    with torch.device("meta"):  # without weights
        model = AutoModel.from_config(read_config(place), trust_remote_code=False)
    limits = load_own_tokenizer(place).model_max_length, count_positions(model)
    return min((limit for limit in limits if limit is not None and limit < UNLIMITED), default=DEFAULT_LENGTH)


def save_ranker(
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    weights: dict[str, torch.Tensor],
    folder: Path,
) -> None:
    """Writes a folder that AutoModelForSequenceClassification and CrossEncoder load; ``weights``: Ranker's, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name.removeprefix("classifier."): tensor for name, tensor in weights.items()}
    save_file(tensors, str(folder / "model.safetensors"), {"format": "pt"})
    released = make_release_config(config.to_dict(), FAMILIES[config.model_type].classifier)
    (folder / "config.json").write_text(json.dumps(released, indent=2, sort_keys=True) + "\n")
    tokenizer.save_pretrained(folder)
    write_max_length(folder, max_length)
