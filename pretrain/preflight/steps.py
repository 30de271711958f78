"""A few training steps as the run would make them, and their speed."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError
from pretrain.batches import make_micro_batches
from pretrain.config import PretrainConfig
from pretrain.engine import ranks
from pretrain.engine.device import describe_out_of_memory, is_out_of_memory
from pretrain.engine.engine import build_engine
from pretrain.engine.run_folder import holds_this_run
from pretrain.engine.watch import Watch
from pretrain.lengthen import find_start
from pretrain.metrics import measure_peak_tflops
from pretrain.modeling.compilation import compile_encoders
from pretrain.modeling.losses import LossWeights
from pretrain.setup import Setup, explain_differences, set_up
from pretrain.step import start_count_reduction, train_step, try_largest

WARM_UP = 2  # steps that are not timed: memory is laid out, kernels are chosen
MIN_STEPS, MAX_STEPS = 2, 10  # that are timed
TIMED = 15.0  # seconds that they are to take together
# Of a checkpoint in fp32 (18 in bf16): weights, and of DeepSpeed a copy of them, the master copy and two moments.
BYTES_PER_PARAMETER = 20


def try_steps(config: PretrainConfig, folder: Path, watch: Watch) -> dict[str, Any]:
    """Sets the run up in ``folder`` and trains it for some steps, which leave nothing. All ranks call it.

    Returns parameters (the number of those that are trained), tflops (of this rank's device), steps (of the whole run),
    seconds (of a step) and tokens (of a step, over all ranks). Raises KinspanError for what the run itself would
    refuse, too little memory for instance.
    """
    watch.mark("loading model and corpus", patient=True)
    setup = set_up(replace(config, output_dir=str(folder), profile=0))
    own = Path(config.output_dir)
    ranks.broadcast_from_rank_0(lambda: _expect_startable(own, setup))
    parameters = sum(p.numel() for p in setup.model.parameters() if p.requires_grad)
    try:
        tflops = measure_peak_tflops(setup.facts["precision"])
        watch.mark("building the engine", patient=True)
        engine = build_engine(setup.model, config, setup.deepspeed_settings)
        if config.compile:
            compile_encoders(setup.model)
        watch.mark("trying the largest batch")
        try_largest(engine, setup.train_stream, setup.layout)
        seconds, tokens = _time_steps(setup, engine, watch)
    except Exception as error:
        if not is_out_of_memory(error):  # weights, or Adam's moments, which the first update makes
            raise
        text = describe_out_of_memory(setup.layout.largest, setup.train_stream.max_length)
        raise KinspanError(text) from error
    return {
        "parameters": parameters,
        "tflops": tflops,
        "steps": setup.total_steps,
        "seconds": seconds,
        "tokens": tokens,
    }


def _expect_startable(folder: Path, setup: Setup) -> None:
    """Raises KinspanError where the output folder holds another run, or one that cannot have this length."""
    if holds_this_run(folder, setup.facts, explain_differences(setup, folder)):
        find_start(folder, setup.schedule)


def _time_steps(setup: Setup, engine: Any, watch: Watch) -> tuple[float, float]:
    """Trains for some steps, the same number on all ranks: seconds and tokens of one."""
    config, seconds = setup.config, list[float]()
    tokens, timed = 0, MAX_STEPS
    while len(seconds) < WARM_UP + timed:
        began, step = time.perf_counter(), len(seconds)
        watch.mark(f"step {step}, waiting for its batch", patient=step == 0)  # a remote corpus may take long
        batches = make_micro_batches(setup.train_stream, setup.layout, setup.rank, step)
        counted = start_count_reduction(batches, engine.module.losses)()
        result = train_step(
            engine,
            counted=counted,
            filler=setup.train_stream.batch(0, 1),
            layout=setup.layout,
            rank=setup.rank,
            seed=config.seed,
            step=step,
            weights=LossWeights(config.mlm_weight, config.pair_weight, config.rtd_weight),
            mark=watch.mark,
        )
        result.sums.tolist()  # waits for a GPU
        seconds.append(time.perf_counter() - began)
        if len(seconds) == WARM_UP:
            timed = min(MAX_STEPS, max(MIN_STEPS, int(TIMED / max(ranks.gather(seconds[-1])))))
        elif len(seconds) > WARM_UP:
            tokens += counted.counts["num_tokens"]
    return sum(seconds[WARM_UP:]) / timed, tokens / timed
