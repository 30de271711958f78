"""Prepares a corpus: reads, cleans, splits, tokenises, deduplicates, shuffles and writes documents.

Each step is a stage of independent tasks (``tasks.py``), which run on this machine, on Slurm or on Ray:

1. Each input task encodes its files, or its part of a file (``encode.py``).
2. Each range of hashes is searched for repeated documents and paragraphs (``duplicates.py``).
3. Each bucket of documents is deduplicated, shuffled in memory and written as shards (``write.py``).

The manifest is written last. Until then, the folder ``partial`` keeps finished work, from which the same command
resumes. The result depends only on the inputs and the settings.
"""

import json
import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from data_pipeline import tokenizers
from data_pipeline.core.errors import DamagedFile, KinspanError, quote_error, redact
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
from .readers import PYTHON_DOCS, InputFiles, check_unchanged, find_input_files, refuse_own_output
from .readers.reader import estimate_text
from .spill import Spills
from .summary import format_summary, order_counts
from .tasks import Engine, Stage
from .write import SHARD_TOKENS, write_manifest, write_shards

logger = logging.getLogger(__name__)

BOILERPLATE = 10  # a paragraph in at least this many documents is removed from all of them
LICENCES = {PYTHON_DOCS: ("PSF-2.0, and that of each installed package", "docstrings of Python and its packages")}
CORPUS_PARTS = ("shards", "tokenizer", "rejected.jsonl", "request.json", "summary.txt")


@dataclass(frozen=True)
class Prepared:
    """Result of ``prepare``; ``reused`` if the folder already held this corpus, with empty tallies."""

    manifest: Manifest
    tally: Tally
    read_tally: ReadTally
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
    keep_code: bool = False,
) -> Prepared:
    """Writes a corpus folder; the arguments are flags of ``launch/prepare.py``, and ``shard_tokens`` for tests.

    A complete corpus of the same inputs and settings is left unchanged. The manifest counts the usable anchors of each
    of the ``objectives``.
    """
    start_time, folder, rules = time.monotonic(), Path(output).absolute(), rules or Rules()
    if boilerplate == 1:
        raise KinspanError("--boilerplate 1: must be 0, or 2 or more")
    check_rules(rules)
    refuse_own_output(inputs, folder)
    engine = Engine(executor, num_workers, sbatch or [], quiet)
    input_files = find_input_files(inputs)
    tokenizer = tokenizers.load_tokenizer(tokenizer_name)
    tokenizer_info = {
        "name": tokenizers.shorten_name(tokenizer.name_or_path),
        "revision": tokenizer.init_kwargs.get("_commit_hash"),
        "fingerprint": tokenizers.fingerprint_tokenizer(tokenizer),
        "vocab_size": len(tokenizer),
    }
    settings = {**asdict(rules), "shard_tokens": shard_tokens, "duplicates": duplicates, "boilerplate": boilerplate}
    if keep_code:
        settings["keep_code"] = keep_code
    if decontaminate:
        settings["decontaminate"] = Benchmark(decontaminate).fingerprint()
    files = [(str(Path(f.name).resolve()) if Path(f.name).exists() else redact(f.name), f) for f in input_files.files]
    request = {
        "inputs": [[name, file.size, file.modified] for name, file in files],  # by which inputs are compared
        "settings": settings,
        "tokenizer": tokenizer_info["fingerprint"],
    }
    if finished := _find_finished(folder, request, max_rejected):
        stated = {source["licence"] for source in finished.sources if source["name"] not in LICENCES}
        if licence and stated - {licence}:
            raise KinspanError(f"--licence {licence}: --output_dir {folder} holds this corpus with {', '.join(stated)}")
        shutil.rmtree(folder / "partial", ignore_errors=True)  # left by a run that was killed just before removing it
        return Prepared(finished, Tally(), ReadTally(), time.monotonic() - start_time, reused=True)
    read_tally = ReadTally()
    for file in input_files.files:
        read_tally.count(estimate_text(file.name, file.size))
    read_tally.reject_unreadable(input_files)
    refuse_rejected(read_tally, max_rejected)
    work = folder / "partial"
    try:
        _make_partial_folder(folder, work)
        in_use = f"--output_dir {folder}: another run is writing there: wait for its end, or choose another folder"
        with lock_file(work / "lock", in_use), engine:
            tokens = tokenizer_info["name"], tokenizer_info["fingerprint"], len(tokenizer), tokenizer.unk_token_id
            plan = PreparePlan(work, input_files.files, settings, rules, *tokens, objectives, decontaminate or [])
            serialized = tokenizer.backend_tokenizer.to_str()  # for workers, which then need no transformers
            encoded = _encode(plan, serialized, engine, input_files, max_rejected)
            dedup_status, removed, num_ranges = _find_duplicates(plan, engine, encoded)
            shards = _write_shards(plan, engine, encoded, dedup_status, removed, num_ranges)
            manifest = _make_manifest(shards, tokenizer_info, settings, encoded, licence)
            write_atomically(work / "request.json", json.dumps({**request, "read": asdict(encoded.read_tally)}))
            write_atomically(work / "summary.txt", format_summary(encoded.tally, encoded.read_tally))
            tokenizer.save_pretrained(str(work / "tokenizer"))
            for name in CORPUS_PARTS:  # parts left by an interrupted move are replaced
                if (folder / name).is_dir():
                    shutil.rmtree(folder / name)
                (work / name).replace(folder / name)
            write_manifest(manifest, folder)
    except OSError as error:
        raise KinspanError(f"--output_dir {folder} cannot be written: {quote_error(error)}") from error
    finally:
        if (folder / "manifest.json").exists():
            shutil.rmtree(work, ignore_errors=True)
    return Prepared(manifest, encoded.tally, encoded.read_tally, time.monotonic() - start_time)


