"""Plans a run for ``--dry_run``: its length, memory and time, without training, loading weights or writing files."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedTokenizerBase

from data_pipeline import tokenizers
from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.sampling.mixture import Mixture
from data_pipeline.sampling.stream import PairStream
from data_pipeline.sources import is_url, list_paths
from objectives.mlm import MaskedLM
from pretrain.batches import CPU_MICRO_BATCH, SAMPLE, TrainedModel, to_tensors
from pretrain.config import PretrainConfig
from pretrain.engine.deepspeed_config import read_deepspeed_config, zero_stage
from pretrain.engine.device import DTYPES, choose_precision, name_device
from pretrain.engine.layout import Layout
from pretrain.engine.log import format_time
from pretrain.engine.schedule import Schedule
from pretrain.metrics import PEAK_TFLOPS, FlopCounter
from pretrain.modeling.adapters.folder import read_adapter
from pretrain.modeling.adapters.layers import add_layers
from pretrain.modeling.adapters.model import AdapterModel, make_part
from pretrain.modeling.compilation import check_supports_compile
from pretrain.modeling.pair_model import build_fresh, load_config
from pretrain.planning.checks import check, find_unused_flags
from pretrain.setup import (
    check_lengths,
    choose_token_loss,
    count_steps,
    disable_unused_masking,
    load_trained,
    make_masking,
    plan_schedule,
)

from .corpora import (
    build_mixture,
    default_corpus_folder,
    drop_untrainable,
    list_sources,
    open_corpora,
    open_corpora_for_tokenizer,
)
from .cost import compute_states, estimate_activations, estimate_update

GPU_COUNTS = (1, 8, 64)
GPU_TYPES = ("A100", "H100", "H200")
MANY_EPOCHS = 40
BUILT_IN = Path(__file__).resolve().parent / "models"  # configs by name, if the hub is out of reach


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Holds what a run would do. Per pair: ``sequences`` and mean tokens; per token: ``flops``, forward and backward.

    epoch_pairs and speed, in tokens per second on this machine, are None if a corpus is missing.
    """

    config: PretrainConfig
    token_loss: str
    model: TrainedModel
    max_length: int
    sequences: int
    pair_tokens: float
    steps: int
    schedule: Schedule
    epoch_pairs: int | None
    precision: str
    zero_stage: int
    offload: bool
    flops: float
    speed: float | None
    notes: list[str]

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @property
    def step_tokens(self) -> float:
        return self.pair_tokens * self.config.global_batch_size

    @property
    def tokens(self) -> float:
        return self.step_tokens * self.steps

    def activations(self, pairs: int) -> float:
        """Estimates the bytes that the backward pass of a micro-batch of ``pairs`` pairs needs."""
        tokens = pairs * self.sequences * self.max_length
        masked = round(tokens * self.config.mlm_probability) if self.token_loss != "none" else 0
        configs = [encoder.config for encoder in self.model.encoders]
        return estimate_activations(configs, tokens, masked, self.precision, sampled=self.token_loss == "rtd")


def make_plan(config: PretrainConfig) -> RunPlan:
    """Returns the plan of these settings. Raises KinspanError for settings that the run would refuse."""
    check(config)
    mixture = build_mixture(config, list_sources(config))
    settings = read_deepspeed_config(config.deepspeed_config)
    stage, zero_settings = zero_stage(settings), settings.get("zero_optimization", {})
    notes: list[str] = []
    name = config.model or default_model()
    model_config, is_built_in = _load_config(name, "--model", notes)
    token_loss = choose_token_loss(config, name, model_config.model_type)
    notes += find_unused_flags(config, token_loss)
    config = disable_unused_masking(config, token_loss)
    build = partial(_build, config, name, model_config, token_loss, mixture)
    with torch.device("meta"):  # which holds shapes, but no values
        model = build(notes)
    if config.compile:
        check_supports_compile(model.family, stage)
    max_length = config.max_length or mixture.max_length
    try:
        tokenizer = None if is_built_in else tokenizers.load_tokenizer(name)
    except KinspanError:
        if Path(name).is_dir():
            raise
        tokenizer = None  # the hub is out of reach
    check_lengths(model, name, config.generator, tokenizer, max_length)
    masking = make_masking(config, token_loss, tokenizer) if tokenizer is not None else None
    stream = _open_stream(config, tokenizer, mixture, max_length, masking, notes)
    lengths, epoch_pairs, maskable = np.full(1, max_length), None, 1.0  # lengths of sequences, in tokens
    if stream is not None:
        epoch_pairs = stream.epoch_pairs
        lengths = np.diff(stream.batch(0, min(SAMPLE, epoch_pairs)).starts)
        maskable = 1 - stream.template.num_special / lengths.mean()
    sequences = mixture.parts[0].objective.num_texts if config.pair_loss else 1
    steps = count_steps(config, stream, max_length * sequences)
    masked = 0.0 if token_loss == "none" else config.mlm_probability * maskable
    counter = FlopCounter(model)
    flops = 6.0 * (counter.token_parameters + masked * counter.masked_parameters)  # per token
    flops += counter.count_attention(lengths.astype(np.float64)) / float(lengths.sum())
    if epoch_pairs and (epochs := steps * config.global_batch_size / epoch_pairs) > MANY_EPOCHS:
        notes.append(f"warning: {epochs:,.0f} epochs: the corpus is small, so shorten the run or add text")
    here = choose_precision(config.precision, stage)
    gpu_precision = {"auto": "bf16", "fp16": "fp16"} if stage else {}  # even if this machine has no such GPU
    return RunPlan(
        config=config,
        token_loss=token_loss,
        model=model,
        max_length=max_length,
        sequences=sequences,
        pair_tokens=float(lengths.mean()) * sequences,
        steps=steps,
        schedule=plan_schedule(config, steps, epoch_pairs or 0),
        epoch_pairs=epoch_pairs,
        precision=gpu_precision.get(config.precision) or here,
        zero_stage=stage,
        offload="offload_optimizer" in zero_settings or "offload_param" in zero_settings,
        flops=flops,
        speed=measure_speed(build([]), stream, here) if stream and tokenizer else None,
        notes=notes,
    )


