"""Formats a plan for ``--dry_run``."""

from typing import Any

from data_pipeline import tokenizers
from data_pipeline.core.default_model import DEFAULT_MODEL_NAME, name_installed
from pretrain.batches import ON_PROCESSOR
from pretrain.engine.layout import Layout
from pretrain.engine.log import format_time
from pretrain.engine.schedule import describe_schedule

from .cost import SHOWN, estimate_update
from .memory import compute_states, estimate_activations
from .plan import RunPlan, count_sequences

GPUS = (1, 8, 64)
# What all-MiniLM-L6-v2 came to with SSP (docs/pretraining.md): pairs, AUC of held-out pairs, and MAP without labels on
# SelQA and WikiQA
DOSES = ((12_800, 0.81, 0.62, 0.51), (51_200, 0.86, 0.81, 0.61), (204_800, 0.88, 0.84, 0.63))


def format_plan(plan: RunPlan) -> str:
    """The text that ``--dry_run`` prints."""
    config, mixture = plan.config, plan.mixture
    weights = {"pair": config.pair_weight}
    weights |= {"mlm": config.mlm_weight} if plan.token_loss != "none" else {}
    weights |= {"rtd": config.rtd_weight} if plan.token_loss == "rtd" else {}
    parts = [(part.objective.name, part.weight) for part in mixture.parts]
    names = "+".join(f"{name}:{weight}" if len(parts) > 1 else name for name, weight in parts)
    counted = ", ".join(f"{name} {count / 1e6:.1f} M" for name, count in plan.parameters.items())
    model = DEFAULT_MODEL_NAME if config.model is None else tokenizers.shorten_name(name_installed(config.model))
    epochs = "unknown without a corpus"
    if plan.epoch_pairs:
        epochs = f"{plan.steps * config.global_batch_size / plan.epoch_pairs:.2f} of {plan.epoch_pairs:,} pairs"
    mean = f"{plan.pair_tokens:.1f} per pair, the mean of real ones" if plan.epoch_pairs else "at full length"
    tokens = f"{plan.token_loss} and " if plan.token_loss != "none" else ""
    each = "each text " if config.pair_loss else ""
    negatives = f"one positive in {1 / mixture.positive_share:.3g}"
    if config.pair_loss:
        negatives = f"the texts of a batch are each other's negatives, and {config.own_negatives or 0} of its own"
    rows = [
        ("objective", f"{names}, {negatives}; sampling {config.sampling}"),
        ("losses", f"{tokens}pairs; weights {', '.join(f'{n} {w:g}' for n, w in weights.items())}"),
        ("model", f"{model}: {plan.num_parameters / 1e6:.1f} M parameters ({counted})"),
        ("pairs", f"{config.global_batch_size:,} per step, {each}of up to {plan.max_length} tokens"),
        ("tokens", f"{plan.step_tokens:,.0f} per step, {_format_count(plan.tokens)} in all ({mean})"),
        ("steps", f"{plan.steps:,}, {describe_schedule(plan.schedule)}"),
        ("epochs", epochs),
        ("work", f"{plan.flops / 1e9:.3f} GFLOP per token, {plan.flops * plan.tokens:.2e} FLOP in all"),
    ]
    lines = [f"{title:<11}{text}" for title, text in rows]
    learns_pairs = config.pair_weight and not (config.pair_loss or config.adapter or config.permute_pair_labels)
    if learns_pairs and [part.objective.name for part in mixture.parts] == ["ssp"]:
        lines += _describe_doses(plan)
    lines += ["", *_format_memory(plan), "", *_format_time(plan)]
    return "\n".join([*lines, *(["", *(f"note: {note}" for note in plan.notes)] if plan.notes else [])])


