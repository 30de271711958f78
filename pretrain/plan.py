"""What a run's settings would do, by arithmetic: nothing is trained, loaded or written (``--dry_run``)."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForSequenceClassification,
)
from transformers.utils import logging

from data_pipeline import tokenizers
from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from data_pipeline.mixture import Mixture
from data_pipeline.stream import PairStream
from objectives import mixture as mixture_of

from .batches import Layout
from .config import PretrainConfig, check
from .defaults import DEFAULT_MODEL_NAME, default_corpus_folder, default_model
from .engine import precision_of, read_deepspeed_config, zero_stage
from .memory import activations, states
from .metrics import FlopCounter
from .model import PairModel, assemble, load_config
from .rtd import ReplacedTokenModel, share_embeddings
from .rtd_load import scaled, size_factor
from .setup_run import check_positions, token_loss_of, total_steps, warmup_of

GPUS = (1, 8, 64)
ASSUMED_SPEED = 100_000  # tokens a second and GPU, where none is given
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
class Plan:
    """What the settings come to.

    parameters:  of each part of the model; what two share counts for the first
    pair_tokens: of a pair, the mean
    epoch_pairs: of the corpus; None where it is not there
    flops:       a token, forward and backward
    notes:       what was assumed, a line each
    """

    config: PretrainConfig
    mixture: Mixture
    token_loss: str
    model: PairModel | ReplacedTokenModel
    parameters: dict[str, int]
    max_length: int
    pair_tokens: float
    steps: int
    warmup: int
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
    def step_tokens(self) -> float:
        return self.pair_tokens * self.config.global_batch_size

    @property
    def tokens(self) -> float:
        return self.step_tokens * self.steps


def make_plan(config: PretrainConfig) -> Plan:
    """The plan of these settings. Raises KinspanError for what the run itself would refuse."""
    check(config)
    mixture = mixture_of(config.objective, config.sampling)
    settings = read_deepspeed_config(config.deepspeed_config)
    notes: list[str] = []
    precision = _precision(config, settings, notes)
    name = config.model or default_model()
    model_config, built_in = _model_config(name, "--model", notes)
    token_loss = token_loss_of(config, name, model_config.model_type)
    model = _on_meta(config, model_config, token_loss, mixture, notes)
    max_length = config.max_length or mixture.max_length
    check_positions(model_config, max_length, "--model", name)
    stream = _stream(config, name, built_in, mixture, max_length, notes)
    lengths = np.full(1, max_length) if stream is None else _lengths(stream)
    steps = _steps(config, stream, max_length)
    maskable = 1.0 if stream is None else 1 - stream.template.num_special / lengths.mean()
    flops = _flops(FlopCounter(model), lengths.astype(np.float64), config.mlm_probability * maskable)
    zero = settings.get("zero_optimization", {})
    return Plan(
        config,
        mixture,
        token_loss,
        model,
        _parameters(model),
        max_length,
        float(lengths.mean()),
        steps,
        warmup_of(config, steps),
        stream.epoch_pairs if stream else None,
        precision,
        zero_stage(settings),
        "offload_optimizer" in zero or "offload_param" in zero,
        flops,
        notes,
    )


def _flops(counter: FlopCounter, lengths: np.ndarray, masked_share: float) -> float:
    """Of a token, forward and backward, as FlopCounter counts them, in pairs of these lengths."""
    matrices = 6.0 * (counter.at_tokens + masked_share * counter.at_masked)
    return matrices + counter.attention * float((lengths**2).mean() / lengths.mean())


def _precision(config: PretrainConfig, settings: dict[str, Any], notes: list[str]) -> str:
    """As of the run; "auto" as GPUs have it."""
    if config.precision == "auto" and zero_stage(settings):
        notes.append("--precision auto is planned as bf16, which GPUs have")
        return "bf16"
    if config.precision == "fp16" and zero_stage(settings):
        return "fp16"  # which this machine may not be able to run
    return precision_of(config, settings)


def _model_config(name: str, flag: str, notes: list[str]) -> tuple[Any, bool]:
    """The config of a folder or the hub; of the models of BUILT_IN without the hub too, and whether it was needed."""
    logging.set_verbosity_error()
    try:
        return load_config(name, flag), False
    except KinspanError:
        if name not in BUILT_IN:
            raise
    notes.append(f"the hub cannot be reached: the config of {name} is the built-in one")
    family, options = BUILT_IN[name]
    return AutoConfig.for_model(family, **options, num_labels=1), True


def _on_meta(
    config: PretrainConfig, model_config: Any, token_loss: str, mixture: Mixture, notes: list[str]
) -> PairModel | ReplacedTokenModel:
    """The module that would be trained, its shapes alone: on torch's meta device, which holds no numbers."""
    with torch.device("meta"):
        if token_loss == "mlm":
            autos = (AutoModelForSequenceClassification, AutoModelForMaskedLM)
            classifier, masked_lm = (auto.from_config(model_config) for auto in autos)
            return assemble(classifier, masked_lm, mixture.names)
        factor = size_factor(config.generator)
        small = scaled(model_config, factor) if factor else _model_config(config.generator, "--generator", notes)[0]
        classifier = ElectraForSequenceClassification._from_config(model_config)
        token_head = ElectraForPreTraining._from_config(model_config).discriminator_predictions
        generator = ElectraForMaskedLM._from_config(small)
        share_embeddings(generator, classifier, config.embedding_sharing)
        return ReplacedTokenModel(generator, classifier, token_head, mixture.names)


