"""The table at the end, and all of it as one JSON file. Standard library only, as the runner."""

import json
from collections.abc import Iterable
from pathlib import Path
from textwrap import wrap
from typing import Any

from .runner import Outcome

PRODUCT = "bf16 product, TFLOP/s"  # the figure of the machine that a model's is divided by
MODEL_FLOPS, UTILISATION = "TFLOP/s", "% of the measured product"
DATA_SHEET, OF_DATA_SHEET = 989.0, "% of the data sheet"  # TFLOP/s in bf16, dense, of an H100 or H200
WIDTH = 150


def write_report(folder: Path, outcomes: list[Outcome], seconds: float) -> str:
    """Writes ``summary.json`` and ``table.txt``, each row with the utilisation that it comes to; returns the table."""
    results = folder / "results.jsonl"
    lines = map(json.loads, results.read_text(encoding="utf-8").splitlines()) if results.exists() else []
    rows = [line for line in lines if line["type"] == "row"]
    product = next((row["figures"][PRODUCT] for row in rows if PRODUCT in row["figures"]), None)
    for row in rows:
        if product and (flops := row["figures"].get(MODEL_FLOPS)):
            row["figures"] |= {UTILISATION: 100 * flops / product, OF_DATA_SHEET: 100 * flops / DATA_SHEET}
    summary = {"seconds": seconds, "checks": [vars(outcome) for outcome in outcomes], "rows": rows}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    table = "\n".join(_format_lines(outcomes, rows))
    (folder / "table.txt").write_text(table + "\n", encoding="utf-8")
    return table


def _format_lines(outcomes: list[Outcome], rows: list[dict[str, Any]]) -> Iterable[str]:
    for outcome in outcomes:
        yield str(outcome)
        for row in rows:
            if row["check"] == outcome.check:
                holds = {None: "", True: " [holds]", False: " [DOES NOT HOLD]"}[row["holds"]]
                text = f"{row['what']}{holds}: " + ", ".join(map(_format, *zip(*row["figures"].items(), strict=True)))
                yield from wrap(text, WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)


def _format(name: str, value: Any) -> str:
    if isinstance(value, float):
        value = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{name} {value}".strip()
