"""Formats a plan for ``--dry_run``."""

from typing import Any

from data_pipeline import tokenizers
from data_pipeline.core.default_model import DEFAULT_MODEL_NAME, name_installed
from pretrain.batches import ON_PROCESSOR
from pretrain.engine.layout import Layout
from pretrain.engine.log import format_time

from .cost import SHOWN, estimate_update
from .memory import compute_states, estimate_activations
from .plan import RunPlan, count_sequences

GPUS = (1, 8, 64)


def format_plan(plan: RunPlan) -> str:
    """Returns the text that ``--dry_run`` prints."""
    config = plan.config
    weights = {"pair": config.pair_weight}
    weights |= {"mlm": config.mlm_weight} if plan.token_loss != "none" else {}
    weights |= {"rtd": config.rtd_weight} if plan.token_loss == "rtd" else {}
    objectives = ", ".join(f"{part.objective.name} {part.weight}" for part in plan.mixture.parts)
    parameters = ", ".join(f"{name} {count / 1e6:.1f} M" for name, count in plan.parameters.items())
    model = DEFAULT_MODEL_NAME if config.model is None else tokenizers.shorten_name(name_installed(config.model))
    epochs = plan.steps * config.global_batch_size / plan.epoch_pairs if plan.epoch_pairs else None
    rows = [
        ("objective", f"{objectives}; one positive in {1 / plan.mixture.positive_share:.3g}; {config.sampling}"),
        ("losses", ", ".join(f"{name} {weight:g}" for name, weight in weights.items())),
        ("model", f"{model}: {plan.num_parameters / 1e6:.1f} M parameters ({parameters})"),
        (
            "pairs",
            f"{config.global_batch_size:,} per step, up to {plan.max_length} tokens, mean {plan.pair_tokens:.1f}",
        ),
        ("tokens", f"{plan.step_tokens:,.0f} per step, {plan.tokens / 1e9:,.4g} billion in all"),
        ("steps", f"{plan.steps:,}, {plan.schedule.shape}, warm-up over {plan.schedule.warmup:,} updates"),
        ("epochs", f"{epochs:.2f} of {plan.epoch_pairs:,} pairs" if epochs else "unknown without a corpus"),
        ("work", f"{plan.flops / 1e9:.3f} GFLOP per token, {plan.flops * plan.tokens:.2e} FLOP in all"),
    ]
    lines = [f"{title:<11}{text}" for title, text in rows]
    return "\n".join([*lines, "", *_format_memory(plan), "", *_format_time(plan), *(f"note: {n}" for n in plan.notes)])


def _format_memory(plan: RunPlan) -> list[str]:
    """Returns a table of gigabytes per GPU: parameters by stage of ZeRO, then a micro-batch's activations."""
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
        return ["time       unknown: give --tokens_per_second"]
    network, encoder = plan.config.network_gb_per_s, plan.model.encoders[0].config
    lines = [f"time       at the utilisation measured on an H200, {network:g} GB/s between machines of 8 GPUs:"]
    for gpu in SHOWN:
        cells = []
        for count in GPUS:
            flops = plan.flops * plan.step_tokens
            seconds = plan.steps * estimate_update(flops, encoder, plan.num_parameters, gpu, count, network)
            cells.append(f"{count} GPU{'s' if count > 1 else ''} {format_time(seconds)}")
        lines.append(f"           {gpu}: {', '.join(cells)}")
    return lines
