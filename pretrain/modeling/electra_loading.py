"""Loading what replaced-token detection trains: a discriminator, and a generator of its own weights or fresh."""

import copy
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import ElectraForMaskedLM, ElectraForPreTraining, ElectraForSequenceClassification
from transformers.utils import logging

from data_pipeline.errors import KinspanError
from data_pipeline.tokenizers import shorten_name
from pretrain.modeling import attention

from .compatibility import check_generator
from .electra import ReplacedTokenModel, share_embeddings
from .pair_model import build_fresh, holds_no_weights, load_config, load_part, start_at_base_rate

OPTIONS: dict[str, Any] = {"attn_implementation": attention.NAME, "dtype": torch.float32}


def load_replaced_token_model(
    name_or_dir: str,
    generator: str,
    sharing: str,
    seed: int,
    objectives: tuple[str, ...] = ("ssp",),
    positive_share: float = 0.2,
) -> tuple[ReplacedTokenModel, list[str]]:
    """Discriminator and generator, in fp32, and lines that say what of them is new.

    name_or_dir:    the discriminator: a weights folder, a hub name, or a folder with a config alone (from scratch)
    generator:      likewise; or its size as a factor of the discriminator's, such as ``1/3``: it then starts fresh
    sharing:        of embeddings, see rtd.share_embeddings
    positive_share: of the pairs: what a fresh pair head first predicts

    Raises KinspanError where one cannot be loaded, or the two do not fit together.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(seed)  # of fresh weights
    classifier, token_head, fresh_pair_head, notes = _discriminator(name_or_dir)
    made, generator_loaded, generator_notes = _generator(generator, name_or_dir, classifier.config)
    if fresh_pair_head:
        start_at_base_rate(classifier, positive_share)
    classifier_loaded = not holds_no_weights(name_or_dir)
    notes += generator_notes + _note_on_sharing(made, classifier, sharing, generator_loaded and classifier_loaded)
    share_embeddings(made, classifier, sharing, generator_loaded, classifier_loaded)
    return ReplacedTokenModel(made, classifier, token_head, objectives).train(), notes


def _discriminator(name_or_dir: str) -> tuple[Any, nn.Module, bool, list[str]]:
    """The sequence classifier, the token head, whether the pair head is fresh, and notes."""
    config = load_config(name_or_dir)
    if holds_no_weights(name_or_dir):
        classifier, whole = (
            build_fresh(partial(c._from_config, config, **OPTIONS), name_or_dir)
            for c in (ElectraForSequenceClassification, ElectraForPreTraining)
        )
        note = f"{shorten_name(name_or_dir)} holds no weights: the discriminator starts from scratch"
        return classifier, whole.discriminator_predictions, True, [note]
    options = {"config": config, **OPTIONS}
    classifier, no_pair_head = load_part(ElectraForSequenceClassification, name_or_dir, options)
    whole, no_token_head = load_part(ElectraForPreTraining, name_or_dir, options)
    missing = {"pair": no_pair_head, "token-detection": no_token_head}
    notes = [
        f"the {head} head starts fresh ({len(names)} tensors are not in {shorten_name(name_or_dir)})"
        for head, names in missing.items()
        if names
    ]
    return classifier, whole.discriminator_predictions, bool(no_pair_head), notes


def _generator(text: str, model_name: str, discriminator: Any) -> tuple[Any, bool, list[str]]:
    """The masked-LM model, whether its weights were loaded, and notes."""
    factor = parse_size_factor(text)
    if factor is None:
        config = load_config(text, "--generator")
        check_generator(text, config, model_name, discriminator)
        if holds_no_weights(text, "--generator"):
            made = build_fresh(partial(ElectraForMaskedLM._from_config, config, **OPTIONS), text, "--generator")
            return made, False, [f"{shorten_name(text)} holds no weights: the generator starts from scratch"]
        made, missing = load_part(ElectraForMaskedLM, text, {"config": config, **OPTIONS}, "--generator")
        note = f"the generator's masked-LM head starts fresh ({len(missing)} tensors are not in {shorten_name(text)})"
        return made, True, [note] if missing else []
    config = scale_config(discriminator, factor)
    note = (
        f"the generator starts fresh: {config.num_hidden_layers} layers of {config.hidden_size}, "
        f"{config.num_attention_heads} heads"
    )
    return build_fresh(partial(ElectraForMaskedLM._from_config, config, **OPTIONS), model_name), False, [note]


def parse_size_factor(text: str) -> float | None:
    """``1/3`` or ``0.25`` as a number; None where ``text`` is none, and so a name.

    Raises KinspanError where it is not above 0 and at most 1.
    """
    try:
        factor = float(Fraction(text))
    except ValueError:
        return None
    except (ZeroDivisionError, OverflowError):
        factor = 0.0
    if not 0 < factor <= 1:
        raise KinspanError(f"--generator {text}: a size must lie above 0 and not above 1")
    return factor


def scale_config(config: Any, factor: float) -> Any:
    """A generator's config: as deep as the discriminator, ``factor`` as wide, heads and embeddings of its size."""
    out = copy.deepcopy(config)
    head_dim = config.hidden_size // config.num_attention_heads
    out.num_attention_heads = max(1, round(config.num_attention_heads * factor))
    out.hidden_size = out.num_attention_heads * head_dim
    out.intermediate_size = max(1, round(config.intermediate_size * factor))
    return out


def _note_on_sharing(generator: Any, classifier: Any, sharing: str, both_loaded: bool) -> list[str]:
    """Says where tying overwrites what was loaded."""
    if sharing != "tied" or not both_loaded:
        return []
    one, two = (m.base_model.embeddings.word_embeddings.weight for m in (generator, classifier))
    if one.shape != two.shape or torch.equal(one, two):
        return []
    return ["the generator's embeddings are replaced by the discriminator's, since they are tied"]