def _load_config(name: str, flag: str, notes: list[str]) -> tuple[PreTrainedConfig, bool]:
    """Returns a model's config, and whether it is the built-in one, for want of the hub."""
    try:
        return load_config(name, flag), False
    except KinspanError:
        if not (BUILT_IN / name / "config.json").is_file():
            raise
    notes.append(f"the hub cannot be reached: the config of {name} is the built-in one")
    return load_config(str(BUILT_IN / name), flag), True


def _build(
    config: PretrainConfig,
    name: str,
    model_config: PreTrainedConfig,
    token_loss: str,
    mixture: Mixture,
    notes: list[str],
) -> TrainedModel:
    """Returns the module to train, with random weights."""

    def build(
        auto: Any, name_or_dir: str, head: str, flag: str = "--model", config: PreTrainedConfig | None = None
    ) -> tuple[nn.Module, list[str]]:
        config = config or (model_config if name_or_dir == name else _load_config(name_or_dir, flag, notes)[0])
        return build_fresh(auto, config, name_or_dir, flag), []

    if not config.adapter:
        return load_trained(config, name, token_loss, mixture, build)[0]
    fused = [read_adapter(folder) for folder in config.adapters]
    part = make_part(config.adapter, config.adapter_size, fused, Path(config.output_dir).resolve().name)
    classifier = build_fresh(AutoModelForSequenceClassification, model_config, name)
    add_layers(classifier.base_model, part)
    return AdapterModel(classifier, part, "", mixture.names)


def _open_stream(
    config: PretrainConfig,
    tokenizer: PreTrainedTokenizerBase | None,
    mixture: Mixture,
    max_length: int,
    masking: MaskedLM | None,
    notes: list[str],
) -> PairStream | None:
    """Returns the run's pairs; None, with a note, if a corpus is missing."""
    sources, cache = list_sources(config), config.cache
    folders = [Path(path) for path in list_paths(sources) if not is_url(path)]
    if not sources:
        folders = [Path("the default corpus") if tokenizer is None else default_corpus_folder(tokenizer)]
    for folder in folders:
        if not (folder / "manifest.json").is_file():
            notes.append(f"no corpus at {folder}: every pair is assumed to have the maximum length")
            return None
    if tokenizer is not None:
        corpora = open_corpora_for_tokenizer(tokenizer, sources, cache, verify=False)
    else:
        corpora = open_corpora(sources, cache, lambda: None, verify=False)
        notes.append("the model's tokenizer cannot be loaded, so it is not compared with the corpus's")
    tokenizer = tokenizers.load_tokenizer(corpora[0].tokenizer_folder)
    template = tokenizers.read_template(tokenizer, alone=bool(config.pair_loss))
    mixture, dropped = drop_untrainable(mixture.read_from(*corpora))
    notes += dropped
    return PairStream(mixture, template=template, seed=config.seed, max_length=max_length, masking=masking)


