"""The figures of a run in Weights & Biases, with ``--wandb PROJECT``: one run there for all starts of a run here.

OUTPUT/wandb.json keeps the run's id by project. What was sent stays there, so that a step which is repeated after a
restart is sent once: the figures are the same. After a rewind, the lines before the leap are the old ones. A run that
is continued from before its decay gets another run there, see lengthen.py.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import write_atomically
from pretrain.engine.log import complete_lines

IDS = "wandb.json"
FINISH = 20.0  # seconds that the end of a run waits for W&B: launchers give 30 after a signal
STEP = "step"  # the figure over which all others are drawn: W&B's own counter cannot be set back


class WandbBoard:
    """Sends lines of the log. Training goes on where W&B fails; it says so once.

    run:  what wandb.init returned
    sent: of each split the last step that W&B has
    tell: is called with a line for the user
    """

    def __init__(self, run: Any, sent: dict[str, int], tell: Callable[[str], None] = print) -> None:
        self.run, self.sent, self.tell = run, sent, tell
        self.failed = False

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Sends the figures of a split after ``step`` updates, unless they were sent before."""
        if self.failed or step <= self.sent.get(split, -1):
            return
        self.sent[split] = step
        self._attempt(lambda: self.run.log({STEP: step, **{f"{split}/{name}": v for name, v in values.items()}}))

    def close(self) -> None:
        """Waits until W&B has all lines, or FINISH seconds; it keeps the others in the run's folder."""
        self._attempt(lambda: self.run.finish())

    def _attempt(self, send: Callable[[], Any]) -> None:
        try:
            send()
        except Exception as error:  # wandb's own kinds are not all exported
            if not self.failed:
                self.tell(f"Weights & Biases is not told any more ({quote_error(error)}): training goes on")
            self.failed = True


def import_wandb(project: str) -> Any:
    """The module wandb. Raises KinspanError where it is not installed."""
    try:
        import wandb
    except ImportError as error:
        raise KinspanError(
            f"--wandb {project}: the package wandb cannot be imported ({quote_error(error)}); pip install wandb, or "
            "leave the flag out: metrics.jsonl, TensorBoard and report.html have the same figures"
        ) from error
    if not hasattr(wandb, "init"):  # a folder of this name, such as older runs of W&B leave, passes for a package
        raise KinspanError(
            f"--wandb {project}: the package wandb is not installed (a folder of that name is in its place); "
            "pip install wandb, or leave the flag out"
        )
    return wandb


def open_board(folder: Path, project: str, facts: Mapping[str, Any], tell: Callable[[str], None] = print) -> WandbBoard:
    """Begins or continues this run's run in W&B, and sends what its log holds and W&B has not.

    facts: what run.json says

    Raises KinspanError where W&B cannot be reached, does not know the user, or is not installed.
    """
    wandb = import_wandb(project)
    ids = _read_ids(folder / IDS)
    is_new = project not in ids
    ids.setdefault(project, secrets.token_hex(4))
    try:
        run = wandb.init(
            project=project,
            id=ids[project],
            resume="allow",
            name=folder.name,
            dir=str(folder),
            config=dict(facts["settings"]),
            settings=wandb.Settings(console="off", silent=True, login_timeout=60, finish_timeout=FINISH),
        )
        run.define_metric(STEP)
        run.define_metric("*", step_metric=STEP)
    except Exception as error:  # wandb's own kinds are not all exported
        raise KinspanError(
            f"--wandb {project}: Weights & Biases cannot be used ({quote_error(error)}); `wandb login`, "
            "WANDB_MODE=offline, or leave the flag out"
        ) from error
    with suppress(OSError):  # then the next start begins another run there
        write_atomically(folder / IDS, json.dumps(ids) + "\n")
    lines = [json.loads(line) for line in complete_lines(folder / "metrics.jsonl")]
    board = WandbBoard(run, {}, tell)
    for line in lines:
        step, split = line.pop("step"), line.pop("split")
        if is_new:
            board.write(step, split, line)
        board.sent[split] = max(step, board.sent.get(split, -1))
    return board


def _read_ids(path: Path) -> dict[str, str]:
    """The id of this run in each project; none where the file is not there or damaged."""
    try:
        return {str(project): str(run_id) for project, run_id in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, AttributeError):
        return {}
