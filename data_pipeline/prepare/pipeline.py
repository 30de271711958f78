"""Prepares a corpus: documents are read, cleaned, split, tokenised, freed of duplicates, shuffled and written.

The steps are stages of independent tasks (``tasks.py``), which run on this machine, on Slurm or on Ray:

1. Each input task encodes its files, or its part of a file (``encode.py``).
2. Ranges of hashes are searched for documents and paragraphs that occur more than once (``duplicates.py``).
3. Each bucket, a range of documents, is freed of them, shuffled in memory and written as shards (``write.py``).

The manifest is written last. Until then, finished work lies in the folder ``partial``, and the same command goes on
from there. The result depends on the inputs and the settings alone.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from data_pipeline import tokenizers
from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import lock_file, write_atomically
from data_pipeline.corpus import Corpus, Manifest, ShardInfo, fingerprint_corpus
from data_pipeline.sampling.pairs import Objective

from .benchmark import Benchmark
from .cleaning import Rules, Tally, check_rules
from .duplicates import (
    NUM_BANDS,
    RANGE_DOCUMENTS,
    RANGE_PARAGRAPHS,
    decide_documents,
    find_documents,
    find_matches,
    find_paragraphs,
    link_signatures,
)
from .encode import encode_inputs
from .plan import PreparePlan
from .read import MAX_REJECTED, ReadTally, refuse_rejected
from .readers import PYTHON_DOCS, InputFile, InputFiles, check_unchanged, find_input_files, refuse_own_output
from .spill import Spills
from .summary import format_summary
from .tasks import Engine, Stage
from .write import MAX_SHARD_TOKENS, SHARD_TOKENS, write_manifest, write_shards

logger = logging.getLogger(__name__)

BOILERPLATE = 10  # documents with a paragraph from which on it is removed from all of them
LICENCES = {PYTHON_DOCS: ("PSF-2.0, and that of each installed package", "docstrings of Python and its packages")}
CORPUS_PARTS = ("shards", "tokenizer", "rejected.jsonl", "request.json", "summary.txt")


@dataclass(frozen=True)
class Prepared:
    """Result of ``prepare``. If the folder already held this corpus, it is ``reused``, and the tallies are empty."""

    manifest: Manifest
    tally: Tally
    read: ReadTally
    seconds: float
    reused: bool = False


def prepare(
    inputs: list[str],
    tokenizer_name: str,
    output: str | Path,
    objectives: dict[str, Objective],
    rules: Rules | None = None,
    num_workers: int = 1,
    shard_tokens: int = SHARD_TOKENS,
    licence: str = "",
    quiet: bool = False,
    max_rejected: float = MAX_REJECTED,
    duplicates: str = "exact",
    boilerplate: int = BOILERPLATE,
    decontaminate: list[str] | None = None,
    executor: str = "local",
    sbatch: list[str] | None = None,
) -> Prepared:
    """Writes a corpus folder; the arguments are flags of ``launch/prepare.py``.

    A complete corpus of the same inputs and settings is left as it is. The manifest counts the usable anchors of each
    of the ``objectives``. Raises KinspanError where an input or the tokenizer cannot be used, a task fails, or no
    document is kept.
    """
    began, folder, rules = time.monotonic(), Path(output).absolute(), rules or Rules()
    if shard_tokens > MAX_SHARD_TOKENS:
        raise KinspanError(f"--shard_tokens {shard_tokens}: at most {MAX_SHARD_TOKENS}, since offsets have 32 bits")
    if boilerplate == 1:
        raise KinspanError("--boilerplate 1: must be 2 or more, or 0 to keep such paragraphs")
    check_rules(rules)
    refuse_own_output(inputs, folder)
    engine = Engine(executor, num_workers, sbatch or [], quiet)
    input_files = find_input_files(inputs)
    tokenizer = tokenizers.load_tokenizer(tokenizer_name)
    described = tokenizers.identify_tokenizer(tokenizer)
    settings = {**asdict(rules), "shard_tokens": shard_tokens, "duplicates": duplicates, "boilerplate": boilerplate}
    if decontaminate:
        settings["decontaminate"] = Benchmark(decontaminate).fingerprint()
    request = {
        "inputs": _identify_inputs(input_files.files),
        "settings": settings,
        "tokenizer": described["fingerprint"],
    }
    if finished := _find_finished(folder, request, max_rejected):
        stated = {source["licence"] for source in finished.sources if source["name"] not in LICENCES}
        if licence and stated - {licence}:
            raise KinspanError(f"--licence {licence}: --output_dir {folder} holds this corpus with {', '.join(stated)}")
        shutil.rmtree(folder / "partial", ignore_errors=True)  # of a run that was killed at its very end
        return Prepared(finished, Tally(), ReadTally(), time.monotonic() - began, reused=True)
    read = ReadTally()
    for file in input_files.files:
        read.count(file.size)
    read.reject_unknown(input_files)
    refuse_rejected(read, max_rejected)
    work = folder / "partial"
    try:
        _make_partial_folder(folder, work)
        in_use = f"--output_dir {folder}: another run is writing there: wait for its end, or choose another folder"
        with lock_file(work / "lock", in_use), engine:
            name, unknown = tokenizers.shorten_name(tokenizer.name_or_path), tokenizer.unk_token_id
            known = name, described["fingerprint"], len(tokenizer), unknown
            plan = PreparePlan(work, input_files.files, settings, rules, *known, objectives, decontaminate or [])
            encoded = _encode(plan, tokenizers.serialize_backend(tokenizer), engine, input_files, max_rejected)
            dedup_status, removed, num_ranges = _find_duplicates(plan, engine, encoded)
            shards = _write_shards(plan, engine, encoded, dedup_status, removed, num_ranges)
            manifest = _make_manifest(shards, described, settings, encoded.tally, licence)
            write_atomically(work / "request.json", json.dumps({**request, "read": asdict(encoded.read)}))
            write_atomically(work / "summary.txt", format_summary(encoded.tally, encoded.read, manifest))
            tokenizer.save_pretrained(str(work / "tokenizer"))
            _move_parts(work, folder)
            write_manifest(manifest, folder)
    except OSError as error:
        raise KinspanError(f"--output_dir {folder} cannot be written: {quote_error(error)}") from error
    finally:
        if (folder / "manifest.json").exists():
            shutil.rmtree(work, ignore_errors=True)
    return Prepared(manifest, encoded.tally, encoded.read, time.monotonic() - began)


# Before any work ------------------------------------------------------------------------------------------


def _identify_inputs(files: list[InputFile]) -> list[list]:
    """Identifies the files without reading them."""
    return [[str(Path(f.name).resolve()) if Path(f.name).exists() else f.name, f.size, f.modified] for f in files]


def _find_finished(folder: Path, request: dict, max_rejected: float) -> Manifest | None:
    """Returns the manifest of a complete corpus of this request; None where there is none, or a damaged one."""
    if not (folder / "manifest.json").exists():
        return None
    try:
        made = json.loads((folder / "request.json").read_text())
        read = ReadTally(**made.pop("read"))
    except (OSError, ValueError, TypeError, KeyError):
        made = None
    if made != request:
        raise KinspanError(f"--output_dir {folder} holds another corpus: choose another folder, or delete it first")
    refuse_rejected(read, max_rejected)
    try:
        manifest = Corpus(folder).manifest
        if all((folder / s.file).stat().st_size == s.bytes for s in manifest.shards):
            return manifest
    except (KinspanError, OSError):
        pass  # it is this very corpus, but damaged, and is made again
    (folder / "partial").mkdir(exist_ok=True)  # marks the corpus as unfinished
    (folder / "manifest.json").unlink()
    return None


def _make_partial_folder(folder: Path, partial: Path) -> None:
    """Makes the folder ``partial``, or takes up that of an interrupted run. Raises KinspanError for any other files."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {p.name for p in folder.iterdir()}
    if foreign := names - {"partial", "manifest.json.tmp", *CORPUS_PARTS} if "partial" in names else names:
        raise KinspanError(f"--output_dir {folder} is not empty (it has {min(foreign)}): choose another folder")
    partial.mkdir(exist_ok=True)