# Before any work ------------------------------------------------------------------------------------------


def _find_finished(folder: Path, request: dict, max_rejected: float) -> Manifest | None:
    """Returns the manifest of a complete corpus of this request; None if there is none, or it is damaged."""
    if not (folder / "manifest.json").exists():
        return None
    try:
        finished = json.loads((folder / "request.json").read_text())
        read_tally = ReadTally(**finished.pop("read"))
    except (OSError, ValueError, TypeError, KeyError):
        finished = None
    if finished != request:
        raise KinspanError(f"--output_dir {folder} holds a corpus of other documents or settings: choose another")
    refuse_rejected(read_tally, max_rejected)
    with suppress(DamagedFile, FileNotFoundError):  # it is this corpus, but damaged, and is prepared again
        manifest = Corpus(folder).manifest
        if all((folder / s.file).stat().st_size == s.bytes for s in manifest.shards):
            return manifest
    (folder / "partial").mkdir(exist_ok=True)  # marks the corpus as unfinished
    (folder / "manifest.json").unlink()
    return None


def _make_partial_folder(folder: Path, work: Path) -> None:
    """Makes the folder ``partial``, unless an interrupted run left one. Raises KinspanError for any other files."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {p.name for p in folder.iterdir() if not p.name.startswith("manifest.json.")}
    if foreign := names - {"partial", *CORPUS_PARTS} if "partial" in names else names:
        raise KinspanError(f"--output_dir {folder} is not empty (it has {min(foreign)}): choose another folder")
    work.mkdir(exist_ok=True)


# 1. Encoding ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoded:
    """Output of the input tasks; ``filled`` has the names of the optional columns with content."""

    spills: Spills
    num_paragraphs: int
    filled: set[str]
    tally: Tally
    read_tally: ReadTally


def _encode(plan: PreparePlan, tokenizer: str, engine: Engine, input_files: InputFiles, max_rejected: float) -> Encoded:
    """Runs the first stage. Raises KinspanError if no document is kept, too much is rejected, or a file changed."""
    _clear_remains(plan)
    plan.run.mkdir(exist_ok=True)
    write_atomically(plan.tokenizer_file, tokenizer)
    names, sizes = [task.name for task in plan.tasks], [task.size for task in plan.tasks]
    engine.run(Stage("tokenising", partial(encode_inputs, plan.write()), plan.run / "encode", names, sizes))
    check_unchanged(plan.files)
    encoded = _gather(plan)
    encoded.read_tally.reject_unreadable(input_files)
    with (plan.folder / "rejected.jsonl").open("a", encoding="utf-8") as rejected:
        for file, reason in input_files.unreadable:
            entry = {"file": redact(file.name), "line": 1, "reason": reason, "bytes": file.size}
            rejected.write(json.dumps(entry) + "\n")
    for suffix, count in input_files.passed_over.items():
        encoded.tally.counts[f"files passed over: {suffix}"] += count
    try:
        refuse_rejected(encoded.read_tally, max_rejected)
    except KinspanError:
        for task in plan.tasks:  # a new try may read more: a store may answer again, a library may be installed
            counts = plan.encoded / f"{task.key}.json"
            if json.loads(counts.read_text())["read"]["unread"]:
                counts.unlink()
        shutil.rmtree(plan.run)
        raise
    if not sum(encoded.spills.counts):
        num_read = encoded.tally.counts["documents read"]
        raise KinspanError(f"--input: no document is kept: {num_read:,} were read, and all are too short or dropped")
    return encoded


def _clear_remains(plan: PreparePlan) -> None:
    """Removes what runs with other inputs or settings left, and unfinished files of killed tasks."""
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
    tally, read_tally, num_documents, filled, sums = Tally(), ReadTally(), [], set(), Counter[str]()
    for key in keys:
        counts = json.loads((plan.encoded / f"{key}.json").read_text(encoding="utf-8"))
        tally.add(Tally(**counts["tally"]))
        read_tally.add(ReadTally(**counts["read"]))
        num_documents.append(counts["documents"])
        sums.update({name: counts[name] for name in ("paragraphs", "bytes")})
        filled |= set(counts["filled"])
    with (plan.folder / "rejected.jsonl").open("wb") as file:
        for key in keys:
            with (plan.encoded / f"{key}.rejected.jsonl").open("rb") as part:
                shutil.copyfileobj(part, file)
    spills = Spills(plan.encoded, keys, num_documents, plan.count_buckets(sums["bytes"]))
    return Encoded(spills, sums["paragraphs"], filled, tally, read_tally)


# 2. Duplicates --------------------------------------------------------------------------------------------


def _find_duplicates(plan: PreparePlan, engine: Engine, encoded: Encoded) -> tuple[Path, Path, int]:
    """Returns the file of the documents' status, the folder of the paragraphs to remove, and its number of files."""
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
        arguments = spills, status, plan.settings["boilerplate"]
        _run(engine, "finding repeated paragraphs", removed, count, find_paragraphs, *arguments)
    return status, removed, count


