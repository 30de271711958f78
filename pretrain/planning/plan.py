"""Works out what a run's settings would do, without training, loading or writing anything (``--dry_run``)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from data_pipeline import tokenizers
from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import cache_settings
from data_pipeline.sampling.mixture import Mixture
from data_pipeline.sampling.stream import PairStream
from data_pipeline.sources import is_remote, list_paths
from pretrain.config import ObjectiveSettings, OptimisationSettings, PretrainConfig
from pretrain.engine.device import choose_precision
from pretrain.engine.engine import read_deepspeed_config, zero_stage
from pretrain.engine.schedule import Schedule
from pretrain.metrics import FlopCounter
from pretrain.modeling.adapters.folder import name_head, read_adapter
from pretrain.modeling.adapters.layers import add_layers
from pretrain.modeling.adapters.model import AdapterModel, make_part
from pretrain.modeling.compilation import check_is_compilable
from pretrain.modeling.electra import ReplacedTokenModel
from pretrain.modeling.pair_model import build_fresh, load_config
from pretrain.modeling.siamese.model import SiameseModel
from pretrain.planning.checks import check, find_unused_flags
from pretrain.setup import (
    TrainedModel,
    check_lengths,
    choose_token_loss,
    count_steps,
    disable_unused_masking,
    load_trained,
    make_masking,
    plan_schedule,
    read_template,
)

from .corpora import build_mixture, drop_untrainable, list_sources, open_corpora, open_corpora_for_tokenizer
from .defaults import default_corpus_folder

MANY_EPOCHS = 40
SAMPLE = 20_000  # pairs whose lengths are counted
ELECTRA_BASE = {"vocab_size": 30522, "embedding_size": 768, "max_position_embeddings": 512, "num_hidden_layers": 12}
BUILT_IN: dict[str, tuple[str, dict[str, Any]]] = {
    "roberta-base": (
        "roberta",
        {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    ),
    "google/electra-base-discriminator": (
        "electra",
        {**ELECTRA_BASE, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    ),
    "google/electra-base-generator": (
        "electra",
        {**ELECTRA_BASE, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    ),
}


@dataclass(frozen=True)
class RunPlan:
    """Holds what a run of these settings would be.

    parameters:  number in each part of the model; a parameter of two parts counts for the first
    pair_tokens: mean number of tokens in a pair
    epoch_pairs: None where the corpus is not there
    flops:       floating-point operations per token, forward and backward
    """

    config: PretrainConfig
    mixture: Mixture
    token_loss: str
    model: TrainedModel
    parameters: dict[str, int]
    max_length: int
    pair_tokens: float
    steps: int
    schedule: Schedule
    epoch_pairs: int | None
    precision: str
    zero_stage: int
    offload: bool
    flops: float
    notes: list[str]

    @property
    def num_parameters(self) -> int:
        return sum(self.parameters.values())

    @property
    def num_frozen(self) -> int:
        return sum(p.numel() for p in self.model.parameters() if not p.requires_grad)

    @property
    def step_tokens(self) -> float:
        return self.pair_tokens * self.config.global_batch_size

    @property
    def tokens(self) -> float:
        return self.step_tokens * self.steps


def make_plan(config: PretrainConfig) -> RunPlan:
    """Returns the plan of these settings. Raises KinspanError for what the run itself would refuse."""
    check(config)
    mixture = build_mixture(config, list_sources(config))
    settings = read_deepspeed_config(config.deepspeed_config)
    notes: list[str] = []
    precision = _plan_precision(config, settings, notes)
    name = config.model or default_model()
    model_config, built_in = _load_config(name, "--model", notes)
    token_loss = choose_token_loss(config, name, model_config.model_type)
    config = disable_unused_masking(config, token_loss)
    notes += find_unused_flags(config, token_loss)
    model = _build_on_meta(config, name, model_config, token_loss, mixture, notes)
    if config.compile:
        check_is_compilable(model.family, zero_stage(settings))
    max_length = config.max_length or mixture.max_length
    try:
        tokenizer = None if built_in else tokenizers.load_tokenizer(name)
    except KinspanError:
        if Path(name).is_dir():
            raise
        tokenizer = None  # the hub is out of reach
    check_lengths(model, name, config.generator, tokenizer, max_length)
    if tokenizer is not None:
        make_masking(config, token_loss, tokenizer)
    stream = _open_stream(config, tokenizer, mixture, max_length, notes)
    lengths = np.full(1, max_length)  # tokens of sequences
    if stream is not None:
        lengths = np.diff(stream.batch(0, min(SAMPLE, stream.epoch_pairs)).starts)
    sequences = count_sequences(mixture, config)
    steps = _count_steps(config, stream, max_length, sequences)
    maskable = 1.0 if stream is None else 1 - stream.template.num_special / lengths.mean()
    masked = 0.0 if token_loss == "none" else config.mlm_probability * maskable
    counter = FlopCounter(model)
    flops = 6.0 * (counter.at_tokens + masked * counter.at_masked)  # per token
    flops += counter.count_attention(lengths.astype(np.float64)) / float(lengths.sum())
    if stream and (epochs := steps * config.global_batch_size / stream.epoch_pairs) > MANY_EPOCHS:
        notes.append(f"warning: {epochs:,.0f} epochs of so small a corpus: shorten the run, or add text")
    zero = settings.get("zero_optimization", {})
    return RunPlan(
        config,
        mixture,
        token_loss,
        model,
        _count_parameters(model),
        max_length,
        float(lengths.mean()) * sequences,
        steps,
        plan_schedule(config, steps, stream.epoch_pairs if stream else 0),
        stream.epoch_pairs if stream else None,
        precision,
        zero_stage(settings),
        "offload_optimizer" in zero or "offload_param" in zero,
        flops,
        notes,
    )


def count_sequences(mixture: Mixture, config: ObjectiveSettings) -> int:
    """Returns the number of sequences in a pair: one, or for a bi-encoder each of its texts."""
    return mixture.parts[0].objective.num_texts if config.pair_loss else 1


def _plan_precision(config: OptimisationSettings, settings: dict[str, Any], notes: list[str]) -> str:
    """Returns the precision of the run; "auto" is resolved for GPUs, whatever this machine is."""
    if config.precision == "auto" and zero_stage(settings):
        notes.append("--precision auto is planned as bf16, which GPUs have")
        return "bf16"
    if config.precision == "fp16" and zero_stage(settings):
        return "fp16"  # although this machine may not be able to run it
    return choose_precision(config.precision, zero_stage(settings))


def _load_config(name: str, flag: str, notes: list[str]) -> tuple[Any, bool]:
    """Returns a model's config, and whether it is a built-in one because the hub cannot be reached."""
    try:
        return load_config(name, flag), False
    except KinspanError:
        if name not in BUILT_IN:
            raise
    notes.append(f"the hub cannot be reached: the config of {name} is the built-in one")
    family, options = BUILT_IN[name]
    return AutoConfig.for_model(family, **options, num_labels=1), True