def _parameters(model: PairModel | ReplacedTokenModel) -> dict[str, int]:
    """Of each part, without those that a part before it has too."""
    parts: dict[str, Any] = {"encoder": model.classifier.base_model, "pair head": model.classifier}
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


def _stream(
    config: PretrainConfig, model_name: str, built_in: bool, mixture: Mixture, max_length: int, notes: list[str]
) -> PairStream | None:
    """The corpus's training pairs; None, and a note, where it is not there."""
    tokenizer = None if built_in else _tokenizer(model_name, notes)
    folder = config.corpus
    if folder is None and tokenizer is not None:
        folder = str(default_corpus_folder(tokenizer))
    if folder is None or not (Path(folder) / "manifest.json").is_file():
        where = f"no corpus at {config.corpus}" if config.corpus else "the default corpus was not built yet"
        notes.append(f"{where}: every pair is counted at its full length, which is more than real ones have")
        return None
    corpus = Corpus(folder, verify=False)
    if tokenizer is not None:
        corpus.check_tokenizer(tokenizers.fingerprint(tokenizer), tokenizers.describe(tokenizer)["name"])
    else:
        notes.append("the model's tokenizer cannot be reached: not compared with the corpus's")
    template = tokenizers.pair_template(tokenizers.load_tokenizer(str(corpus.folder / "tokenizer")))
    return PairStream(corpus, mixture, template, config.seed, "train", max_length)


def _tokenizer(name: str, notes: list[str]) -> Any:
    try:
        return tokenizers.load_tokenizer(name)
    except KinspanError:
        if Path(name).is_dir():
            raise
        return None


def _lengths(stream: PairStream) -> np.ndarray:
    """Tokens of the first pairs."""
    return np.diff(stream.batch(0, min(SAMPLE, stream.epoch_pairs)).starts)


def _steps(config: PretrainConfig, stream: PairStream | None, max_length: int) -> int:
    if stream is not None:
        return total_steps(config, stream)
    if config.max_epochs is not None:
        raise KinspanError(f"--max_epochs {config.max_epochs} counts anchors of a corpus that is not there")
    if config.max_tokens is not None:
        return math.ceil(config.max_tokens / (max_length * config.global_batch_size))
    return config.max_steps or 1000


