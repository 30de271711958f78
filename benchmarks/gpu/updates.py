"""Whether updates are right on the GPU: AdamW's, each stage of ZeRO, one that overflows, and compiled ones."""

from collections.abc import Iterator
from typing import Any

import torch

from .bench import DEVICE, ON_GPU, Bench, Row, train_here

STEPS = 6
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FP32_CLOSE, BF16_CLOSE = 1e-4, 0.01  # of losses: in nats, and relative
STAGES = (("fp32", (0, 1, 2, 3)), ("bf16", (1, 2, 3)))
OVERFLOW = 3  # the step whose gradient is made infinite


def compare_updates(bench: Bench) -> Iterator[Row]:
    """AdamW alone; then MiniLM-L6 in every stage of ZeRO, with one rank; then an update that overflows."""
    yield compare_adamw()
    model = bench.model("minilm-l6", **NO_DROPOUT)
    exact: list[float] = []
    for precision, stages in STAGES:
        for stage in stages:
            losses = _list_losses(bench, model=model, precision=precision, deepspeed_config=_name_stage(stage))
            exact = exact or losses
            gap = _find_gap(losses, exact)
            close = FP32_CLOSE if precision == "fp32" else BF16_CLOSE * exact[0]
            yield Row(f"ZeRO {stage} in {precision} against ZeRO 0 in fp32", {"losses apart, nats": gap}, gap <= close)
    yield compare_overflow(bench)


def compare_adamw() -> Row:
    """torch's fused AdamW against its plain loop; and that ``found_inf`` leaves every bit, as skipped updates need."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    start = 0.02 * torch.randn(1000, 257, device=DEVICE, generator=generator)  # as large as weights are
    ways: list[dict[str, bool]] = [{"fused": True}, {"foreach": False}]
    parameters = [torch.nn.Parameter(start.clone()) for _ in ways]
    optimizers = [torch.optim.AdamW([p], lr=1e-3, **way) for p, way in zip(parameters, ways, strict=True)]
    for _ in range(10):
        gradient = torch.randn(start.shape, device=DEVICE, generator=generator)
        for parameter, optimizer in zip(parameters, optimizers, strict=True):
            parameter.grad = gradient
            optimizer.step()
    apart = float((parameters[0] - parameters[1]).detach().abs().max())
    before = parameters[0].detach().clone(), optimizers[0].state[parameters[0]]["step"].clone()
    optimizers[0].found_inf = torch.ones((), device=DEVICE)  # type: ignore[attr-defined]
    optimizers[0].step()
    after = parameters[0], optimizers[0].state[parameters[0]]["step"]
    kept = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    return Row("fused AdamW", {"from the plain loop": apart, "a skipped update keeps it": kept}, kept and apart <= 1e-6)


def compare_overflow(bench: Bench) -> Row:
    """An update whose gradient is infinite moves no weight, and the next one does; in fp16, or fp32 without a GPU."""
    seen: list[list[torch.Tensor]] = []
    hooks: list[Any] = []

    def before(step: int, engine: Any) -> None:
        weights = list(engine.module.parameters())
        if hooks:
            hooks.pop().remove()
        if step == OVERFLOW:
            hooks.append(weights[0].register_hook(lambda gradient: gradient + torch.inf))
        if step >= OVERFLOW:
            seen.append([weight.detach().clone() for weight in weights])

    losses = _list_losses(bench, before, precision="fp16" if ON_GPU else "fp32", deepspeed_config=_name_stage(1))
    moved = [any(not torch.equal(a, b) for a, b in zip(*pair, strict=True)) for pair in (seen[:2], seen[-2:])]
    figures = {"weights moved": moved[0], "moved by the last but one": moved[1], "last loss": losses[-1]}
    return Row("an update that overflows", figures, moved == [False, True] and len(losses) >= STEPS - 1)


def compare_compiled(bench: Bench) -> Iterator[Row]:
    """MiniLM-L6 without dropout, whose random numbers a compiled graph draws otherwise."""
    if not ON_GPU:
        yield Row("compiled", {"": "there is no GPU here, and nothing else is compiled"})
        return
    model = bench.model("minilm-l6", **NO_DROPOUT)
    eager, compiled = (_list_losses(bench, model=model, compile=wanted) for wanted in (False, True))
    gap = _find_gap(eager, compiled)
    yield Row("losses compiled against eager, bf16", {"apart, nats": gap}, gap <= BF16_CLOSE * eager[0])


def _list_losses(bench: Bench, before: Any = lambda step, engine: None, **settings: Any) -> list[float]:
    shape = {"global_batch_size": 32, "micro_batch_size": 32, "max_steps": STEPS, "save_steps": STEPS, "log_steps": 1}
    return [line["loss"] for line in train_here(bench.settings("minilm-l6", **shape, **settings), before)]


def _find_gap(one: list[float], two: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, two, strict=True))


def _name_stage(stage: int) -> str:
    return f"ds_configs/zero{stage}.json"
