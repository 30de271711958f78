"""Documents become a corpus: they are read, cleaned, split, tokenised, shuffled and written.

Worker processes encode chunks of records (``encode.py``), whose results are spilled to one file in the order of the
input; from there documents are dealt out to shards (``write.py``). The manifest is written last.
"""

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from tqdm import tqdm

from data_pipeline import tokenizers
from data_pipeline.corpus import OPTIONAL_COLUMNS, Corpus, Manifest, ShardInfo, fingerprint_corpus, make_schema
from data_pipeline.errors import KinspanError
from data_pipeline.executors import check_workers, map_chunks
from data_pipeline.sampling.pairs import Objective

from .document import Skipped, Unreadable
from .encode import Encoder, Rules, Tally
from .readers import PYTHON_DOCS, UNREADABLE, InputFile, Record, find_input_files, read_records
from .write import MAX_SHARD_TOKENS, SHARD_TOKENS, write_manifest, write_shards

CORPUS_PARTS = ("shards", "tokenizer", "rejected.jsonl", "request.json")  # what a corpus holds beside its manifest
CHUNK_BYTES = 1 << 20  # the size of the raw records that a worker is handed at a time

LICENCES = {PYTHON_DOCS: ("PSF-2.0, and that of each installed package", "docstrings of Python and its packages")}


@dataclass(frozen=True)
class Prepared:
    """What ``prepare`` did.

    reused:  the folder already held this corpus, and the tally is empty
    skipped: the files in folders that are of no known format, by suffix, and the links that lead nowhere
    """

    manifest: Manifest
    tally: Tally
    seconds: float
    reused: bool = False
    skipped: Counter[str] = field(default_factory=Counter)


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
) -> Prepared:
    """Write a corpus folder, and return its manifest and the tally of what was kept and dropped.

    Where ``output`` already holds the corpus of the same inputs and settings, it is left as it is.

    Args:
        inputs: files, globs, folders or ``python-docs``
        tokenizer_name: a name on the hub, or a folder
        objectives: for each of them, the manifest counts the usable anchors
        shard_tokens: about how many tokens a shard holds
        licence: of the inputs, for the manifest
        allow_damaged: go without the rest of a file that cannot be read to its end
        allow_skipped: go without the files of folders that are of no known format, and links that lead nowhere

    Raises KinspanError where an input or the tokenizer cannot be used, or no document is kept.
    """
    began, folder, rules = time.monotonic(), Path(output), rules or Rules()
    _check_settings(rules, num_workers, shard_tokens)
    files, skipped = find_input_files(inputs, allow_skipped)
    tokenizer = tokenizers.load_tokenizer(tokenizer_name)
    described = tokenizers.describe_tokenizer(tokenizer)
    settings = {**asdict(rules), "shard_tokens": shard_tokens}
    request = {
        "inputs": _identify_inputs(files),
        "settings": settings,
        "tokenizer": described["fingerprint"],
    }
    old = _find_finished(folder, request, allow_damaged)
    if old:
        return Prepared(old, Tally(), time.monotonic() - began, reused=True, skipped=skipped)
    partial = folder / "partial"
    _make_partial_folder(folder, partial)
    try:
        tally = _encode_all(files, tokenizer, rules, num_workers, partial, quiet, allow_damaged, allow_skipped)
        with tqdm(desc="writing shards", unit=" documents", total=tally.counts["documents kept"], disable=quiet) as bar:
            shards = write_shards(partial / "spill.arrow", partial, objectives, shard_tokens, bar.update)
        manifest = _make_manifest(shards, described, settings, tally, inputs, licence)
        (partial / "request.json").write_text(json.dumps(request))
        tokenizer.save_pretrained(str(partial / "tokenizer"))
        for name in CORPUS_PARTS:
            (partial / name).replace(folder / name)
        write_manifest(manifest, folder)
    except OSError as error:
        raise KinspanError(f"--output_dir {folder}: {error.strerror or error}") from error
    finally:
        if (folder / "manifest.json").exists() or not any((folder / name).exists() for name in CORPUS_PARTS):
            shutil.rmtree(partial, ignore_errors=True)  # if it stays, it marks what lies beside it as unfinished
    return Prepared(manifest, tally, time.monotonic() - began, skipped=skipped)


