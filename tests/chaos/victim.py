"""launch/pretrain.py with harm done from within, as environment variables say; the product knows nothing of it.

CHAOS_NAN=RANK:STEP:COUNT    activations of the rank's forward passes are NaN in so many steps from this one
CHAOS_STALL=RANK:STEP        the rank never begins this step
CHAOS_SLOW=SECONDS           each step takes so much longer
CHAOS_FULL=STEP              the disk is full while the checkpoint of this step is written
CHAOS_FORGET=optimizer       a resumed run has lost the optimizer's moments: the checker must see it
"""

import errno
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:] = [str(ROOT)] + [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]


def numbers(name: str) -> list[int]:
    return [int(part) for part in os.environ[name].split(":")]


def harm_steps() -> None:
    import torch
    from torch import nn

    import pretrain.run as product

    rank, train_step = int(os.environ.get("RANK", "0")), product.train_step

    def harmed(engine: Any, *given: Any, **named: Any) -> Any:
        step, hooks = named["step"], []
        if "CHAOS_STALL" in os.environ and numbers("CHAOS_STALL") == [rank, step]:
            time.sleep(10**6)
        if "CHAOS_NAN" in os.environ:
            whom, first, count = numbers("CHAOS_NAN")
            if rank == whom and first <= step < first + count:
                norms = [m for m in engine.module.modules() if isinstance(m, nn.LayerNorm)]
                hooks = [norms[0].register_forward_hook(lambda module, given, out: out * torch.nan)]
        time.sleep(float(os.environ.get("CHAOS_SLOW", "0")))
        try:
            return train_step(engine, *given, **named)
        finally:
            for hook in hooks:
                hook.remove()

    product.train_step = harmed


def fill_the_disk(step: int) -> None:
    import torch

    save = torch.save

    def refusing(value: Any, path: Any, *more: Any, **named: Any) -> None:
        if f"step-{step:08d}" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(value, path, *more, **named)

    torch.save = refusing  # type: ignore[assignment]


def forget_the_optimizer() -> None:
    import pretrain.run as product

    load = product.load_checkpoint

    def forgetful(engine: Any, *arguments: Any) -> Any:
        state = load(engine, *arguments)
        inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
        for moments in inner.state.values():
            moments["exp_avg"].zero_()
            moments["exp_avg_sq"].zero_()
        return state

    product.load_checkpoint = forgetful


if __name__ == "__main__":
    harm_steps()
    if "CHAOS_FULL" in os.environ:
        fill_the_disk(*numbers("CHAOS_FULL"))
    if "CHAOS_FORGET" in os.environ:
        forget_the_optimizer()
    sys.argv[0] = str(ROOT / "launch/pretrain.py")
    runpy.run_path(sys.argv[0], run_name="__main__")
