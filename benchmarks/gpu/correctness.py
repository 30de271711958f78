"""Whether the GPU computes what the CPU does: the losses of ten steps, by the product's own command."""

from collections.abc import Iterator
from typing import Any

from .materials import Bench, Row
from .ours import ON_GPU, finish, read_lines, settings_of, start_command

FP32_CLOSE = 1e-4  # nats: most that a loss in fp32 may differ between the devices
BF16_CLOSE = 0.01  # of the loss: most that one in bf16 may differ from that in fp32
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LOSSES = ("loss", "mlm_loss", "pair_loss")


def compare_losses(bench: Bench) -> Iterator[Row]:
    """RoBERTa-base from its config, dropout and TF32 off, on the CPU in fp32 and on the GPU in fp32 and bf16.

    The three run at once. Without a GPU all are on the CPU, which shows that the check works.
    """
    steps = 2 if bench.quick else 10
    shared = {
        "model": bench.model("roberta-base", **NO_DROPOUT),
        "global_batch_size": 16,
        "micro_batch_size": 8,
        "max_steps": steps,
        "warmup_steps": steps // 2,
        "save_steps": steps,
        "log_steps": 1,
    }
    cpu = {"CUDA_VISIBLE_DEVICES": ""}
    if not ON_GPU:
        cpu["OMP_NUM_THREADS"] = "1"
    exact = {"NVIDIA_TF32_OVERRIDE": "0"}
    runs = {
        name: settings_of(bench, "roberta-base", **shared, precision=name[:4]) for name in ("fp32", "fp32 cpu", "bf16")
    }
    processes = [
        start_command(settings, **(cpu if name == "fp32 cpu" else exact if name == "fp32" else {}))
        for name, settings in runs.items()
    ]
    for process in processes:
        finish(process)
    lines = {name: read_lines(settings) for name, settings in runs.items()}
    apart = {loss: _find_largest_gap(lines["fp32"], lines["fp32 cpu"], loss) for loss in LOSSES}
    holds = len(lines["fp32"]) == len(lines["fp32 cpu"]) == steps and max(apart.values()) <= FP32_CLOSE
    figures: dict[str, Any] = {f"{loss} apart, nats": gap for loss, gap in apart.items()}
    yield Row(f"{steps} steps in fp32, GPU against CPU", {**figures, "last loss": lines["fp32"][-1]["loss"]}, holds)
    rounded = _find_largest_gap(lines["bf16"], lines["fp32"], "loss")
    figures = {"loss apart, nats": rounded, "last loss": lines["bf16"][-1]["loss"]}
    yield Row(f"{steps} steps, bf16 against fp32", figures, rounded <= BF16_CLOSE * lines["fp32"][0]["loss"])


def _find_largest_gap(one: list[dict], two: list[dict], loss: str) -> float:
    return max(abs(a[loss] - b[loss]) for a, b in zip(one, two, strict=True))
