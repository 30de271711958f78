"""An encoder with a pair head and a masked-LM head, trained on packed batches; and loading it."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import cached_file, logging

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.hub import ABSENT, expect_hub
from data_pipeline.tokenizers import shorten_name
from pretrain.modeling import attention

from .encoder import Inputs, encode_packed, prepare_encoder
from .families import FAMILIES
from .losses import MLM, MLM_SUMS, PAIR, compute_mlm_loss, compute_pair_loss, name_sums

Load = Callable[..., tuple[PreTrainedModel, list[str]]]  # with the signature of load_or_build
TOKEN_HEAD = "token_head"  # the variant of a release with the head of masked LM or of replaced-token detection
TOKEN_HEAD_INDEX = f"model.safetensors.index.{TOKEN_HEAD}.json"
POOLER = "pooler"  # part of the encoder's module, but only the pair head uses it


class PairModel(nn.Module):
    """An encoder with two heads. The masked-LM head runs at masked positions only; its matrix is the word embedding.

    objectives:   names of the mixture's parts
    masked_heads: modules that run at masked positions only
    token_heads:  modules that run at every token
    """

    losses = (MLM, PAIR)
    token_heads: tuple[nn.Module, ...] = ()
    masked_heads: tuple[nn.Module, ...]

    def __init__(
        self, classifier: PreTrainedModel, mlm_head: nn.Module, objectives: tuple[str, ...] = ("ssp",)
    ) -> None:
        super().__init__()
        self.objectives, self.config = objectives, classifier.config
        self.classifier = classifier  # transformers' sequence classifier, encoder included
        self.mlm_head = mlm_head
        self.family = FAMILIES[self.config.model_type]
        self.encoders, self.masked_heads = (classifier.base_model,), (mlm_head,)
        self.sum_names = name_sums(MLM_SUMS, objectives)
        prepare_encoder(self, classifier.base_model)

    def encode(self, inputs: Inputs) -> Tensor:
        """Returns the hidden states of a packed row, ``[T, hidden]``."""
        return encode_packed(self.classifier.base_model, inputs)

    def score_pairs(self, hidden: Tensor, starts: Tensor) -> Tensor:
        """Returns the logits ``[n]`` of the pairs that begin at ``starts`` ``[n + 1]``."""
        return self.family.pair_logits(self.classifier, hidden[starts[:-1].long()])

    def logits(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Returns pair logits ``[n]`` and vocabulary logits at the masked positions ``[M, vocab]``."""
        hidden = self.encode(inputs)
        pair = self.score_pairs(hidden, inputs["starts"])
        return pair, self.mlm_head(hidden[inputs["masked_positions"]])

    def forward(self, *, scales: Mapping[str, Tensor | float], **inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the weighted loss of a packed micro-batch, its sums ``[len(sum_names)]`` and its pair logits ``[n]``.

        One call computes everything, because ZeRO's hooks run when the module that DeepSpeed wraps is called.

        scales: the factor of each loss *sum*, by the names of ``losses``; see step.py
        inputs: the arrays of data_pipeline.sampling.batch.Batch as tensors
        """
        pair, mlm = self.logits(inputs)
        pair = pair.float()
        pair_loss, pair_sums = compute_pair_loss(
            pair, inputs["labels"], inputs["kinds"], inputs["part"], len(self.objectives)
        )
        mlm_loss, mlm_sums = compute_mlm_loss(mlm, inputs["masked_labels"])
        loss = mlm_loss * scales["mlm"] + pair_loss * scales["pair"]
        return loss, torch.cat([mlm_sums, pair_sums]), pair.detach()


def load_or_build(
    auto: Any, name_or_dir: str, head: str, flag: str = "--model", config: PreTrainedConfig | None = None
) -> tuple[PreTrainedModel, list[str]]:
    """Loads a model in fp32 by the class ``auto``, and returns it with a note if it, or its head, starts fresh.

    name_or_dir: a hub name, a folder with weights, or one with only a config, which starts from scratch
    config:      if given, a fresh model is built from it
    """
    if config is not None:
        return build_fresh(auto, config, name_or_dir, flag), []
    config, short = load_config(name_or_dir, flag), shorten_name(name_or_dir)
    if holds_no_weights(name_or_dir):
        return build_fresh(auto, config, name_or_dir, flag), [f"{short} holds no weights: training starts from scratch"]
    options = {"config": config, "attn_implementation": attention.NAME, "dtype": torch.float32}
    folder = FAMILIES[config.model_type].masked_lm_folder  # where both heads share names
    if folder and auto is AutoModelForMaskedLM and cached_file(name_or_dir, f"{folder}/config.json", **ABSENT):
        options["subfolder"] = folder
    elif auto is not AutoModelForSequenceClassification and cached_file(name_or_dir, TOKEN_HEAD_INDEX, **ABSENT):
        options["variant"] = TOKEN_HEAD
    model, missing = load_part(auto, name_or_dir, options, flag)
    return model, [f"the {head} head starts fresh: {short} lacks {len(missing)} tensors of it"] if missing else []


def build_fresh(auto: Any, config: PreTrainedConfig, name_or_dir: str, flag: str = "--model") -> PreTrainedModel:
    """Builds a model from a config alone. Raises KinspanError if the config's values contradict one another."""
    try:
        return auto.from_config(
            config, attn_implementation=attention.NAME, dtype=torch.float32, trust_remote_code=False
        )
    except Exception as error:  # heads that do not divide the width, an unknown activation, ...
        raise KinspanError(f"{flag} {name_or_dir}: its config.json gives no model: {quote_error(error)}") from error


def load_model(
    name_or_dir: str,
    seed: int,
    objectives: tuple[str, ...] = ("ssp",),
    positive_share: float = 0.2,
    load: Load = load_or_build,
) -> tuple[PairModel, list[str]]:
    """Loads the model to train, see ``load_or_build``, and returns it with notes on its new parts.

    positive_share: share of positives among the pairs, which a fresh pair head predicts at first
    """
    torch.manual_seed(seed)  # for fresh weights
    classifier, notes = load(AutoModelForSequenceClassification, name_or_dir, "pair")
    if notes:
        start_at_base_rate(classifier, positive_share)
    masked_lm, more = load(AutoModelForMaskedLM, name_or_dir, "masked-LM")
    head = FAMILIES[classifier.config.model_type].mlm_head_of(masked_lm)
    masked_lm.get_output_embeddings().weight = classifier.get_input_embeddings().weight
    model = PairModel(classifier, head, objectives).train()  # from_pretrained switches dropout off
    return model, list(dict.fromkeys(notes + more))


def load_part(
    model_class: Any, name_or_dir: str, options: dict[str, Any], flag: str = "--model"
) -> tuple[PreTrainedModel, list[str]]:
    """Loads a model, and returns it with the names of the head's fresh tensors: not stored, or in another shape."""
    try:
        model, info = model_class.from_pretrained(
            name_or_dir,
            output_loading_info=True,
            trust_remote_code=False,
            weights_only=True,
            ignore_mismatched_sizes=True,
            **options,
        )
    except Exception as error:  # a damaged or missing file, or the hub's error
        raise KinspanError(f"{flag} {name_or_dir} cannot be loaded: {quote_error(error)}") from error
    prefix = f"{model.base_model_prefix}."
    for key, stored, wanted in sorted(info["mismatched_keys"]):
        if key.startswith(prefix):
            raise KinspanError(f"{flag} {name_or_dir}: {key} is {list(stored)}, but {list(wanted)} in its config.json")
    missing = sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})
    lost = [key for key in missing if key.startswith(prefix) and ".pooler" not in key]
    if lost:
        raise KinspanError(f"{flag} {name_or_dir} lacks weights of the encoder, such as {lost[0]}")
    broken = next((name for name, tensor in model.named_parameters() if not torch.isfinite(tensor).all()), None)
    if broken:
        raise KinspanError(f"{flag} {name_or_dir} holds NaN or infinite numbers in {broken}")
    return model, missing


