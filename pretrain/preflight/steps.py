"""A few training steps as the run would make them, and their speed."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from data_pipeline.errors import KinspanError
from pretrain.batches import make_micro_batches
from pretrain.config import PretrainConfig
from pretrain.metrics import measure_peak_tflops
from pretrain.modeling.compilation import compile_encoders
from pretrain.modeling.losses import LossWeights
from pretrain.runtime import ranks
from pretrain.runtime.engine import OptimizerSettings, build_engine
from pretrain.runtime.out_of_memory import describe_out_of_memory, is_out_of_memory
from pretrain.runtime.run_folder import holds_this_run
from pretrain.runtime.watch import Watch
from pretrain.setup import Setup, explain_differences, set_up
from pretrain.step import start_counting, train_step, try_largest

from .report import Finding

WARM_UP = 2  # steps that are not timed: memory is laid out, kernels are chosen
MIN_STEPS, MAX_STEPS = 2, 10  # that are timed
TIMED = 15.0  # seconds that they are to take together
# All ranks wait while gradients are added up: with half of a step spent so, half of the machines would do as well.
COMMUNICATION_SHARE = 0.5
# Of a checkpoint in fp32 (18 in bf16): weights, and of DeepSpeed a copy of them, the master copy and two moments.
BYTES_PER_PARAMETER = 20


def try_steps(config: PretrainConfig, folder: Path, watch: Watch) -> dict[str, Any]:
    """Sets the run up in ``folder`` and trains it for some steps, which leave nothing. All ranks call it.

    Returns parameters (the number of those that are trained), tflops (of this rank's device), seconds (of a step),
    tokens (of a step, over all ranks), steps (of the whole run) and finite (whether all losses were). Raises
    KinspanError for what the run itself would refuse, too little memory for instance.
    """
    watch.mark("loading model and corpus", patient=True)
    setup = set_up(replace(config, output_dir=str(folder), probe=None, profile=0))
    own = Path(config.output_dir)
    ranks.broadcast_from_rank_0(lambda: holds_this_run(own, setup.facts, explain_differences(setup, own)))
    parameters = sum(p.numel() for p in setup.model.parameters() if p.requires_grad)
    try:
        tflops = measure_peak_tflops(setup.facts["precision"])
        watch.mark("building the engine", patient=True)
        engine = build_engine(setup.model, OptimizerSettings.of(config), setup.deepspeed_settings)
        if config.compile:
            compile_encoders(setup.model)
        watch.mark("trying the largest batch")
        try_largest(engine, setup.train_stream, setup.layout)
        timed = _time_steps(setup, engine, watch)
    except Exception as error:
        if not is_out_of_memory(error):  # weights, or Adam's moments, which the first update makes
            raise
        text = describe_out_of_memory(setup.layout.largest, setup.train_stream.max_length)
        raise KinspanError(text) from error
    return {"parameters": parameters, "tflops": tflops, "steps": setup.total_steps, **timed}


def _time_steps(setup: Setup, engine: Any, watch: Watch) -> dict[str, Any]:
    """Trains for some steps, the same number on all ranks: seconds, tokens and finite, see ``try_steps``."""
    seconds: list[float] = []
    tokens, finite, timed = 0, True, MAX_STEPS
    while len(seconds) < WARM_UP + timed:
        began = time.perf_counter()
        step_tokens, step_finite = _train_step(setup, engine, len(seconds), watch)
        seconds.append(time.perf_counter() - began)
        if len(seconds) == WARM_UP:
            timed = min(MAX_STEPS, max(MIN_STEPS, int(TIMED / max(ranks.gather(seconds[-1])))))
        elif len(seconds) > WARM_UP:
            tokens += step_tokens
        finite = finite and step_finite
    return {"seconds": sum(seconds[WARM_UP:]) / timed, "tokens": tokens / timed, "finite": finite}


def _train_step(setup: Setup, engine: Any, step: int, watch: Watch) -> tuple[int, bool]:
    """One update, waited for: its tokens over all ranks, and whether its losses were finite."""
    config = setup.config
    watch.mark(f"step {step}, waiting for its batch", patient=step == 0)  # a remote corpus may take long
    batches = make_micro_batches(setup.train_stream, setup.layout, setup.rank, step)
    result = train_step(
        engine,
        counted=start_counting(batches, engine.module.losses)(),
        filler=setup.train_stream.batch(0, 1),
        layout=setup.layout,
        rank=setup.rank,
        seed=config.seed,
        step=step,
        weights=LossWeights(config.mlm_weight, config.pair_weight, config.rtd_weight),
        mark=lambda place, part: watch.mark(place),
    )
    finite = bool(torch.isfinite(result.sums).all()) and not bool(result.skipped)
    return result.tokens, finite


def check_steps(results: list[dict[str, Any]], hosts: dict[int, str], all_reduce: float | None) -> list[Finding]:
    """What the steps of all ranks showed.

    results:    of each rank what ``try_steps`` returned, or its error, under "error"
    all_reduce: MB/s of an all-reduce; None of a rank alone
    """
    found = []
    texts: dict[str, list[str]] = {}
    for rank, result in enumerate(results):
        if "error" in result:
            texts.setdefault(result["error"], []).append(hosts[rank])
    for text, where in texts.items():
        found.append(Finding("steps", list(dict.fromkeys(where)), text))
    if found:
        return found
    bad = [hosts[rank] for rank, result in enumerate(results) if not result["finite"]]
    if bad:
        text = "a loss or gradient was not finite in the first steps: lower --learning_rate, or look at --precision"
        found.append(Finding("steps", list(dict.fromkeys(bad)), text, fatal=False))
    if all_reduce and len(results) > 1:
        seconds = count_reduction(results[0]["parameters"], len(results), all_reduce)
        whole = max(result["seconds"] for result in results)
        if seconds > COMMUNICATION_SHARE * whole:
            text = (
                f"adding up the gradients takes about {seconds:.2g} s of a step's {whole:.2g} s: a larger "
                "--global_batch_size does it less often, a faster network sooner"
            )
            found.append(Finding("bandwidth", list(dict.fromkeys(hosts.values())), text, fatal=False))
    return found


def count_reduction(parameters: int, world: int, megabytes_per_second: float) -> float:
    """Seconds in which the ranks add up gradients in fp32: each sends and receives them about twice."""
    return 2 * (world - 1) / world * 4 * parameters / 1e6 / megabytes_per_second