def _describe_doses(plan: RunPlan) -> list[str]:
    """Where on the study's curve the run ends; other models, texts and rates come to other figures."""
    pairs = plan.steps * plan.config.global_batch_size
    known = [
        f"           after {dose:,} pairs: AUC {auc:.2f}; MAP without labels {selqa:.2f} on SelQA, {wikiqa:.2f} WikiQA"
        for dose, auc, selqa, wikiqa in DOSES
    ]
    first = f"learned    {pairs:,} pairs in all. What all-MiniLM-L6-v2 reached (BM25: 0.84 on SelQA, 0.60 WikiQA):"
    return [first, *known]


def _format_memory(plan: RunPlan) -> list[str]:
    """A table of gigabytes per GPU: for the parameters by stage of ZeRO, then for a micro-batch's activations."""
    title = "GB per GPU, by formula"
    lines = [f"{title:<34}" + "".join(f"{n:>5} GPU{'s' if n > 1 else ' '}" for n in GPUS)]
    for stage, offload in ((0, False), (1, False), (2, False), (3, False), (2, True), (3, True)):
        precision = "fp32" if stage == 0 else "bf16" if plan.config.precision == "auto" else plan.precision
        trained, frozen = plan.num_parameters - plan.num_frozen, plan.num_frozen
        cells = [compute_states(trained, stage, precision, gpus, offload, frozen) for gpus in GPUS]
        name = f"ZeRO {stage}{', offload' if offload else ''}, {precision}"
        chosen = "  <- the settings'" if (stage, offload) == (plan.zero_stage, plan.offload) else ""
        host = "  and of the host: " + " ".join(f"{c.host / 1e9:.2f}" for c in cells) if offload else ""
        lines.append(f"{name:<34}" + "".join(f"{c.on_gpu / 1e9:>10.2f}" for c in cells) + host + chosen)
    micro = plan.config.micro_batch_size or ON_PROCESSOR
    layouts = [Layout(plan.config.global_batch_size, micro, gpus) for gpus in GPUS]
    configs = [encoder.config for encoder in plan.model.encoders]
    activations = [_estimate_activations(plan, configs, layout.largest) / 1e9 for layout in layouts]
    lines.append(f"{'micro-batch, pairs':<34}" + "".join(f"{layout.largest:>10}" for layout in layouts))
    lines.append(f"{'its activations, an estimate':<34}" + "".join(f"{value:>10.2f}" for value in activations))
    return lines


def _estimate_activations(plan: RunPlan, configs: list[Any], pairs: int) -> float:
    tokens = pairs * count_sequences(plan.mixture, plan.config) * plan.max_length
    masked = round(tokens * plan.config.mlm_probability) if plan.token_loss != "none" else 0
    return estimate_activations(configs, tokens, masked, plan.precision, sampled=plan.token_loss == "rtd")


def _format_time(plan: RunPlan) -> list[str]:
    if plan.config.tokens_per_second:
        speed = plan.config.tokens_per_second
        teraflops = plan.flops * speed / 1e12
        return [
            f"time       {format_time(plan.tokens / speed)} at {speed:,.0f} tokens/s in all ({teraflops:,.1f} TFLOP/s)"
        ]
    if plan.precision != "bf16":
        return ["time       hours are known of bf16 alone: give what a short run logs as --tokens_per_second"]
    network, encoder = plan.config.network_gb_per_s, plan.model.encoders[0].config
    lines = [f"time       at the utilisation measured on an H200, {network:g} GB/s between machines of 8 GPUs:"]
    for gpu in SHOWN:
        cells = []
        for count in GPUS:
            flops = plan.flops * plan.step_tokens
            seconds = plan.steps * estimate_update(flops, encoder, plan.num_parameters, gpu, count, network)
            cells.append(f"{count} GPU{'s' if count > 1 else ''} {format_time(seconds)}")
        lines.append(f"           {gpu}: {', '.join(cells)}")
    return [*lines, "           give the tokens_per_second that a short run logs as --tokens_per_second"]


def _format_count(count: float) -> str:
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if count >= size:
            return f"{count / size:,.1f} {name}"
    return f"{count:,.0f}"
