"""The stages of ``prepare`` in their order, and what is gathered between them."""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline import tokenizers
from data_pipeline.corpus import ShardInfo
from data_pipeline.errors import KinspanError
from data_pipeline.files import write_atomically
from data_pipeline.sampling.pairs import Objective

from .cleaning import Rules, Tally
from .duplicates.exact import (
    RANGE_DOCUMENTS,
    RANGE_PARAGRAPHS,
    Inputs,
    find_documents,
    find_paragraphs,
    find_shared_ids,
)
from .duplicates.near import NUM_BANDS, decide, find_matches, link_signatures
from .duplicates.survivors import decide_survivors, find_at_risk, find_contested
from .encode_inputs import EncodeInputs, signature_folder
from .inputs import InputTask, count_buckets, cut_tasks, estimate_total, write_tasks
from .lengths import Lengths
from .readers import SKIPPED, UNREADABLE, InputFile, check_unchanged
from .rejection import Allowed, ReadTally, refuse_rejected
from .spill import (
    MAX_OPENS,
    MERGE_FILES,
    Buckets,
    Spill,
    forget,
    is_written,
    load_facts,
    make_spill_schema,
    merge_spills,
)
from .tasks import Engine, Stage
from .write import WriteShards, name_columns

OUTPUT_VERSION = 3  # of what the first stage leaves; another version is not taken up


@dataclass(frozen=True)
class PreparePlan:
    """What is to be done, and where.

    folder:        what is done so far
    settings:      those of the manifest
    described:     the tokenizer, as ``tokenizers.describe_tokenizer`` does
    decontaminate: sentences of test sets
    """

    folder: Path
    files: list[InputFile]
    settings: dict[str, Any]
    rules: Rules
    tokenizer: Any
    described: dict[str, Any]
    objectives: dict[str, Objective]
    decontaminate: list[str]

    @property
    def wide(self) -> bool:
        """Whether token ids need more than 16 bits."""
        return len(self.tokenizer) > 1 << 16

    @property
    def near(self) -> bool:
        return self.settings["duplicates"] == "near"

    @cached_property
    def buckets(self) -> Buckets:
        share = self.rules.validation_share
        return count_buckets(estimate_total(self.files), self.settings["shard_tokens"], share)

    @cached_property
    def tasks(self) -> list[InputTask]:
        """The input tasks. Their keys depend on what decides their output, and on nothing else."""
        own = {k: v for k, v in self.settings.items() if k not in ("shard_tokens", "duplicates", "boilerplate")}
        decides = [OUTPUT_VERSION, own, self.described["fingerprint"], self.wide, self.near]
        return cut_tasks(self.files, json.dumps(decides, sort_keys=True))

    @property
    def encoded(self) -> Path:
        """The folder of what the first stage leaves."""
        return self.folder / "encoded"

    @cached_property
    def run(self) -> Path:
        """The folder of everything else, which is of use to a run of the same inputs and settings alone."""
        text = json.dumps([[task.key for task in self.tasks], self.settings, list(self.objectives)], sort_keys=True)
        return self.folder / f"run-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def shared(self) -> Path:
        """The file of which documents share their id with many."""
        return self.run / "shared.npy"

    @property
    def tokenizer_file(self) -> Path:
        return self.run / "tokenizer.json"

    def make_stage(self, name: str, title: str, count: int, work: Callable[..., None], *arguments: Any) -> Stage:
        """Make a stage of ``count`` tasks that are alike: ``work`` with these arguments, and the number of the task."""
        names = [f"part {number + 1} of {count}" for number in range(count)]
        return Stage(name, title, partial(work, *arguments), [1] * count, names, self.run / name, unit="tasks")


@dataclass(frozen=True)
class EncodedInputs:
    """What the first stage came to; ``filled`` names the optional columns that hold something."""

    inputs: Inputs
    num_paragraphs: int
    filled: set[str]
    tally: Tally
    read: ReadTally
    peak_bytes: list[int]


@dataclass(frozen=True)
class Written:
    """What all stages came to."""

    tally: Tally
    read: ReadTally
    peak_bytes: list[int]
    lengths: Lengths = field(default_factory=Lengths)
    shards: list[ShardInfo] = field(default_factory=list)


