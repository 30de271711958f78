"""Parses how long to pre-train; without torch."""

import re
from dataclasses import dataclass

from data_pipeline.core.errors import KinspanError

BATCH = 32  # pairs in an update
MIN_UPDATES = 10
UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Budget:
    """How long to pre-train: seconds, or pairs."""

    text: str
    seconds: float | None = None
    pairs: int | None = None


def parse_budget(text: str) -> Budget:
    """Parses ``30m``, ``90s``, ``2h`` or ``51200pairs``. Raises KinspanError for anything else."""
    # A comma may only separate thousands: 1,5h might mean one and a half hours
    match = re.fullmatch(r"(\d{1,3}(?:,\d{3})+|\d*\.?\d+)\s*(s|m|h|pairs)", text.strip(), re.ASCII)
    number = float(match[1].replace(",", "")) if match else 0
    if not match or not number:
        raise KinspanError(f"--budget {text}: write a time, such as 30m or 2h, or a number such as 51200pairs")
    if match[2] != "pairs":
        return Budget(text, seconds=number * UNITS[match[2]])
    if number < BATCH * MIN_UPDATES:
        raise KinspanError(f"--budget {text}: give {BATCH * MIN_UPDATES}pairs or more")
    return Budget(text, pairs=int(number))
