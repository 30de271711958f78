"""Documents become a corpus: they are read, cleaned, split, tokenised, freed of duplicates, shuffled and written.

The steps are stages of independent tasks (``tasks.py``), which run on this machine, on Slurm or on Ray:

1. Each input task encodes its files, or its part of a file, into buckets by a hash of each document's id.
2. Ranges of hashes are searched for documents and paragraphs that occur more than once.
3. Each bucket is freed of them, shuffled in memory and written as shards.

The manifest is written last. Until then, what is done lies in the folder ``partial``, and the same command goes on
from there. What comes out depends on the inputs and the settings alone.
"""

import json
import shutil
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from data_pipeline import tokenizers
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import describe_write_error, lock_file
from data_pipeline.corpus import Corpus, Manifest, ShardInfo, fingerprint_corpus
from data_pipeline.sampling.pairs import Objective

from .benchmark import Benchmark
from .cleaning import Rules, Tally, check_rules
from .plan import PreparePlan
from .readers import PYTHON_DOCS, InputFile, find_input_files, refuse_own_output
from .rejection import Allowed, ReadTally, refuse_missing, refuse_rejected
from .report import write_report
from .stages import encode_all, write_all
from .tasks import Engine
from .write import MAX_SHARD_TOKENS, SHARD_TOKENS, write_manifest

BOILERPLATE = 10  # documents with a paragraph from which on it is removed from all of them
LICENCES = {PYTHON_DOCS: ("PSF-2.0, and that of each installed package", "docstrings of Python and its packages")}
CORPUS_PARTS = ("shards", "tokenizer", "rejected.jsonl", "request.json", "report.html")


@dataclass(frozen=True)
class Prepared:
    """What ``prepare`` did.

    reused:     the folder already held this corpus, and the tally is empty
    skipped:    files that were left out, by suffix
    stages:     the seconds that each stage took
    peak_bytes: the most memory that its process had taken by the end of each input task, and of each bucket
    """

    manifest: Manifest
    tally: Tally
    seconds: float
    reused: bool = False
    skipped: Counter[str] = field(default_factory=Counter)
    stages: dict[str, float] = field(default_factory=dict)
    peak_bytes: list[int] = field(default_factory=list)


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
    allow_damaged: bool = False,
    allow_skipped: bool = False,
    allow_rejected: float | None = None,
    may_allow: bool = True,
    duplicates: str = "exact",
    boilerplate: int = BOILERPLATE,
    decontaminate: list[str] | None = None,
    executor: str = "local",
    sbatch: list[str] | None = None,
) -> Prepared:
    """Write a corpus folder. The flags of ``launch/prepare.py`` say what the arguments are.

    Where ``output`` already holds the corpus of the same inputs and settings, it is left as it is.

    Args:
        inputs: files, globs, folders or ``python-docs``
        tokenizer_name: a name on the hub, or a folder
        objectives: for each of them, the manifest counts the usable anchors
        num_workers: tasks that run at the same time; one runs in this process
        shard_tokens: about how many tokens a shard holds
        licence: of the inputs, for the manifest
        allow_damaged: go without the rest of a file that cannot be read to its end
        allow_skipped: go without the files of folders and archives that cannot be read, and links that lead nowhere
        allow_rejected: the share of the bytes that may be rejected, see ``rejection``; None: 1%, and of no file all
        may_allow: whether the command has flags for these three, which messages then advise
        duplicates: "exact" drops documents and paragraphs that repeat earlier ones, "near" also documents much like an
            earlier one, "keep" nothing
        boilerplate: a paragraph that stands in so many documents is dropped from all of them; 0 for never
        decontaminate: sentences of test sets; a document that holds one is dropped
        executor: "local", "slurm" or "ray"
        sbatch: what Slurm's jobs ask for, each ``NAME=VALUE``, with a partition and a time

    Raises KinspanError where an input or the tokenizer cannot be used, a task fails, or no document is kept.
    """
    began, folder, rules = time.monotonic(), Path(output).absolute(), rules or Rules()
    if shard_tokens > MAX_SHARD_TOKENS:
        raise KinspanError(f"--shard_tokens {shard_tokens}: at most {MAX_SHARD_TOKENS}, since offsets have 32 bits")
    if boilerplate == 1:
        raise KinspanError("--boilerplate 1: must be 2 or more, or 0 to keep such paragraphs")
    check_rules(rules)
    refuse_own_output(inputs, folder)
    engine = Engine(executor, num_workers, sbatch or [], quiet)
    files, skipped = find_input_files(inputs, allow_skipped)
    tokenizer = tokenizers.load_tokenizer(tokenizer_name)
    described = tokenizers.describe_tokenizer(tokenizer)
    settings = {**asdict(rules), "shard_tokens": shard_tokens, "duplicates": duplicates, "boilerplate": boilerplate}
    if decontaminate:
        settings["decontaminate"] = Benchmark(decontaminate).fingerprint()
    request = {"inputs": _identify_inputs(files), "settings": settings, "tokenizer": described["fingerprint"]}
    allowed = Allowed(allow_damaged, allow_skipped, allow_rejected, may_allow)
    old = _find_finished(folder, request, allowed)
    if old:
        _refuse_other_licence(old, licence, folder)
        shutil.rmtree(folder / "partial", ignore_errors=True)  # of a run that was killed at its very end
        return Prepared(old, Tally(), time.monotonic() - began, reused=True, skipped=skipped)
    partial = folder / "partial"
    try:
        _make_partial_folder(folder, partial)
        in_use = f"--output_dir {folder}: another run is writing there: wait for its end, or choose another folder"
        with lock_file(partial / "lock", in_use), engine:
            name, unknown = tokenizers.shorten_name(tokenizer.name_or_path), tokenizer.unk_token_id
            known = name, described["fingerprint"], len(tokenizer), unknown
            plan = PreparePlan(partial, files, settings, rules, *known, objectives, decontaminate or [])
            done = encode_all(plan, tokenizers.serialize_backend(tokenizer), engine, allowed)
            write_all(plan, engine, done)
            manifest = _make_manifest(done.shards, described, settings, done.tally, inputs, licence)
            (partial / "request.json").write_text(json.dumps({**request, "read": done.read.to_json()}))
            tokenizer.save_pretrained(str(partial / "tokenizer"))
            write_report(partial, manifest, done.tally)
            _move_parts(partial, folder)
            write_manifest(manifest, folder)
    except OSError as error:
        raise KinspanError(f"--output_dir {describe_write_error(folder, error)}") from error
    finally:
        if (folder / "manifest.json").exists():
            shutil.rmtree(partial, ignore_errors=True)
    return Prepared(manifest, done.tally, time.monotonic() - began, False, skipped, engine.seconds, done.peak_bytes)