def encode_all(plan: PreparePlan, engine: Engine, allowed: Allowed) -> EncodedInputs:
    """Run the first stage, and gather what was counted and rejected.

    allowed: what may be missing

    Raises KinspanError where no document is kept, where text is missing that is not allowed to be, and where a file
    was changed meanwhile.
    """
    _clear_remains(plan)
    _forget_unread(plan, allowed)
    plan.run.mkdir(exist_ok=True)
    write_atomically(plan.tokenizer_file, tokenizers.serialize_backend(plan.tokenizer))
    write_tasks(plan.tasks, plan.run / "tasks.pickle")
    benchmark = plan.run / "benchmark.txt" if plan.decontaminate else None
    if benchmark:
        write_atomically(benchmark, "\n".join(" ".join(sentence.split()) for sentence in plan.decontaminate))
    name = tokenizers.shorten_name(plan.tokenizer.name_or_path)
    work = EncodeInputs(
        plan.run / "tasks.pickle",
        plan.encoded,
        plan.tokenizer_file,
        name,
        plan.rules,
        plan.wide,
        benchmark,
        plan.near,
    )
    sizes, names = [task.size for task in plan.tasks], [task.describe() for task in plan.tasks]
    engine.run(Stage("encode", "tokenising", work, sizes, names, plan.run / "encode"))
    check_unchanged(plan.files)
    encoded = _gather(plan)
    _refuse_missing(plan, allowed)
    if not sum(encoded.inputs.counts):
        reason = _explain_nothing_kept(encoded.tally, plan.folder / "rejected.jsonl")
        raise KinspanError(f"no document was kept of {len(plan.files)} input files: {reason}")
    refuse_rejected(encoded.read, allowed.rejected, "--input")
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


def _gather(plan: PreparePlan) -> EncodedInputs:
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
    return EncodedInputs(Inputs(plan.encoded, keys, counts), num_paragraphs, filled, tally, read, peaks)


def load_tally(fields: dict[str, Any]) -> Tally:
    """Make a tally of its fields as JSON has them."""
    sources = {name: Counter(counts) for name, counts in fields["sources"].items()}
    return Tally(Counter(fields["counts"]), sources, fields["samples"])


def _list_rejected(path: Path) -> Iterator[dict]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _refuse_missing(plan: PreparePlan, allowed: Allowed) -> None:
    """Raise KinspanError for input that could not be read to its end, or is of no known format, if not allowed."""
    found: dict[str, list[dict]] = {UNREADABLE: [], SKIPPED: []}
    for entry in _list_rejected(plan.folder / "rejected.jsonl"):
        for beginning, entries in found.items():
            if entry["reason"].startswith(beginning):
                entries.append(entry)
    if found[UNREADABLE] and not allowed.damaged:
        first = found[UNREADABLE][0]
        raise KinspanError(
            f"--input {first['file']}, record {first['line']}: {first['reason']}{_count_others(found[UNREADABLE])}; "
            "copy or fetch the file again, or give --allow_damaged to go without the rest of it"
        )
    if found[SKIPPED] and not allowed.skipped:
        first = found[SKIPPED][0]
        raise KinspanError(f"--input {first['file']}{_count_others(found[SKIPPED])}: {first['reason']}")


def _count_others(entries: list[dict]) -> str:
    return f" (and {len(entries) - 1} more files)" if len(entries) > 1 else ""


def _explain_nothing_kept(tally: Tally, rejected: Path) -> str:
    reasons = {k: n for k, n in tally.counts.items() if n and k.startswith(("documents ", "records "))}
    said = ", ".join(f"{n} {name}" for name, n in reasons.items()) or "they are empty"
    if entry := next(_list_rejected(rejected), None):
        said += f"; first: {entry['file']} line {entry['line']}: {entry['reason']}"
    return said


def write_all(plan: PreparePlan, engine: Engine, encoded: EncodedInputs) -> Written:
    """Find duplicates, write the shards, and put them into ``plan.folder / "shards"`` under their final names."""
    fate, removed, num_ranges = _find_duplicates(plan, engine, encoded)
    work = WriteShards(
        _merge_spills(plan, engine, encoded.inputs),
        encoded.inputs,
        plan.shared,
        fate,
        removed,
        num_ranges,
        plan.buckets,
        plan.run / "buckets",
        plan.wide,
        name_columns(make_spill_schema(plan.wide), encoded.filled),
        plan.settings["shard_tokens"],
        plan.objectives,
        plan.tokenizer_file,
        plan.tokenizer.unk_token_id,
    )
    count = plan.buckets.count
    names = [f"bucket {number + 1} of {count}" for number in range(count)]
    total = sum(encoded.inputs.counts)
    engine.run(Stage("shards", "writing shards", work, [1] * count, names, plan.run / "shards", total))
    written = Written(encoded.tally, encoded.read, encoded.peak_bytes)
    target = plan.folder / "shards"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for bucket in range(count):
        facts = json.loads((work.output / f"{bucket:05d}.json").read_text(encoding="utf-8"))
        written.tally.add(load_tally(facts["tally"]))
        written.lengths.add(facts["lengths"])
        written.peak_bytes.append(facts["peak_bytes"])
        for info in facts["shards"]:
            name = f"shards/{len(written.shards):05d}.arrow"
            _link(work.output / info["file"], plan.folder / name)
            written.shards.append(ShardInfo(**{**info, "file": name}))
    return written