def measure_speed(model: TrainedModel, stream: PairStream, precision: str) -> float:
    """Returns tokens per second, forward and backward, over a second after the first pass; here, on one GPU at most."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, passes, began = model.to(device, DTYPES[precision]), 0, 0.0
    inputs = to_tensors(batch := stream.batch(0, min(CPU_MICRO_BATCH, stream.epoch_pairs)), device)
    while passes < 2 or time.perf_counter() - began < 1:
        loss, sums, outputs = model(**inputs, scales={loss.name: 1.0 for loss in model.losses})
        (loss + 0.0 * outputs.sum()).backward()
        sums.tolist()  # waits for a GPU
        passes, began = passes + 1, began or time.perf_counter()
    return batch.num_tokens * (passes - 1) / (time.perf_counter() - began)


def format_plan(plan: RunPlan) -> str:
    """Returns the text that ``--dry_run`` prints."""
    config = plan.config
    model = tokenizers.shorten_name(config.model or default_model())
    epochs = plan.steps * config.global_batch_size / plan.epoch_pairs if plan.epoch_pairs else None
    pairs = f"{config.global_batch_size:,} per step, up to {plan.max_length} tokens, mean {plan.pair_tokens:.1f}"
    rows = {
        "model": f"{model}: {plan.num_parameters / 1e6:.1f} M parameters",
        "pairs": pairs,
        "tokens": f"{plan.step_tokens:,.0f} per step, {plan.tokens / 1e9:,.4g} billion in all",
        "steps": f"{plan.steps:,}, {plan.schedule.shape}, warm-up over {plan.schedule.warmup:,} updates",
        "epochs": f"{epochs:.2f} of {plan.epoch_pairs:,} pairs" if epochs else "unknown without a corpus",
        "work": f"{plan.flops / 1e9:.3f} GFLOP per token, {plan.flops * plan.tokens:.2e} FLOP in all",
    }
    lines = [f"{title:<11}{text}" for title, text in rows.items()]
    return "\n".join([*lines, "", *_format_memory(plan), "", *_format_time(plan), *(f"note: {n}" for n in plan.notes)])


def _format_memory(plan: RunPlan) -> list[str]:
    """Returns a table of gigabytes per GPU: training states for each ZeRO stage, then a micro-batch's activations."""
    lines = [f"{'GB per GPU, by formula; GPUs:':<34}" + "".join(f"{gpus:>10}" for gpus in GPU_COUNTS)]
    frozen = sum(p.numel() for p in plan.model.parameters() if not p.requires_grad)
    for stage, offload in ((0, False), (1, False), (2, False), (3, False), (2, True), (3, True)):
        precision = "fp32" if stage == 0 else "bf16" if plan.config.precision == "auto" else plan.precision
        trained = plan.num_parameters - frozen
        cells = [compute_states(trained, stage, precision, gpus, offload, frozen) for gpus in GPU_COUNTS]
        name = f"ZeRO {stage}{', offload' if offload else ''}, {precision}"
        chosen = "  <- these settings" if (stage, offload) == (plan.zero_stage, plan.offload) else ""
        host_cells = "  and host memory: " + " ".join(f"{host / 1e9:.2f}" for _, host in cells) if offload else ""
        lines.append(f"{name:<34}" + "".join(f"{gpu / 1e9:>10.2f}" for gpu, _ in cells) + host_cells + chosen)
    micro = plan.config.micro_batch_size or CPU_MICRO_BATCH
    largest = [Layout(plan.config.global_batch_size, micro, gpus).largest for gpus in GPU_COUNTS]
    lines.append(f"{'micro-batch, pairs':<34}" + "".join(f"{pairs:>10}" for pairs in largest))
    activations = "".join(f"{plan.activations(pairs) / 1e9:>10.2f}" for pairs in largest)
    return [*lines, f"{'activations, estimated':<34}{activations}"]


def _format_time(plan: RunPlan) -> list[str]:
    if speed := plan.config.tokens_per_second:
        teraflops = f"{plan.flops * speed / 1e12:,.1f} TFLOP/s"
        return [f"time       {format_time(plan.tokens / speed)} at {speed:,.0f} tokens/s in all ({teraflops})"]
    lines = ["time       unknown: give --tokens_per_second"]
    if speed := plan.speed:
        measured = f"{speed:,.0f} tokens/s of one process, measured for a second, without updates"
        lines = [f"time here  {format_time(plan.tokens / speed)} on {name_device()}, at {measured}"]
    if plan.precision != "bf16":
        return lines
    network, encoder = plan.config.network_gb_per_s, plan.model.encoders[-1].config  # of ELECTRA's two, the large one
    lines = [
        *(lines if plan.speed else ()),
        f"time       in ZeRO 1 at the utilisation measured on an H200, {network:g} GB/s between machines of 8 GPUs",
        f"{'GPUs:':<10}" + "".join(f"{gpus:>14}" for gpus in GPU_COUNTS),
    ]
    for gpu in GPU_TYPES:
        peak, flops = PEAK_TFLOPS[gpu] * 1e12, plan.flops * plan.step_tokens
        updates = (estimate_update(flops, encoder, plan.num_parameters, peak, n, network) for n in GPU_COUNTS)
        lines.append(f"{gpu:<10}" + "".join(f"{format_time(plan.steps * seconds):>14}" for seconds in updates))
    return lines