def _identify_inputs(files: list[InputFile]) -> list[list]:
    """Describe the inputs without reading them: the name, size and modification time of each file."""
    return [[str(Path(f.name).resolve()) if Path(f.name).exists() else f.name, f.size, f.modified] for f in files]


def _find_finished(folder: Path, request: dict, allowed: Allowed) -> Manifest | None:
    """Return the manifest of a corpus that is already there, whole, and what this request would make; else None.

    Raises KinspanError where the folder holds the corpus of another request, or one that lacks text which is not
    allowed to be missing: the rest of a damaged file, a file of an archive, or too many rejected records.
    """
    if not (folder / "manifest.json").exists():
        return None
    try:
        made = json.loads((folder / "request.json").read_text())
        read = made.pop("read", ReadTally().to_json())
        same = made == request
    except (OSError, ValueError, AttributeError):
        same = False
    if not same:
        raise KinspanError(
            f"--output_dir {folder} already holds another corpus (other inputs, settings or tokenizer): "
            "choose another folder, or delete it first"
        )
    holds = f"--output_dir {folder} holds this corpus, but --input"
    refuse_rejected(ReadTally.from_json(read), allowed.rejected, holds, allowed.may_allow)
    refuse_missing(folder, allowed, is_finished=True)
    try:
        manifest = Corpus(folder).manifest
        if all((folder / s.file).stat().st_size == s.bytes for s in manifest.shards):
            return manifest
    except (KinspanError, OSError):
        pass  # it is this very corpus, but damaged, and is made again
    (folder / "partial").mkdir(exist_ok=True)  # marks the corpus as unfinished
    (folder / "manifest.json").unlink()
    return None


def _refuse_other_licence(manifest: Manifest, licence: str, folder: Path) -> None:
    """Raise KinspanError where a licence is given, and the corpus that is there was prepared with another one."""
    stated = {source["licence"] for source in manifest.sources if source["name"] not in LICENCES}
    if licence and stated - {licence}:
        raise KinspanError(
            f"--licence {licence}: --output_dir {folder} already holds this corpus, with the licence "
            f"{', '.join(sorted(stated))}: leave the flag out, or delete the folder to prepare it again"
        )


def _make_partial_folder(folder: Path, partial: Path) -> None:
    """Make the folder ``partial``, or take up what an interrupted run left there. Anything else is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    there = {p.name for p in folder.iterdir()}
    others = there - {"partial", "manifest.json.tmp", *CORPUS_PARTS} if "partial" in there else there
    if others:
        raise KinspanError(f"--output_dir {folder} is not empty (it has {sorted(others)[0]}): choose another folder")
    partial.mkdir(exist_ok=True)


def _move_parts(partial: Path, folder: Path) -> None:
    """Move what is finished to its place. Whatever an interrupted move left there gives way."""
    for name in CORPUS_PARTS:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        (partial / name).replace(folder / name)


def _make_manifest(
    shards: list[ShardInfo], tokenizer: dict, settings: dict, tally: Tally, inputs: list[str], licence: str
) -> Manifest:
    totals = {
        k: sum(getattr(s, k) for s in shards) for k in ("documents", "paragraphs", "sentences", "tokens", "bytes")
    }
    sources = []
    for name, documents in sorted(tally.sources.items()):
        known, origin = LICENCES.get(name, (licence or "not stated", name))
        sources.append({"name": name, "licence": known, "origin": origin, "documents": documents})
    fingerprint = fingerprint_corpus(shards, tokenizer["fingerprint"])
    return Manifest(tokenizer, settings, sources, shards, totals, fingerprint)