def _check_settings(rules: Rules, num_workers: int, shard_tokens: int) -> None:
    check_workers(num_workers)
    if shard_tokens < 1:
        raise KinspanError(f"--shard_tokens {shard_tokens}: must be above 0")
    for name in ("min_paragraph_chars", "min_document_chars"):
        if getattr(rules, name) < 0:
            raise KinspanError(f"--{name} {getattr(rules, name)}: must not be below 0")
    if shard_tokens > MAX_SHARD_TOKENS:
        raise KinspanError(f"--shard_tokens {shard_tokens}: at most {MAX_SHARD_TOKENS}, since offsets have 32 bits")
    if not 0 <= rules.validation_share < 1:
        raise KinspanError(f"--validation_share {rules.validation_share}: must be from 0 to less than 1")


def _identify_inputs(files: list[InputFile]) -> list[list]:
    """Describe the inputs without reading them: the name, size and modification time of each file."""
    return [[str(Path(f.name).resolve()) if Path(f.name).exists() else f.name, f.size, f.modified] for f in files]


def _find_finished(folder: Path, request: dict, allow_damaged: bool) -> Manifest | None:
    """Return the manifest of a corpus that is already there, whole, and what this request would make; else None.

    Raises KinspanError where the folder holds the corpus of another request, or one that lacks the rest of a damaged
    file, unless ``allow_damaged``.
    """
    if not (folder / "manifest.json").exists():
        return None
    try:
        same = json.loads((folder / "request.json").read_text()) == request
    except (OSError, ValueError):
        same = False
    if not same:
        raise KinspanError(
            f"--output_dir {folder} already holds another corpus (other inputs, settings or tokenizer): "
            "choose another folder, or delete it first"
        )
    damaged = _find_damaged(folder / "rejected.jsonl")
    if damaged and not allow_damaged:
        raise KinspanError(
            f"--output_dir {folder} holds this corpus without the rest of {damaged}, which could not be read: choose "
            "another folder or delete it to read the file again, or give --allow_damaged to use the corpus as it is"
        )
    try:
        manifest = Corpus(folder).manifest
        if all((folder / s.file).stat().st_size == s.bytes for s in manifest.shards):
            return manifest
    except (KinspanError, OSError):
        pass  # it is this very corpus, but damaged, and is made again
    (folder / "partial").mkdir(exist_ok=True)  # marks the corpus as unfinished
    (folder / "manifest.json").unlink()
    return None


def _find_damaged(rejected: Path) -> str | None:
    """Name the first input that could not be read to its end, by ``rejected.jsonl``; None where there is none."""
    if rejected.exists():
        with rejected.open(encoding="utf-8") as file:
            for entry in map(json.loads, file):
                if entry["reason"].startswith(UNREADABLE):
                    return str(entry["file"])
    return None


