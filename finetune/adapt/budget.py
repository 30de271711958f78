"""How long an adaptation pre-trains: a time or a number of pairs, and the number of updates that it comes to here."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object, write_atomically

BATCH = 32  # pairs in an update
FEWEST_UPDATES = 100  # the schedule's warm-up and decay need these; they also tell how fast this machine is
UNITS = {"s": 1, "m": 60, "h": 3600}
PLANNED = "budget.json"


@dataclass(frozen=True)
class Budget:
    """Seconds, or pairs."""

    text: str
    seconds: float | None = None
    pairs: int | None = None


def parse_budget(text: str) -> Budget:
    """Parses ``30m``, ``90s``, ``2h`` or ``51200pairs``. Raises KinspanError for anything else."""
    # A comma parts thousands: 1,5h may mean one hour and a half
    match = re.fullmatch(r"(\d{1,3}(?:,\d{3})+|\d*\.?\d+)\s*(s|m|h|pairs)", text.strip(), re.ASCII)
    number = float(match[1].replace(",", "")) if match else 0
    if not match or not number:
        raise KinspanError(
            f"--budget {text}: write a time, such as 30m or 2h, or a number of pairs, such as 51200pairs"
        )
    if match[2] == "pairs":
        if number < BATCH * FEWEST_UPDATES:
            raise KinspanError(f"--budget {text}: too few to learn from: give {BATCH * FEWEST_UPDATES}pairs or more")
        return Budget(text, pairs=int(number))
    return Budget(text, seconds=number * UNITS[match[2]])


def train_for(budget: Budget, train: Callable[[int], dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Trains for the budget, and returns the summary of the run.

    What a time comes to is decided by the speed of the first FEWEST_UPDATES, which the run then goes on from, and is
    kept in ``folder``: the same budget is the same number of updates again, and a run that was killed is resumed.

    train: trains for so many updates in all, and returns the summary
    """
    path = folder / PLANNED
    plan = read_object(path, "delete it") if path.exists() else {"updates": {}, "seconds": None}
    if budget.text not in plan["updates"]:
        if budget.pairs is not None:
            plan["updates"][budget.text] = -(-budget.pairs // BATCH)
        else:
            if plan["seconds"] is None:
                plan["seconds"] = _measure(train(FEWEST_UPDATES))
            plan["updates"][budget.text] = max(FEWEST_UPDATES, round((budget.seconds or 0) / plan["seconds"]))
        write_atomically(path, json.dumps(plan, indent=1) + "\n")
    summary = train(plan["updates"][budget.text])
    if plan["seconds"] != (seconds := _measure(summary)):
        write_atomically(path, json.dumps({**plan, "seconds": seconds}, indent=1) + "\n")
    return summary


def _measure(summary: dict[str, Any]) -> float:
    """Seconds of an update, validation included."""
    return max(summary["wall_seconds"], 0.1) / summary["steps"]