def _run(engine: Engine, title: str, folder: Path, count: int, work: Callable[..., None], *arguments: object) -> None:
    """Runs ``work(*arguments, folder, count, number)`` for each of ``count`` ranges of hashes."""
    names = [f"part {number + 1} of {count}" for number in range(count)]
    engine.run(Stage(title, partial(work, *arguments, folder, count), folder, names))


# 3. Shards ------------------------------------------------------------------------------------------------


def _write_shards(
    plan: PreparePlan, engine: Engine, encoded: Encoded, dedup_status: Path, removed: Path, num_ranges: int
) -> list[ShardInfo]:
    """Writes the buckets, gives their shards their final names, and adds their counts to ``encoded.tally``."""
    count = encoded.spills.buckets.count
    work = partial(write_shards, plan.write(), encoded.spills, dedup_status, removed, num_ranges, encoded.filled)
    names = [f"bucket {number + 1} of {count}" for number in range(count)]
    engine.run(Stage("writing shards", work, plan.run / "shards", names))
    target = plan.folder / "shards"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    shards: list[ShardInfo] = []
    for bucket in range(count):
        result = json.loads((plan.run / f"buckets/{bucket:05d}.json").read_text(encoding="utf-8"))
        encoded.tally.add(Tally(**result["tally"]))
        for info in result["shards"]:
            name = f"shards/{len(shards):05d}.arrow"
            written = plan.run / "buckets" / info["file"]
            try:
                (plan.folder / name).hardlink_to(written)  # so that an interruption loses nothing
            except OSError:  # a file system without links
                shutil.copyfile(written, plan.folder / name)
            shards.append(ShardInfo(**{**info, "file": name}))
    return shards


def _make_manifest(
    shards: list[ShardInfo], tokenizer: dict, settings: dict, encoded: Encoded, licence: str
) -> Manifest:
    names = ("documents", "paragraphs", "sentences", "tokens", "bytes")
    totals = {name: sum(getattr(shard, name) for shard in shards) for name in names}
    sources = []
    for name, documents in sorted(encoded.tally.sources.items()):
        stated, origin = LICENCES.get(name, (licence or "not stated", name))
        sources.append({"name": name, "licence": stated, "origin": origin, "documents": documents})
    fingerprint = fingerprint_corpus(shards, tokenizer["fingerprint"])
    counts = order_counts(encoded.tally, encoded.read_tally)
    return Manifest(tokenizer, settings, sources, shards, totals, fingerprint, counts=counts)