def _make_partial_folder(folder: Path, partial: Path) -> None:
    """Make an empty ``partial`` folder. What an interrupted run left is removed, and anything else is refused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = {p.name for p in folder.iterdir()}
        others = there - {"partial", "manifest.json.tmp", *CORPUS_PARTS} if "partial" in there else there
        if others:
            raise KinspanError(
                f"--output_dir {folder} is not empty (it has {sorted(others)[0]}): choose another folder"
            )
        for name in ("partial", "shards", "tokenizer"):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "manifest.json.tmp").unlink(missing_ok=True)
        partial.mkdir()
    except OSError as error:
        raise KinspanError(f"--output_dir {folder} cannot be written: {error.strerror or error}") from error


def _split_into_chunks(
    files: list[InputFile], bar: Any, allow_damaged: bool, allow_skipped: bool
) -> Iterator[list[Record]]:
    """Yield records in chunks of about CHUNK_BYTES, in order; a chunk may span files.

    Raises KinspanError for a file that cannot be read to its end, unless ``allow_damaged``.
    """
    chunk: list[Record] = []
    size = 0
    for number, file in enumerate(files):
        bar.set_postfix_str(f"file {number + 1} of {len(files)}: {Path(file.name).name}", refresh=False)
        for record in read_records(file.name):
            if isinstance(record.content, Skipped) and not allow_skipped:
                raise KinspanError(f"--input {record.file}: {record.content}")
            if type(record.content) is Unreadable and not allow_damaged:
                raise KinspanError(
                    f"--input {record.file}, record {record.line}: {record.content}; copy or fetch the file again, or "
                    "give --allow_damaged to go without the rest of it"
                )
            chunk.append(record)
            size += len(record.content if isinstance(record.content, bytes) else str(record.content))
            if size >= CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
    if chunk:
        yield chunk


def _encode_all(
    files: list[InputFile],
    tokenizer: Any,
    rules: Rules,
    num_workers: int,
    partial: Path,
    quiet: bool,
    allow_damaged: bool,
    allow_skipped: bool,
) -> Tally:
    """Write encoded documents and rejected records to files in ``partial``, with a progress bar."""
    wide = len(tokenizer) > 1 << 16
    schema = make_schema(wide, OPTIONAL_COLUMNS)  # columns that stay empty are left out of the shards
    worker = (tokenizers.serialize_backend(tokenizer), rules, wide)
    tally = Tally()
    with (
        tqdm(desc="tokenising", unit=" documents", mininterval=1.0, disable=quiet) as bar,
        pa.OSFile(str(partial / "spill.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, schema) as spill,
        (partial / "rejected.jsonl").open("w", encoding="utf-8", errors="backslashreplace") as rejected,
    ):
        began, checked = time.monotonic(), False
        for encoded in map_chunks(
            Encoder, worker, _split_into_chunks(files, bar, allow_damaged, allow_skipped), num_workers
        ):
            if encoded.sample and not checked:
                _check_joins(tokenizer, encoded.sample)
                checked = True
            if encoded.rows is not None:
                spill.write_batch(pa.ipc.read_record_batch(encoded.rows, schema))
            for entry in encoded.rejected:
                rejected.write(json.dumps(entry, ensure_ascii=False) + "\n")
            tally.add(encoded.tally)
            megabytes = tally.counts["characters read"] / 1e6
            bar.set_postfix_str(f"{megabytes / (time.monotonic() - began):.2f} MB/s", refresh=False)
            bar.update(encoded.tally.counts["documents read"])
    if not tally.counts["documents kept"]:
        reason = _explain_nothing_kept(tally, partial / "rejected.jsonl")
        raise KinspanError(f"no document was kept of {len(files)} input files: {reason}")
    return tally


def _check_joins(tokenizer: Any, sentences: list[str]) -> None:
    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    tokenizers.check_joins(encode, sentences, tokenizers.shorten_name(tokenizer.name_or_path))


def _explain_nothing_kept(tally: Tally, rejected: Path) -> str:
    reasons = {k: n for k, n in tally.counts.items() if n and k.startswith(("documents ", "records "))}
    said = ", ".join(f"{n} {name}" for name, n in reasons.items()) or "they are empty"
    with rejected.open(encoding="utf-8") as file:
        line = file.readline()
    if line:
        entry = json.loads(line)
        said += f"; first: {entry['file']} line {entry['line']}: {entry['reason']}"
    return said


def _make_manifest(
    shards: list[ShardInfo], tokenizer: dict, settings: dict, tally: Tally, inputs: list[str], licence: str
) -> Manifest:
    totals = {
        k: sum(getattr(s, k) for s in shards) for k in ("documents", "paragraphs", "sentences", "tokens", "bytes")
    }
    sources = []
    for name, counts in sorted(tally.sources.items()):
        known, origin = LICENCES.get(name, (licence or "not stated", name))
        sources.append({"name": name, "licence": known, "origin": origin, **counts})
    fingerprint = fingerprint_corpus(shards, tokenizer["fingerprint"])
    return Manifest(tokenizer, settings, sources, shards, totals, fingerprint)
