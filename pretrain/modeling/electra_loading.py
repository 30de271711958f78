"""Loading what replaced-token detection trains: a discriminator, and a generator of its own weights or fresh."""

import copy
from fractions import Fraction
from typing import Any

import torch
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoModelForSequenceClassification

from data_pipeline.errors import KinspanError

from .electra import ReplacedTokenModel, share_embeddings
from .pair_model import Load, holds_no_weights, load_or_build, start_at_base_rate


def load_replaced_token_model(
    name_or_dir: str,
    generator: str,
    sharing: str,
    seed: int,
    objectives: tuple[str, ...] = ("ssp",),
    positive_share: float = 0.2,
    load: Load = load_or_build,
) -> tuple[ReplacedTokenModel, list[str]]:
    """Discriminator and generator, and lines that say what of them is new.

    generator:      as ``name_or_dir``; or its size as a factor of the discriminator's, such as ``1/3``: it starts fresh
    sharing:        of embeddings, see electra.share_embeddings
    positive_share: of the pairs: what a fresh pair head first predicts
    """
    torch.manual_seed(seed)  # of fresh weights
    classifier, notes = load(AutoModelForSequenceClassification, name_or_dir, "pair")
    if notes:
        start_at_base_rate(classifier, positive_share)
    detector, more = load(AutoModelForPreTraining, name_or_dir, "token-detection")
    notes, config, factor = notes + more, classifier.config, parse_size_factor(generator)
    if factor is None:
        made, more = load(AutoModelForMaskedLM, generator, "generator's masked-LM", "--generator")
        check_generator(generator, made.config, name_or_dir, config)
    else:
        small = scale_config(config, factor)
        made, _ = load(AutoModelForMaskedLM, name_or_dir, "", config=small)
        layers, heads = small.num_hidden_layers, small.num_attention_heads
        more = [f"the generator starts fresh: {layers} layers of {small.hidden_size}, {heads} heads"]
    loaded = factor is None and not holds_no_weights(generator), not holds_no_weights(name_or_dir)
    if all(loaded) and sharing == "tied":
        more = [*more, "the generator's embeddings are replaced by the discriminator's, since they are tied"]
    share_embeddings(made, classifier, sharing, *loaded)
    model = ReplacedTokenModel(made, classifier, detector.discriminator_predictions, objectives).train()
    return model, list(dict.fromkeys(notes + more))


def check_generator(name: str, generator: Any, model_name: str, discriminator: Any) -> None:
    if generator.model_type != "electra":
        raise KinspanError(f"--generator {name} is of the type {generator.model_type}: it must be an ELECTRA model")
    if generator.vocab_size != discriminator.vocab_size:
        raise KinspanError(
            f"--generator {name} has {generator.vocab_size} vocabulary entries, --model {model_name} "
            f"{discriminator.vocab_size}: they must be of one tokenizer"
        )


def parse_size_factor(text: str) -> float | None:
    """``1/3`` or ``0.25`` as a number; None where ``text`` is none, and so a name."""
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
