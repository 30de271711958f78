"""What trials leave: lines of JSON as they end, and the table of all of them; whether two runs ended alike."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

UNSTATED = ("wall_seconds", "due")  # of state.json: due, where a start was stopped after the last step
# Since this process began:
TIMING = ("tokens_per_second", "data_wait_percent", "mfu", "token_imbalance", "seconds", "padding_percent")


def append(path: Path, line: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Complete lines: the last one may be half."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def logged(folder: Path) -> list[dict[str, Any]]:
    """The log without what depends on the speed, nor the splits that only some runs have."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    figures = [{k: v for k, v in line.items() if not any(name in k for name in TIMING)} for line in lines]
    return [line for line in figures if line["split"] in ("train", "validation")]


def final(folder: Path) -> Path | None:
    found = sorted((folder / "checkpoints").glob("step-????????"))
    return found[-1] if found else None


def differences(reference: Path, folder: Path, tolerance: float = 0.0) -> list[str]:
    """How a finished run differs from the reference; empty: not at all.

    tolerance: of the losses, where the number of ranks changed on the way: weights are then not compared
    """
    wrong = []
    ours, theirs = logged(folder), logged(reference)
    if tolerance:
        losses = [[[v for k, v in line.items() if "loss" in k] for line in lines] for lines in (ours, theirs)]
        if [len(x) for x in losses[0]] != [len(x) for x in losses[1]]:
            wrong.append("the log has other lines")
        elif not np.allclose(np.concatenate(losses[0]), np.concatenate(losses[1]), rtol=0, atol=tolerance):
            wrong.append(f"losses differ by more than {tolerance:g}")
        return wrong
    if ours != theirs:
        pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if a != b]
        where = f"{pairs[0][0]['split']} line of step {pairs[0][0]['step']}" if pairs else "number of lines"
        wrong.append(f"the log differs, first in the {where}")
    mine, other = final(folder), final(reference)
    if mine is None or other is None or mine.name != other.name:
        return [*wrong, f"the last checkpoint is {mine and mine.name}, not {other and other.name}"]
    one, two = (load_file(str(p / "weights.safetensors")) for p in (mine, other))
    bad = [k for k in two if k not in one or one[k].tobytes() != two[k].tobytes()]
    if bad or one.keys() != two.keys():
        wrong.append(f"{len(bad)} of {len(two)} weights differ, {bad[:1]}")
    states = [json.loads((p / "state.json").read_text()) for p in (mine, other)]
    wrong += [f"state.json differs in {k}" for k in states[1] if k not in UNSTATED
              and states[0].get(k) != states[1][k]]  # fmt: skip
    return wrong


def kills_of(trials: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [start for trial in trials if trial["what"] == "kills" for start in trial["starts"] if start["struck"]]


def text(trials: Sequence[dict[str, Any]]) -> str:
    """The table of everything so far."""
    struck, starts = kills_of(trials), [s for t in trials for s in t["starts"]]
    lines = []
    if struck:
        kinds = Counter(s["fault"]["kind"] for s in struck)
        inside = Counter(s["fault"]["kind"] for s in struck if s["inside"])
        lines.append(f"{'kind of kill':<32}{'kills':>7}{'inside':>8}{'lost':>6}  statuses")
        for kind, count in kinds.most_common():
            mine = [s for s in struck if s["fault"]["kind"] == kind]
            statuses = Counter(",".join(map(str, s["statuses"])) for s in mine)
            said = "  ".join(f"{status} x{n}" for status, n in statuses.most_common(6))
            lost = max(s.get("lost", 0) for s in mine)
            lines.append(f"{kind:<32}{count:>7}{inside[kind]:>8}{lost:>6}  {said}")
        lines.append(f"{'all':<32}{len(struck):>7}{inside.total():>8}{max(s.get('lost', 0) for s in struck):>6}")
        lines.append("(inside: while a checkpoint was being written; lost: steps, at most)\n")
    what = Counter(t["what"] for t in trials)
    failed = Counter(t["what"] for t in trials if not t["ok"])
    lines.append(f"{'trials':<32}{'ended':>7}{'failed':>8}")
    lines += [f"{name:<32}{count:>7}{failed[name]:>8}" for name, count in what.items()]
    resumed = [s["first_step"] for s in starts if s["resumed_at"] and s["first_step"]]
    lines.append(
        f"\n{len(starts)} starts, of which {len(resumed)} resumed and trained; hung: {sum(s['hung'] for s in starts)}; "
        f"processes left over: {sum(s['orphans'] for s in starts)}; with a traceback: "
        f"{sum(s['traceback'] for s in starts)}"
    )
    if resumed:
        lines.append(f"from the command to the first line of the log once resumed: {statistics.median(resumed):.1f} s")
    for trial in trials:
        lines += [f"FAILED {trial['number']} {trial['what']} {trial['name']}: {line}" for line in trial["wrong"]]
    return "\n".join(lines)