# 1. Encoding ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoded:
    """Output of the input tasks; ``filled`` names the optional columns with content."""

    spills: Spills
    num_paragraphs: int
    filled: set[str]
    tally: Tally
    read: ReadTally


def _encode(plan: PreparePlan, tokenizer: str, engine: Engine, input_files: InputFiles, max_rejected: float) -> Encoded:
    """Runs the first stage. Raises KinspanError where no document is kept, too much is rejected, or a file changed."""
    _clear_remains(plan)
    plan.run.mkdir(exist_ok=True)
    write_atomically(plan.tokenizer_file, tokenizer)
    names, sizes = [task.name for task in plan.tasks], [task.size for task in plan.tasks]
    engine.run(Stage("tokenising", partial(encode_inputs, plan.write()), plan.run / "encode", names, sizes))
    check_unchanged(plan.files)
    encoded = _gather(plan)
    encoded.read.reject_unknown(input_files)
    for suffix, count in input_files.passed_over.items():
        encoded.tally.counts[f"files passed over: {suffix}"] += count
    try:
        refuse_rejected(encoded.read, max_rejected)
    except KinspanError:
        for task in plan.tasks:  # another try may read what this one could not: a store that did not answer, a library
            facts = plan.encoded / f"{task.key}.json"
            if json.loads(facts.read_text())["read"]["unread"]:
                facts.unlink()
        shutil.rmtree(plan.run)
        raise
    if not sum(encoded.spills.counts):
        read = encoded.tally.counts["documents read"]
        raise KinspanError(f"--input: no document is kept: {read:,} were read, and all are too short or dropped")
    return encoded


