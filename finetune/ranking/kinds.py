"""Finds the kind of a ranking model, and loads models of sentence-transformers."""

import logging
from pathlib import Path

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from transformers import AutoConfig, PreTrainedTokenizerBase
from transformers.utils import cached_file

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import JsonObject, read_object
from data_pipeline.core.hub import ABSENT, expect_hub
from data_pipeline.tokenizers import check_vocabulary
from pretrain.modeling.adapters.folder import is_adapter
from pretrain.modeling.limits import check_fits, count_positions
from pretrain.modeling.pair_model import silence_transformers

log = logging.getLogger(__name__)

ADAPTER, FUSION, BI_ENCODER, CROSS_ENCODER = "adapter", "fusion", "bi-encoder", "cross-encoder"
FUSION_FILE, WORDS = "fusion.json", "words.json"
BESIDE = (FUSION_FILE, WORDS, CROSS_ENCODER)  # entries of a fusion's folder beside its bi-encoder
MODULES = "modules.json"  # a file of a sentence-transformers model
DEFAULT_LENGTH = 512  # tokens, for a model that states no maximum
UNLIMITED = 10**9  # transformers gives a greater number if it knows no maximum
CLASSIFIER = "ForSequenceClassification"
QUERY, ANSWER = ("query",), ("document", "passage", "corpus")  # models' names for the prompts of these texts


def find_kind(name_or_dir: str) -> str:
    """Returns the kind of a model in a folder or on the hub: "adapter", "fusion", "bi-encoder" or "cross-encoder".

    A bi-encoder has ``modules.json`` and is not a sequence classifier, which may have that file too; or its config
    names an encoder class without a head (unlike GPT2LMHeadModel). Any other model counts as a cross-encoder, whether
    its pair head has weights or not.
    """
    if is_adapter(name_or_dir):
        return ADAPTER
    if (Path(name_or_dir) / FUSION_FILE).is_file():
        return FUSION
    expect_hub(name_or_dir)
    has_modules = _has_modules(name_or_dir)
    try:
        classes = AutoConfig.from_pretrained(name_or_dir, trust_remote_code=False).architectures or []
    except Exception as error:
        if not has_modules:
            raise KinspanError(f"no model at {name_or_dir}: {quote_error(error)}") from error
        classes = []  # its config is in a sub-folder
    if any(name.endswith(CLASSIFIER) for name in classes):
        return CROSS_ENCODER
    made_as = read_settings(name_or_dir).get("model_type", "SentenceTransformer")
    if has_modules and made_as != "SentenceTransformer":  # a reranker that generates, a sparse or multi-vector encoder
        raise KinspanError(f"{name_or_dir} is a {made_as}, neither a bi-encoder nor a {CLASSIFIER}")
    headless = [name.endswith("Model") and "Head" not in name for name in classes]
    return BI_ENCODER if has_modules or (headless and all(headless)) else CROSS_ENCODER


def refuse_fusion(name_or_dir: str) -> None:
    """Raises KinspanError for a fusion, whose own folder holds only one of its models."""
    if not is_adapter(name_or_dir) and (Path(name_or_dir) / FUSION_FILE).is_file():
        raise KinspanError(f"--model {name_or_dir} is a fusion: give one of the models it was made from")


def can_embed(name_or_dir: str) -> bool:
    """Returns whether this is a bi-encoder, or a fusion with one at its root. Raises KinspanError without a model."""
    kind = find_kind(name_or_dir)
    return kind == BI_ENCODER or (kind == FUSION and _has_modules(name_or_dir))


def _has_modules(name_or_dir: str) -> bool:
    try:
        return cached_file(name_or_dir, MODULES, **ABSENT) is not None
    except (OSError, ValueError):  # no such model, or a private one: loading it tells which
        return False


def read_settings(name_or_dir: str, name: str = "config_sentence_transformers.json") -> JsonObject:
    """Reads a settings file of sentence-transformers; by default that of kind and prompts."""
    path = cached_file(name_or_dir, name, **ABSENT)
    return read_object(Path(path), "copy it again") if path else {}


def load_bi_encoder(name_or_dir: str, max_length: int | None = None) -> SentenceTransformer:
    """Returns the model in fp32; an encoder without a head gets mean pooling.

    max_length: maximum number of tokens of a text; the model's own maximum is never exceeded
    """
    silence_transformers()
    try:
        model = SentenceTransformer(name_or_dir, trust_remote_code=False, model_kwargs={"dtype": torch.float32})
    except Exception as error:
        raise KinspanError(f"{name_or_dir} cannot be loaded: {quote_error(error)}") from error
    default = model.max_seq_length
    if max_length and default and max_length > default:
        log.warning("%s: texts are truncated to its %s tokens, not --max_length %s", name_or_dir, default, max_length)
    for module in model.modules():
        if isinstance(module, Transformer) and isinstance(module.tokenizer, PreTrainedTokenizerBase):
            check_vocabulary(module.tokenizer, name_or_dir)
            _check_weights(module.auto_model, name_or_dir)
            limits = (module.max_seq_length, count_positions(module.auto_model), max_length)
            length = min((limit for limit in limits if limit and limit < UNLIMITED), default=DEFAULT_LENGTH)
            check_fits(name_or_dir, module.auto_model, module.tokenizer, length, ("a",))
            if length <= module.tokenizer.num_special_tokens_to_add():
                raise KinspanError(f"--max_length {length} is too short for a text")
            module.max_seq_length = length
    return model


def load_cross_encoder(
    name_or_dir: str, activation: torch.nn.Module, max_length: int | None = None, flag: str = "--model"
) -> CrossEncoder:
    """Returns a CrossEncoder that applies ``activation`` to its logits. Raises KinspanError if it cannot be loaded."""
    silence_transformers()
    options = {"activation_fn": activation, "model_kwargs": {"dtype": torch.float32}}
    try:
        model = CrossEncoder(name_or_dir, max_length=max_length, trust_remote_code=False, **options)
    except Exception as error:  # a missing folder, a fusion, an adapter
        raise KinspanError(f"{flag} {name_or_dir} cannot be loaded: {quote_error(error)}") from error
    _check_weights(model.model or model, name_or_dir, flag)
    return model


def _check_weights(model: torch.nn.Module, name_or_dir: str, flag: str = "--model") -> None:
    """Raises KinspanError for a weight that transformers drew at random, since no file holds it."""
    drawn = (name for name, weight in model.named_parameters() if not getattr(weight, "_is_hf_initialized", False))
    if lost := next((name for name in drawn if ".pooler" not in f".{name}"), None):
        raise KinspanError(f"{flag} {name_or_dir} lacks weights of the encoder, such as {lost}")


def find_prompt(model: SentenceTransformer, names: tuple[str, ...]) -> str:
    """Returns the prompt of this kind of text, as ``encode_query`` and ``encode_document`` choose it."""
    chosen = next((name for name in names if name in model.prompts), model.default_prompt_name)
    return model.prompts.get(chosen) or "" if chosen else ""