def _build_on_meta(
    config: PretrainConfig, name: str, model_config: Any, token_loss: str, mixture: Mixture, notes: list[str]
) -> TrainedModel:
    """Returns the module to train on torch's meta device, which has shapes but no numbers."""

    def build(auto: Any, part: str, head: str, flag: str = "--model", config: Any = None) -> tuple[Any, list[str]]:
        own = config or (model_config if part == name else _load_config(part, flag, notes)[0])
        return build_fresh(auto, own, part, flag), []

    with torch.device("meta"):
        if token_loss == "none":
            return _build_adapter(config, model_config, mixture)
        return load_trained(config, name, token_loss, mixture, build)[0]


def _build_adapter(config: PretrainConfig, model_config: Any, mixture: Mixture) -> AdapterModel:
    """Does the same for an adapter."""
    assert config.adapter
    beneath = [read_adapter(folder) for folder in config.adapters]
    part = make_part(config.adapter, config.adapter_size, beneath, Path(config.output_dir).resolve().name)
    classifier = build_fresh(AutoModelForSequenceClassification, model_config, config.model or default_model())
    add_layers(classifier.base_model, part)
    return AdapterModel(classifier, part, "", mixture.names)


def _count_parameters(model: TrainedModel) -> dict[str, int]:
    """Returns the number of parameters of each part, without those that it shares with a part before it."""
    if isinstance(model, AdapterModel):
        trained = sum(p.numel() for p in model.name_trained().values())
        head = sum(p.numel() for p in name_head(model.classifier).values())
        every = sum(p.numel() for p in model.parameters())
        return {"frozen": every - trained - head, "adapter": trained, "pair head": head}
    if isinstance(model, SiameseModel):
        parts: dict[str, Any] = {"encoder": model.encoder}
    else:
        parts = {"encoder": model.classifier.base_model, "pair head": model.classifier}
    if isinstance(model, ReplacedTokenModel):
        parts |= {"token-detection head": model.discriminator_predictions, "generator": model.generator}
    else:
        parts["masked-LM head"] = model.mlm_head
    counted: set[int] = set()
    out = {}
    for name, module in parts.items():
        new = {id(p): p.numel() for p in module.parameters() if id(p) not in counted}
        counted |= new.keys()
        out[name] = sum(new.values())
    return out


def _open_stream(
    config: PretrainConfig, tokenizer: Any, mixture: Mixture, max_length: int, notes: list[str]
) -> PairStream | None:
    sources, cache = list_sources(config), cache_settings(config)
    if where := _find_absent(list_paths(sources), tokenizer):
        notes.append(f"{where}: every pair is counted at its full length")
        return None
    if tokenizer is not None:
        corpora = open_corpora_for_tokenizer(tokenizer, sources, cache, verify=False)
    else:
        corpora = open_corpora(sources, cache, lambda: None, verify=False)
        notes.append("the model's tokenizer cannot be reached: not compared with the corpus's")
    template = read_template(config, tokenizers.load_tokenizer(corpora[0].tokenizer_folder))
    mixture, dropped = drop_untrainable(mixture.read_from(*corpora))
    notes += dropped
    return PairStream(mixture, template=template, seed=config.seed, max_length=max_length)


def _find_absent(paths: Sequence[str], tokenizer: Any) -> str | None:
    if not paths:
        there = tokenizer is not None and (default_corpus_folder(tokenizer) / "manifest.json").is_file()
        return None if there else "the default corpus was not built yet"
    local = [path for path in paths if not is_remote(path)]
    return next((f"no corpus at {path}" for path in local if not (Path(path) / "manifest.json").is_file()), None)


def _count_steps(config: PretrainConfig, stream: PairStream | None, max_length: int, sequences: int) -> int:
    if stream is not None:
        return count_steps(config, stream)
    if config.max_epochs is not None:
        raise KinspanError(f"--max_epochs {config.max_epochs}: the corpus is not there")
    if config.max_tokens is not None:
        return math.ceil(config.max_tokens / (max_length * sequences * config.global_batch_size))
    return config.max_steps or 1000