def _clear_remains(plan: PreparePlan) -> None:
    """Removes remains of runs of other inputs or settings, and unfinished files of killed tasks."""
    for path in plan.folder.glob("run-*"):
        if path != plan.run:
            shutil.rmtree(path)
    keys = {task.key for task in plan.tasks}
    for path in plan.encoded.glob("*"):
        if path.name.partition(".")[0] not in keys or path.suffix == ".tmp":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _gather(plan: PreparePlan) -> Encoded:
    """Adds up the counts of the input tasks, and joins their rejected records in ``rejected.jsonl``."""
    keys = [task.key for task in plan.tasks]
    tally, read, counts, filled, num_paragraphs = Tally(), ReadTally(), [], set(), 0
    for key in keys:
        facts = json.loads((plan.encoded / f"{key}.json").read_text(encoding="utf-8"))
        tally.add(Tally(**facts["tally"]))
        read.add(ReadTally(**facts["read"]))
        counts.append(facts["documents"])
        num_paragraphs += facts["paragraphs"]
        filled |= set(facts["filled"])
    with (plan.folder / "rejected.jsonl").open("wb") as file:
        for key in keys:
            with (plan.encoded / f"{key}.rejected.jsonl").open("rb") as part:
                shutil.copyfileobj(part, file)
    return Encoded(Spills(plan.encoded, keys, counts), num_paragraphs, filled, tally, read)


# 2. Duplicates --------------------------------------------------------------------------------------------


def _find_duplicates(plan: PreparePlan, engine: Engine, encoded: Encoded) -> tuple[Path, Path, int]:
    """Returns the file of the documents' status, the folder of the removed paragraphs, and its number of files."""
    spills, status, removed = encoded.spills, plan.run / "dedup_status.npy", plan.run / "paragraphs"
    is_exact = plan.settings["duplicates"] != "keep"
    if is_exact:
        count = -(-sum(spills.counts) // RANGE_DOCUMENTS)
        _run(engine, "finding repeated documents", plan.run / "documents", count, find_documents, spills)
    if plan.near:
        signatures, matches = plan.run / "signatures", plan.run / "matches"
        link_signatures([plan.signatures(key) for key in spills.keys], signatures)
        names = [f"band {number + 1}" for number in range(NUM_BANDS)]
        work = partial(find_matches, signatures, matches)
        engine.run(Stage("finding near-duplicates", work, plan.run / "near", names))
    if not status.exists():
        exact = plan.run / "documents" if is_exact else None
        decide_documents(spills, exact, plan.run / "matches" if plan.near else None, status)
    count = max(1, -(-encoded.num_paragraphs // RANGE_PARAGRAPHS)) if is_exact else 0
    if is_exact:
        arguments = spills, status, plan.buckets, plan.settings["boilerplate"]
        _run(engine, "finding repeated paragraphs", removed, count, find_paragraphs, *arguments)
    return status, removed, count


def _run(engine: Engine, title: str, folder: Path, count: int, work: Callable[..., None], *arguments: object) -> None:
    """Runs a stage of ``count`` ranges of hashes, with its results in its folder."""
    names = [f"part {number + 1} of {count}" for number in range(count)]
    engine.run(Stage(title, partial(work, *arguments, folder, count), folder, names))


# 3. Shards ------------------------------------------------------------------------------------------------


def _write_shards(
    plan: PreparePlan, engine: Engine, encoded: Encoded, dedup_status: Path, removed: Path, num_ranges: int
) -> list[ShardInfo]:
    """Writes the buckets, and gives their shards their final names; adds to the tally of ``encoded``."""
    count = plan.buckets.count
    work = partial(write_shards, plan.write(), encoded.spills, dedup_status, removed, num_ranges, encoded.filled)
    names = [f"bucket {number + 1} of {count}" for number in range(count)]
    engine.run(Stage("writing shards", work, plan.run / "shards", names))
    target = plan.folder / "shards"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    shards: list[ShardInfo] = []
    for bucket in range(count):
        facts = json.loads((plan.run / f"buckets/{bucket:05d}.json").read_text(encoding="utf-8"))
        encoded.tally.add(Tally(**facts["tally"]))
        for info in facts["shards"]:
            name = f"shards/{len(shards):05d}.arrow"
            _link(plan.run / "buckets" / info["file"], plan.folder / name)
            shards.append(ShardInfo(**{**info, "file": name}))
    return shards


def _link(source: Path, target: Path) -> None:
    """Gives a file a second name, so that an interruption loses nothing; copies it where that cannot be."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def _make_manifest(shards: list[ShardInfo], tokenizer: dict, settings: dict, tally: Tally, licence: str) -> Manifest:
    names = ("documents", "paragraphs", "sentences", "tokens", "bytes")
    totals = {name: sum(getattr(shard, name) for shard in shards) for name in names}
    sources = []
    for name, documents in sorted(tally.sources.items()):
        known, origin = LICENCES.get(name, (licence or "not stated", name))
        sources.append({"name": name, "licence": known, "origin": origin, "documents": documents})
    fingerprint = fingerprint_corpus(shards, tokenizer["fingerprint"])
    return Manifest(tokenizer, settings, sources, shards, totals, fingerprint)


def _move_parts(partial: Path, folder: Path) -> None:
    """Moves the finished parts to their place. Those of an interrupted move give way."""
    for name in CORPUS_PARTS:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        (partial / name).replace(folder / name)