def holds_no_weights(name_or_dir: str) -> bool:
    """Returns whether this is a folder without weights."""
    return Path(name_or_dir).is_dir() and not list_weights(Path(name_or_dir))


def list_weights(folder: Path) -> list[Path]:
    """Returns the files of a folder's weights."""
    return [path for pattern in ("*.safetensors", "pytorch_model*.bin") for path in folder.glob(pattern)]


def silence_transformers() -> None:
    """Silences what transformers prints while it loads."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def read_config(name_or_dir: str) -> PreTrainedConfig:
    """Returns the config of any model. Raises KinspanError if there is none."""
    silence_transformers()
    expect_hub(name_or_dir)
    try:
        return AutoConfig.from_pretrained(name_or_dir, trust_remote_code=False)
    except Exception as error:  # a missing folder, a broken config, or the hub's error
        raise KinspanError(f"no model at {name_or_dir}: {quote_error(error)}") from error


def load_config(name_or_dir: str, flag: str = "--model") -> PreTrainedConfig:
    """Returns a config with one logit. Raises KinspanError if it is not of an encoder that can be trained here."""
    config = read_config(name_or_dir)
    if config.model_type not in FAMILIES or getattr(config, "is_decoder", False):
        raise KinspanError(f"{flag} {name_or_dir} is {config.model_type}, not an encoder of {', '.join(FAMILIES)}")
    if not getattr(config, "tie_word_embeddings", True):
        raise KinspanError(f"{flag} {name_or_dir} has untied embeddings (tie_word_embeddings: false): not supported")
    if config.model_type == "deberta-v2" and not config.legacy:
        raise KinspanError(f"{flag} {name_or_dir} has the newer masked-LM head (legacy: false): not supported")
    if config.model_type == "modernbert":
        config.classifier_pooling = "cls"  # the pair head reads first tokens, in training and in the release
    config.num_labels = 1
    config.problem_type = "multi_label_classification"  # the default for one label is a squared error
    return config


def fingerprint_weights(model: nn.Module, *configs: PreTrainedConfig) -> str:
    """Returns a hash of configs and of every weight."""
    digest = hashlib.sha256()
    for config in configs:
        shape = {k: v for k, v in config.to_dict().items() if k not in ("_name_or_path", "transformers_version")}
        digest.update(json.dumps(shape, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def start_at_base_rate(classifier: PreTrainedModel, positive_share: float) -> None:
    """Sets the bias of a fresh pair head so that it predicts the share of positives."""
    nn.init.constant_(find_last_layer(classifier).bias, math.log(positive_share / (1 - positive_share)))


def list_head_modules(classifier: PreTrainedModel) -> list[nn.Module]:
    """Returns the modules that map the hidden state of the first token to logits, in the order of the forward pass."""
    encoder = classifier.base_model
    pooler = getattr(encoder, POOLER, None)
    above = [module for module in classifier.children() if module is not encoder]
    return [pooler, *above] if isinstance(pooler, nn.Module) else above


def redraw_head(classifier: PreTrainedModel, seed: int) -> None:
    """Initialises all parameters above the encoder again, as the architecture does."""
    torch.manual_seed(seed)
    for module in list_head_modules(classifier):
        for parameter in module.parameters():
            parameter._is_hf_initialized = False  # type: ignore[attr-defined]  # otherwise it keeps its loaded value
        module.apply(classifier._init_weights)


def find_last_layer(classifier: PreTrainedModel) -> nn.Linear:
    *_, last = (module for module in classifier.classifier.modules() if isinstance(module, nn.Linear))
    return last


def fold_two_labels(classifier: PreTrainedModel) -> None:
    """Replaces two logits by their difference, label 1 less label 0, which alone determines their softmax."""
    last = find_last_layer(classifier)
    with torch.no_grad():
        last.weight = nn.Parameter(last.weight[1:] - last.weight[:1])
        last.bias = nn.Parameter(last.bias[1:] - last.bias[:1])
    last.out_features = 1
    classifier.config.num_labels = classifier.num_labels = 1
