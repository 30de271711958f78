"""Whether ``--deterministic`` gives the same bits: twice, and after ``kill -9`` and a resume."""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_pipeline.errors import KinspanError

from .materials import KIT_MODELS, Bench, Row
from .ours import finish, read_lines, settings_of, start_command

MODELS = ("minilm-l6", "electra-base", "modernbert-base")  # bidirectional, with replaced tokens, with windows


def repeat(bench: Bench) -> Iterator[Row]:
    """Runs of each model twice, all at once."""
    names = MODELS[:1] if bench.quick else MODELS
    runs = {name: [_make_settings(bench, name, 2 if bench.quick else 8) for _ in range(2)] for name in names}
    for process in [start_command(settings) for pair in runs.values() for settings in pair]:
        finish(process)
    for name, pair in runs.items():
        one, two = ({**_hash_last_weights(settings), **_list_losses(settings)} for settings in pair)
        differing = sum(one[part] != two[part] for part in one)
        yield Row(f"{KIT_MODELS[name].title} twice", {"differing losses and files": differing}, one == two)


def kill_and_resume(bench: Bench) -> Iterator[Row]:
    """MiniLM-L6, killed after its first checkpoint and started again, against a run that was left alone."""
    steps, log_steps = (8, 1) if bench.quick else (400, 10)  # it must still run once its checkpoint is written
    whole, killed = (
        _make_settings(bench, "minilm-l6", steps, save_steps=steps // 4, log_steps=log_steps) for _ in range(2)
    )
    alone, process = start_command(whole), start_command(killed)
    checkpoints = Path(killed["output_dir"]) / "checkpoints"
    while not (checkpoints / "latest").exists():
        if process.poll() is not None:
            raise KinspanError("the run ended before its first checkpoint")
        time.sleep(0.02)
    process.kill()
    process.wait()
    reached = max((line["step"] for line in read_lines(killed)), default=0)
    finish(start_command(killed))
    finish(alone)
    one, two = ({**_hash_last_weights(settings), **_list_losses(settings)} for settings in (whole, killed))
    figures = {"killed at step": reached, "of": steps, "differing losses and files": sum(one[k] != two[k] for k in one)}
    yield Row("killed and resumed, against left alone", figures, one == two and reached < steps)


def _make_settings(bench: Bench, name: str, steps: int, **more: Any) -> dict[str, Any]:
    shape = {"global_batch_size": 32, "micro_batch_size": 16, "max_steps": steps, "save_steps": steps, "log_steps": 1}
    return settings_of(bench, name, **{**shape, **more}, deterministic=True)


def _list_losses(settings: dict[str, Any]) -> dict[str, float]:
    return {f"loss of step {line['step']}": line["loss"] for line in read_lines(settings)}


def _hash_last_weights(settings: dict[str, Any]) -> dict[str, str]:
    """By name, the hashes of the weights in the newest checkpoint."""
    newest = max((Path(settings["output_dir"]) / "checkpoints").glob("step-*"))
    files = newest.glob("*.safetensors")
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
