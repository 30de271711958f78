"""The table of all trials, and whether two runs ended alike."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.numpy import load_file

if TYPE_CHECKING:
    from .trials import Trial

UNSTATED = ("wall_seconds", "due")  # of state.json: due, where a start was stopped after the last step
# Since this process began:
TIMING = ("tokens_per_second", "data_wait_percent", "mfu", "token_imbalance", "seconds")


def logged(folder: Path) -> list[dict[str, Any]]:
    """The log without what depends on the speed, nor the splits that only some runs have."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    figures = [{k: v for k, v in line.items() if not any(name in k for name in TIMING)} for line in lines]
    return [line for line in figures if line["split"] in ("train", "validation")]


def final(folder: Path) -> Path | None:
    return max((folder / "checkpoints").glob("step-????????"), default=None)


def differences(reference: Path, folder: Path) -> list[str]:
    """How a finished run differs from the reference; empty: not at all."""
    wrong = []
    ours, theirs = logged(folder), logged(reference)
    if ours != theirs:
        pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if a != b]
        where = f"{pairs[0][0]['split']} line of step {pairs[0][0]['step']}" if pairs else "number of lines"
        wrong.append(f"the log differs, first in the {where}")
    last = final(folder), final(reference)
    if last[0] is None or last[1] is None or last[0].name != last[1].name:
        return [*wrong, f"the last checkpoint is {last[0]}, that of the reference {last[1]}"]
    weights, expected = (load_file(str(p / "weights.safetensors")) for p in last if p)
    bad = [k for k in expected if k not in weights or weights[k].tobytes() != expected[k].tobytes()]
    if bad or weights.keys() != expected.keys():
        wrong.append(f"{len(bad)} of {len(expected)} weights differ, {bad[:1]}")
    states = [json.loads((p / "state.json").read_text()) for p in last if p]
    wrong += [f"state.json differs in {k}" for k in states[1] if k not in UNSTATED
              and states[0].get(k) != states[1][k]]  # fmt: skip
    return wrong


def make_table(trials: Sequence["Trial"]) -> str:
    """Returns the kills by kind, the trials by part, and what failed."""
    lines = []
    struck = [start for trial in trials if trial.what == "kills" for start in trial.starts if start.struck]
    for kind, count in Counter(start.fault.kind for start in struck if start.fault).most_common():
        inside = sum(start.inside for start in struck if start.fault and start.fault.kind == kind)
        lines.append(f"{kind:<32}{count:>7} kills, {inside} inside a checkpoint")
    for name, count in Counter(trial.what for trial in trials).items():
        lines.append(f"{name:<32}{count:>7} trials, {sum(bool(t.wrong) for t in trials if t.what == name)} failed")
    starts = [start for trial in trials for start in trial.starts]
    hung, orphans = sum(start.hung for start in starts), sum(start.orphans for start in starts)
    lines.append(f"{len(starts)} starts; hung: {hung}; processes left over: {orphans}")
    for trial in trials:
        lines += [f"FAILED {trial.what} {trial.name}: {line}" for line in trial.wrong]
    return "\n".join(lines)
