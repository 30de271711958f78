"""The stages of ``prepare`` in their order, and what is gathered between them."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import write_atomically
from data_pipeline.corpus import ShardInfo

from .cleaning import Tally
from .document import SKIPPED, UNREADABLE
from .duplicates.exact import (
    RANGE_DOCUMENTS,
    RANGE_PARAGRAPHS,
    Inputs,
    find_documents,
    find_paragraphs,
    find_shared_ids,
    save_whole,
)
from .duplicates.near import NUM_BANDS, decide, find_matches, link_signatures
from .duplicates.survivors import decide_survivors, find_at_risk, find_contested
from .encode_inputs import encode_inputs, signature_folder
from .plan import PreparePlan
from .readers import check_unchanged
from .rejection import Allowed, ReadTally, list_rejected, refuse_missing, refuse_rejected
from .spill import (
    MAX_OPENS,
    MERGE_FILES,
    Spill,
    forget,
    is_written,
    load_facts,
    make_spill_schema,
    merge_spills,
)
from .tasks import Engine, Stage
from .write import name_columns, write_shards


@dataclass(frozen=True)
class StageResults:
    """What the stages came to; ``filled`` names the optional columns that hold something."""

    inputs: Inputs
    num_paragraphs: int
    filled: set[str]
    tally: Tally
    read: ReadTally
    peak_bytes: list[int]
    shards: list[ShardInfo] = field(default_factory=list)


def encode_all(plan: PreparePlan, tokenizer: str, engine: Engine, allowed: Allowed) -> StageResults:
    """Run the first stage, and gather what was counted and rejected.

    tokenizer: as ``tokenizers.serialize_backend`` makes it
    allowed:   what may be missing

    Raises KinspanError where no document is kept, where text is missing that is not allowed to be, and where a file
    was changed meanwhile.
    """
    _clear_remains(plan)
    _forget_unread(plan, allowed)
    plan.run.mkdir(exist_ok=True)
    write_atomically(plan.tokenizer_file, tokenizer)
    plan.write()
    sizes, names = [task.size for task in plan.tasks], [task.describe() for task in plan.tasks]
    work = partial(encode_inputs, plan.file)
    engine.run(Stage("encode", "tokenising", work, sizes, names, plan.run / "encode"))
    check_unchanged(plan.files)
    encoded = _gather(plan)
    refuse_missing(plan.folder, allowed, is_finished=False)
    if not sum(encoded.inputs.counts):
        reason = _explain_nothing_kept(encoded.tally, plan.folder / "rejected.jsonl")
        raise KinspanError(f"no document was kept of {len(plan.files)} input files: {reason}")
    refuse_rejected(encoded.read, allowed.rejected, "the input", allowed.may_allow)
    return encoded


def _clear_remains(plan: PreparePlan) -> None:
    """Remove what runs of other inputs or settings have left, and what a killed task has not finished."""
    for path in plan.folder.glob("run-*"):
        if path != plan.run:
            shutil.rmtree(path)
    keys = {task.key for task in plan.tasks}
    for path in plan.encoded.glob("*"):
        if path.name.partition(".")[0] not in keys or path.suffix == ".tmp":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _forget_unread(plan: PreparePlan, allowed: Allowed) -> None:
    """Have those input tasks done again that lack text which must not be missing.

    What kept it from being read may be gone, though the file is as it was: a store that did not answer, a permission,
    a library that was not installed.
    """
    refused = {kind for kind, allowed in ((UNREADABLE, allowed.damaged), (SKIPPED, allowed.skipped)) if not allowed}
    written = [task.key for task in plan.tasks if is_written(plan.encoded, task.key)]
    again = [key for key in written if refused.intersection(load_facts(plan.encoded, key)["unread"])]
    if again and plan.run.exists():
        shutil.rmtree(plan.run)  # what later stages made of them, where an earlier command allowed it
    for key in again:
        forget(plan.encoded, key)


def _gather(plan: PreparePlan) -> StageResults:
    """Add up what the input tasks have counted, and write what they rejected to ``rejected.jsonl``, in their order."""
    keys = [task.key for task in plan.tasks]
    tally, read, counts, filled, peaks, num_paragraphs = Tally(), ReadTally(), [], set(), [], 0
    for key in keys:
        facts = load_facts(plan.encoded, key)
        tally.add(load_tally(facts["tally"]))
        read.add(ReadTally.from_json(facts["read"]))
        counts.append(facts["documents"])
        num_paragraphs += facts["paragraphs"]
        filled |= set(facts["filled"])
        peaks.append(facts["peak_bytes"])
    partial = plan.folder / "rejected.tmp"
    with partial.open("wb") as file:
        for key in keys:
            with (plan.encoded / f"{key}.rejected.jsonl").open("rb") as part:
                shutil.copyfileobj(part, file)
    partial.replace(plan.folder / "rejected.jsonl")
    return StageResults(Inputs(plan.encoded, keys, counts), num_paragraphs, filled, tally, read, peaks)


def load_tally(fields: dict[str, Any]) -> Tally:
    """Make a tally of its fields as JSON has them."""
    return Tally(Counter(fields["counts"]), Counter(fields["sources"]), fields["samples"], fields["lengths"])


def _explain_nothing_kept(tally: Tally, rejected: Path) -> str:
    reasons = {k: n for k, n in tally.counts.items() if n and k.startswith(("documents ", "records "))}
    said = ", ".join(f"{n} {name}" for name, n in reasons.items()) or "they are empty"
    if entry := next(list_rejected(rejected), None):
        said += f"; first: {entry['file']} line {entry['line']}: {entry['reason']}"
    return said


def write_all(plan: PreparePlan, engine: Engine, results: StageResults) -> None:
    """Find duplicates, write the shards with their final names, and add to ``results`` what they came to."""
    dedup_status, removed, num_ranges = _find_duplicates(plan, engine, results)
    spills = _merge_spills(plan, engine, results.inputs)
    columns = name_columns(make_spill_schema(plan.wide), results.filled)
    work = partial(write_shards, plan.file, spills, results.inputs, dedup_status, removed, num_ranges, columns)
    count = plan.buckets.count
    names = [f"bucket {number + 1} of {count}" for number in range(count)]
    total = sum(results.inputs.counts)
    engine.run(Stage("shards", "writing shards", work, [1] * count, names, plan.run / "shards", total))
    target = plan.folder / "shards"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for bucket in range(count):
        facts = json.loads((plan.bucket_folder / f"{bucket:05d}.json").read_text(encoding="utf-8"))
        results.tally.add(load_tally(facts["tally"]))
        results.peak_bytes.append(facts["peak_bytes"])
        for info in facts["shards"]:
            name = f"shards/{len(results.shards):05d}.arrow"
            _link(plan.bucket_folder / info["file"], plan.folder / name)
            results.shards.append(ShardInfo(**{**info, "file": name}))


def _merge_spills(plan: PreparePlan, engine: Engine, inputs: Inputs) -> list[Spill]:
    """Merge what the input tasks have left into so few files that each may be opened for each bucket."""
    spills = [Spill(inputs.folder, key, task) for task, key in enumerate(inputs.keys)]
    merged = 0
    while len(spills) > 1 and len(spills) * plan.buckets.count > MAX_OPENS:
        merged += 1
        groups = [spills[k : k + MERGE_FILES] for k in range(0, len(spills), MERGE_FILES)]
        name, output = f"merge-{merged}", plan.run / f"merged-{merged}"
        what = "merging what the tasks have left"
        _run(engine, plan.run, name, what, len(groups), merge_spills, groups, output, plan.wide)
        spills = [Spill(output, f"{number:05d}") for number in range(len(groups))]
    return spills


def _find_duplicates(plan: PreparePlan, engine: Engine, encoded: StageResults) -> tuple[Path, Path, int]:
    """Find out what becomes of each document and paragraph.

    Returns the file of the documents, the folder of the paragraphs that are removed, and how many files it has.
    """
    inputs, run, dedup_status = encoded.inputs, plan.run, plan.run / "dedup_status.npy"
    exact = run if plan.settings["duplicates"] != "keep" else None
    matches = run / "matches" if plan.near else None
    count = -(-sum(inputs.counts) // RANGE_DOCUMENTS)
    _run(engine, plan.run, "ids", "finding shared ids", count, find_shared_ids, inputs, run, count)
    if exact:
        what = "finding repeated documents"
        _run(engine, plan.run, "documents", what, count, find_documents, inputs, run, count)
    if matches:
        link_signatures([signature_folder(plan.encoded, key) for key in inputs.keys], run / "signatures")
        what = "finding near-duplicates"
        _run(engine, plan.run, "near", what, NUM_BANDS, find_matches, run / "signatures", matches)
    if not dedup_status.exists():
        decide(inputs, exact, matches, run, dedup_status, plan.shared)
    return _find_repeated_paragraphs(plan, engine, encoded, dedup_status) if exact else (dedup_status, run, 0)


def _run(
    engine: Engine, folder: Path, name: str, title: str, count: int, work: Callable[..., None], *arguments: Any
) -> None:
    """Run a stage of ``count`` tasks that are alike; ``work`` gets the number of the task behind its arguments."""
    names = [f"part {number + 1} of {count}" for number in range(count)]
    engine.run(Stage(name, title, partial(work, *arguments), [1] * count, names, folder / name, unit="tasks"))


def _find_repeated_paragraphs(
    plan: PreparePlan, engine: Engine, encoded: StageResults, dedup_status: Path
) -> tuple[Path, Path, int]:
    """As ``_find_duplicates``, where no paragraph is to be kept twice.

    Documents that are too short without what repeats hold no copy: where there are any, copies are chosen anew.
    """
    count = max(1, -(-encoded.num_paragraphs // RANGE_PARAGRAPHS))
    inputs, run, boilerplate = encoded.inputs, plan.run, plan.settings["boilerplate"]
    removed, risky, survivors = run / "removed", run / "at_risk.npy", run / "survivors.npy"

    def find_removed(name: str, title: str, dedup_status: Path, output: Path) -> None:
        paths = inputs, dedup_status, plan.shared, plan.buckets, output
        _run(engine, plan.run, name, title, count, find_paragraphs, *paths, count, boilerplate)

    find_removed("paragraphs", "finding repeated paragraphs", dedup_status, removed)
    at_risk = find_at_risk(inputs, dedup_status, removed)
    if not len(at_risk):
        return dedup_status, removed, count
    save_whole(risky, at_risk)
    what = "finding what short documents alone hold"
    _run(
        engine, plan.run, "contested", what, count, find_contested, inputs, dedup_status, risky, run, count, boilerplate
    )
    if not survivors.exists():
        decide_survivors(dedup_status, at_risk, run, survivors)
    find_removed("again", "choosing the copies that are kept", survivors, run / "removed-again")
    return survivors, run / "removed-again", count


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, so that nothing is lost if this is interrupted; copy it where that cannot be."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
