"""Runs the rows of the study in order, and computes its hours from a measured pilot and from the rows that have run."""

import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.evidence.results import Store
from benchmarks.evidence.work import describe_machine
from data_pipeline.errors import KinspanError
from finetune.ranking.score import load_classifier
from finetune.transfer.matrix import Target
from pretrain.runtime.lock import lock_folder
from pretrain.runtime.stop import Stopped, StopRequest, listen_for_stop

from .materials import SIMILARITY, Places, compare_with_targets, settle_materials
from .recipe import FUSION, MULTI, Recipe, Row
from .work import run_row, train

PILOT = "pilot"
WAIT_SECONDS = 5.0  # for what another command is at
FEW, MANY = 4, 12  # updates of a training: what they differ by is timed


@dataclass(frozen=True)
class Study:
    """What a command works with. max_hours: of this command; None: until all has run."""

    recipe: Recipe
    store: Store
    places: Places
    max_hours: float | None = None

    def list_left(self) -> list[tuple[Row, int]]:
        """The rows and seeds that have not run, in order."""
        return [(row, seed) for row, seed in self.recipe.list_jobs() if self.store.find_missing(row, (seed,))]


def run_study(study: Study, write_page: Callable[[], None], say: Callable[[str], None]) -> bool:
    """Runs what is left, and returns whether all of it has run; the page is written where the command ends.

    A row that another command is running is left to it, and run here after all where that command ends early. Raises
    Stopped, with a checkpoint, at a signal or after ``max_hours``, and KinspanError where a row fails.
    """
    torch.set_num_threads(study.recipe.content["threads"])
    with listen_for_stop(study.max_hours) as request:
        targets: list[Target] = []
        with _take_turns(study.places.work / "materials", request):
            targets = settle_materials(study.recipe, study.places, study.store)
        try:
            while left := study.list_left():
                for row, seed in left:
                    if request.wanted():
                        return False
                    _run_unless_taken(study, row, seed, targets, say)
                if study.list_left() == left:  # another command is at all of them
                    time.sleep(WAIT_SECONDS)
            if study.store.read(SIMILARITY) is None:
                study.store.write(SIMILARITY, compare_with_targets(study.recipe, study.places, targets))
        finally:
            write_page()
    return True


@contextmanager
def _take_turns(folder: Path, request: StopRequest) -> Iterator[None]:
    """Holds the folder's lock while the block runs; waits where another command holds it. Raises Stopped."""
    while True:
        with ExitStack() as stack:
            try:
                stack.enter_context(lock_folder(folder))
            except KinspanError:
                if request.wanted():
                    raise Stopped from None
                time.sleep(WAIT_SECONDS)
                continue
            yield
            return