def as_text(plan: Plan) -> str:
    """What ``--dry_run`` prints."""
    config, mixture = plan.config, plan.mixture
    weights = {"pair": config.pair_weight, "mlm": config.mlm_weight}
    weights |= {"rtd": config.rtd_weight} if plan.token_loss == "rtd" else {}
    parts = zip(mixture.names, mixture.weights, strict=True)
    names = "+".join(f"{name}:{weight}" if len(mixture.names) > 1 else name for name, weight in parts)
    counted = ", ".join(f"{name} {count / 1e6:.1f} M" for name, count in plan.parameters.items())
    model = DEFAULT_MODEL_NAME if config.model is None else tokenizers.display_name(config.model)
    epochs = "unknown without a corpus"
    if plan.epoch_pairs:
        epochs = f"{plan.steps * config.global_batch_size / plan.epoch_pairs:.2f} of {plan.epoch_pairs:,} pairs"
    mean = f"{plan.pair_tokens:.1f} a pair, the mean of real ones" if plan.epoch_pairs else "at full length"
    rows = [
        ("objective", f"{names}, one positive in {1 / mixture.positive_share:.3g}; sampling {config.sampling}"),
        ("losses", f"{plan.token_loss} and pairs; weights {', '.join(f'{n} {w:g}' for n, w in weights.items())}"),
        ("model", f"{model}: {plan.num_parameters / 1e6:.1f} M parameters ({counted})"),
        ("pairs", f"{config.global_batch_size:,} a step, of up to {plan.max_length} tokens"),
        ("tokens", f"{plan.step_tokens:,.0f} a step, {_short(plan.tokens)} in all ({mean})"),
        ("steps", f"{plan.steps:,}, the learning rate rising over {plan.warmup:,}"),
        ("epochs", epochs),
        ("work", f"{plan.flops / 1e9:.3f} GFLOP a token, {plan.flops * plan.tokens:.2e} FLOP in all"),
    ]
    lines = [f"{title:<11}{text}" for title, text in rows]
    lines += ["", *_memory_lines(plan), "", *_time_lines(plan)]
    return "\n".join([*lines, *(["", *(f"note: {note}" for note in plan.notes)] if plan.notes else [])])


def _memory_lines(plan: Plan) -> list[str]:
    """A table of gigabytes a GPU: by ZeRO stage for the parameters, then a micro-batch's activations."""
    title = "GB a GPU, by formula"
    lines = [f"{title:<34}" + "".join(f"{n:>5} GPU{'s' if n > 1 else ' '}" for n in GPUS)]
    for stage, offload in ((0, False), (1, False), (2, False), (3, False), (2, True), (3, True)):
        precision = "fp32" if stage == 0 else "bf16" if plan.config.precision == "auto" else plan.precision
        cells = [states(plan.num_parameters, stage, precision, gpus, offload) for gpus in GPUS]
        name = f"ZeRO {stage}{', offload' if offload else ''}, {precision}"
        chosen = "  <- the settings'" if (stage, offload) == (plan.zero_stage, plan.offload) else ""
        host = "  and of the host: " + " ".join(f"{c.host / 1e9:.2f}" for c in cells) if offload else ""
        lines.append(f"{name:<34}" + "".join(f"{c.on_gpu / 1e9:>10.2f}" for c in cells) + host + chosen)
    layouts = [Layout(plan.config.global_batch_size, plan.config.micro_batch_size, gpus) for gpus in GPUS]
    configs = [encoder.config for encoder in plan.model.encoders]
    for name, values in (
        ("micro-batch, pairs", [float(layout.largest) for layout in layouts]),
        ("its activations, an estimate", [_activations(plan, configs, layout.largest) / 1e9 for layout in layouts]),
    ):
        digits = 0 if name.endswith("pairs") else 2
        lines.append(f"{name:<34}" + "".join(f"{value:>10.{digits}f}" for value in values))
    return lines


def _activations(plan: Plan, configs: list[Any], pairs: int) -> float:
    tokens = pairs * plan.max_length
    return activations(configs, tokens, round(tokens * plan.config.mlm_probability), plan.precision)


def _time_lines(plan: Plan) -> list[str]:
    if plan.config.tokens_per_second:
        speed = plan.config.tokens_per_second
        teraflops = plan.flops * speed / 1e12
        return [f"time       {_hours(plan, speed)} at {speed:,.0f} tokens/s in all ({teraflops:,.1f} TFLOP/s)"]
    table = ", ".join(f"{gpus} GPU{'s' if gpus > 1 else ''} {_hours(plan, ASSUMED_SPEED * gpus)}" for gpus in GPUS)
    teraflops = plan.flops * ASSUMED_SPEED / 1e12
    return [
        f"time       {table}: if each GPU did {ASSUMED_SPEED:,} tokens/s ({teraflops:.0f} TFLOP/s). That is a round",
        "           number, not a measurement: give the tokens_per_second that a short run logs as --tokens_per_second",
    ]


def _hours(plan: Plan, tokens_per_second: float) -> str:
    return f"{plan.tokens / tokens_per_second / 3600:,.1f} h"


def _short(count: float) -> str:
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if count >= size:
            return f"{count / size:,.1f} {name}"
    return f"{count:,.0f}"
