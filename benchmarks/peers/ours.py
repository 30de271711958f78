"""Trains by ``pretrain.step.train_step`` on the engine that kinspan pretrain builds."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from data_pipeline.sampling.pairs import KINDS

from .case import CLIP, RATE, SEED, Case, open_stream, write_model
from .turns import Turn


def load(case: Case) -> Any:
    """Returns the model that kinspan pretrain would train."""
    from pretrain.modeling.electra import load_replaced_token_model
    from pretrain.modeling.pair_model import load_model

    with TemporaryDirectory() as folder:
        name, objectives = write_model(case, Path(folder)), (case.objective,)
        if case.detects_replaced:
            size = "1/3" if "base" in case.model else "1/2"
            return load_replaced_token_model(name, size, "tied", SEED, objectives)[0]
        return load_model(name, SEED, objectives)[0]


def train(case: Case, turn: Turn) -> None:
    from pretrain.batches import make_micro_batches
    from pretrain.config import PretrainConfig
    from pretrain.engine.engine import build_engine, complete_settings, read_deepspeed_config, start_distributed
    from pretrain.engine.layout import Layout
    from pretrain.step import start_count_reduction, train_step

    start_distributed()
    layout = Layout(case.pairs, case.pairs, 1)
    settings = PretrainConfig(learning_rate=RATE, max_grad_norm=CLIP)
    stage = "ds_configs/zero1.json" if case.precision == "bf16" else "ds_configs/zero0.json"
    deepspeed_settings = complete_settings(read_deepspeed_config(stage), settings.max_grad_norm, layout, case.precision)
    engine = build_engine(load(case), deepspeed_settings, settings.learning_rate, settings.weight_decay)
    engine.train()
    stream = open_stream(case)
    filler = stream.batch(0, 1)
    for step in range(case.rounds + 1):
        batches = make_micro_batches(stream, layout, 0, step)
        turn.begin()
        global_batch = start_count_reduction(batches, engine.module.losses)()
        result = train_step(
            engine, global_batch=global_batch, filler=filler, layout=layout, rank=0, seed=SEED, step=step
        )
        sums = dict(zip(engine.module.sum_names, result.sums.tolist(), strict=True))
        pairs = sum(sums[f"{case.objective}/{kind}_pairs"] for kind in KINDS)
        losses = {"mlm": sums["mlm_loss"] / sums["mlm_tokens"], "pair": sums[f"{case.objective}/pair_loss"] / pairs}
        turn.end(global_batch.counts["num_tokens"], losses)