def _merge_spills(plan: PreparePlan, engine: Engine, inputs: Inputs) -> list[Spill]:
    """Merge what the input tasks have left into so few files that each may be opened for each bucket."""
    spills = [Spill(inputs.folder, key, task) for task, key in enumerate(inputs.keys)]
    merged = 0
    while len(spills) > 1 and len(spills) * plan.buckets.count > MAX_OPENS:
        merged += 1
        groups = [spills[k : k + MERGE_FILES] for k in range(0, len(spills), MERGE_FILES)]
        name, output = f"merge-{merged}", plan.run / f"merged-{merged}"
        what = "merging what the tasks have left"
        engine.run(plan.make_stage(name, what, len(groups), merge_spills, groups, output, plan.wide))
        spills = [Spill(output, f"{number:05d}") for number in range(len(groups))]
    return spills


def _find_duplicates(plan: PreparePlan, engine: Engine, encoded: EncodedInputs) -> tuple[Path, Path, int]:
    """Find out what becomes of each document and paragraph.

    Returns the file of the documents, the folder of the paragraphs that are removed, and how many files it has.
    """
    inputs, run, fate = encoded.inputs, plan.run, plan.run / "fate.npy"
    exact = run if plan.settings["duplicates"] != "keep" else None
    matches = run / "matches" if plan.near else None
    count = -(-sum(inputs.counts) // RANGE_DOCUMENTS)
    engine.run(plan.make_stage("ids", "finding shared ids", count, find_shared_ids, inputs, run, count))
    if exact:
        what = "finding repeated documents"
        engine.run(plan.make_stage("documents", what, count, find_documents, inputs, run, count))
    if matches:
        link_signatures([signature_folder(plan.encoded, key) for key in inputs.keys], run / "signatures")
        what = "finding near-duplicates"
        engine.run(plan.make_stage("near", what, NUM_BANDS, find_matches, run / "signatures", matches))
    paths = exact, matches, run, fate, plan.shared
    engine.run(plan.make_stage("decide", "deciding what is kept", 1, decide, inputs, *paths))
    return _find_repeated_paragraphs(plan, engine, encoded, fate) if exact else (fate, run, 0)


def _find_repeated_paragraphs(
    plan: PreparePlan, engine: Engine, encoded: EncodedInputs, fate: Path
) -> tuple[Path, Path, int]:
    """As ``_find_duplicates``, where no paragraph is to be kept twice.

    Documents that are too short without what repeats hold no copy: where there are any, copies are chosen anew.
    """
    count = max(1, -(-encoded.num_paragraphs // RANGE_PARAGRAPHS))
    inputs, run, boilerplate = encoded.inputs, plan.run, plan.settings["boilerplate"]
    removed, at_risk, survivors = run / "removed", run / "at_risk.npy", run / "survivors.npy"

    def find_removed(name: str, title: str, fate: Path, output: Path) -> None:
        paths = inputs, fate, plan.shared, plan.buckets, output
        engine.run(plan.make_stage(name, title, count, find_paragraphs, *paths, count, boilerplate))

    find_removed("paragraphs", "finding repeated paragraphs", fate, removed)
    what = "finding documents that are too short without them"
    engine.run(plan.make_stage("risk", what, 1, find_at_risk, inputs, fate, removed, at_risk))
    if not len(np.load(at_risk, mmap_mode="r")):
        return fate, removed, count
    arguments = inputs, fate, at_risk, run, count, boilerplate
    what = "finding what these alone hold"
    engine.run(plan.make_stage("contested", what, count, find_contested, *arguments))
    what = "deciding which of these are kept"
    engine.run(plan.make_stage("survivors", what, 1, decide_survivors, fate, at_risk, run, survivors))
    find_removed("again", "choosing the copies that are kept", survivors, run / "removed-again")
    return survivors, run / "removed-again", count


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, so that nothing is lost if this is interrupted; copy it where that cannot be."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