def _run_unless_taken(study: Study, row: Row, seed: int, targets: list[Target], say: Callable[[str], None]) -> None:
    """Runs a row and writes its line, unless another command runs it, or has just run it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_folder(study.places.work / f"{row.start}-{row.arm}-{seed}.running"))
        except KinspanError:
            return
        if not study.store.find_missing(row, (seed,)):
            return
        singles = _list_singles(study.recipe, row) if row.arm == FUSION else []
        if any(study.store.find_missing(single, (seed,)) for single in singles):
            return  # another command is at it
        say(f"{time.strftime('%H:%M:%S')}  {row.name}, seed {seed}")
        line = run_row(row, seed, singles, study.places, targets, study.recipe.content["max_length"])
        study.store.add(row, {"seed": seed, **line})


def _list_singles(recipe: Recipe, row: Row) -> list[Row]:
    return [one for one in recipe.list_rows(row.start) if one.arm in recipe.forums]


def measure_pilot(study: Study) -> None:
    """Times some updates of each way of training, and the ranking of all targets, by each start; writes pilot.json."""
    torch.set_num_threads(study.recipe.content["threads"])
    places = replace(study.places, work=study.places.work / "pilot")
    shutil.rmtree(places.work / "trained", ignore_errors=True)
    with listen_for_stop(study.max_hours):
        targets = settle_materials(study.recipe, study.places, study.store)
        corpora = places.work / "corpora"
        if not corpora.exists():
            places.work.mkdir(parents=True, exist_ok=True)
            corpora.symlink_to((study.places.work / "corpora").absolute())
        found = study.store.read(PILOT) or {"starts": {}}
        for start in study.recipe.content["starts"]:
            if start not in found["starts"]:
                found["starts"][start] = _measure_start(study.recipe, start, places, targets)
                study.store.write(PILOT, {**describe_machine(), "starts": found["starts"]})
    shutil.rmtree(places.work)


def _measure_start(recipe: Recipe, start: str, places: Places, targets: list[Target]) -> dict[str, float]:
    """Processor seconds of an update of each arm, and of ranking all targets."""
    rows = {row.arm: row for row in recipe.list_rows(start)}
    single = rows[recipe.forums[0]]
    adapters = [train(rows[forum], 1, [], places, max_steps=1) for forum in recipe.forums]
    seconds = {}
    ways: list[tuple[str, Row, list[Path]]] = [
        ("single", single, []),
        (MULTI, rows[MULTI], []),
        (FUSION, rows[FUSION], adapters),
    ]
    for name, row, of in ways:
        spent = []
        for seed, steps in ((2, FEW), (3, MANY)):
            began = time.process_time()
            folder = train(row, seed, of, places, max_steps=steps)
            spent.append(time.process_time() - began)
        seconds[name] = round((spent[1] - spent[0]) / (MANY - FEW), 4)
        seconds[f"{name}_around"] = round(max(spent[0] - FEW * seconds[name], 0.0), 1)
    length = recipe.content["max_length"]
    few = [targets[0], targets[-1]]
    began = time.process_time()
    for target in few:
        load_classifier(str(folder), length)[0](target.data)
    tokens = sum(_count_tokens(target, length) for target in targets)
    seconds["ranking"] = round((time.process_time() - began) * tokens / sum(_count_tokens(t, length) for t in few), 1)
    return seconds


def _count_tokens(target: Target, length: int) -> int:
    """About how many tokens ranking a target takes: by a word for a token, cut at the length."""
    data, total = target.data, 0
    for question, rows in zip(data.questions, data.rows(), strict=True):
        asked = len(question.split())
        total += sum(min(length, asked + len(text.split())) for text in data.answers[rows].to_pylist())
    return total


def estimate_seconds(row: Row, pilot: dict[str, Any], store: Store) -> float:
    """Processor seconds of a seed of a row: the mean of those that have run, or what the pilot says of its start; NaN
    where that has not been measured."""
    if lines := list(store.read_lines(row).values()):
        return float(sum(line["processor_seconds"] for line in lines) / len(lines))
    known = pilot["starts"].get(row.start)
    if known is None:
        return math.nan
    if row.settings is None:
        return float(known["ranking"])
    kind = row.arm if row.arm in (MULTI, FUSION) else "single"
    return float(known["ranking"] + known[f"{kind}_around"] + known[kind] * row.settings["max_steps"])


def format_hours(recipe: Recipe, store: Store) -> str:
    """The table that ``--dry_run`` prints. Raises KinspanError without a pilot."""
    pilot = store.read(PILOT)
    if pilot is None:
        raise KinspanError(f"{store.folder}/{PILOT}.json is missing: --pilot measures it, in minutes")
    lines = [f"{'start, seed':<14}{'rows':>6}{'have run':>10}{'hours of one core':>20}{'left':>8}"]
    total = left = 0.0
    for start, seed in recipe.content["order"]:
        rows = [row for row, of in recipe.list_jobs() if (row.start, of) == (start, seed)]
        costs = {row.name: estimate_seconds(row, pilot, store) / 3600 for row in rows}
        missing = [row for row in rows if store.find_missing(row, (seed,))]
        hours, more = sum(costs.values()), sum(costs[row.name] for row in missing)
        begin = f"{f'{start}, {seed}':<14}{len(rows):>6}{len(rows) - len(missing):>10}"
        if math.isnan(hours):
            lines.append(begin + f"{'not measured':>20}")
            continue
        lines.append(begin + f"{hours:>20.2f}{more:>8.2f}")
        total, left = total + hours, left + more
    unknown = any(math.isnan(estimate_seconds(row, pilot, store)) for row, _ in recipe.list_jobs())
    lines.append(
        f"{total:.1f} hours of one core, {total / 2:.1f} of two with two commands at once; left are {left:.1f}, "
        f"{left / 2:.1f} of two{', without what was not measured' if unknown else ''}"
    )
    return "\n".join(lines)
