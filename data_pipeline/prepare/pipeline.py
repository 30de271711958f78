"""Documents -> corpus: reads, cleans, splits, tokenises, shuffles and writes."""

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from tqdm import tqdm

from data_pipeline import tokenizers
from data_pipeline.corpus import Corpus, Manifest, ShardInfo, corpus_fingerprint, schema
from data_pipeline.errors import KinspanError
from data_pipeline.executors import check_workers, local
from data_pipeline.sampling.pairs import Objective

from .encode import Encoder, Rules, Tally
from .python_docs import python_doc_files
from .readers import PYTHON_DOCS, Record, input_files, read_records
from .write import MAX_SHARD_TOKENS, SHARD_TOKENS, write_manifest, write_shards

PARTS = ("shards", "tokenizer", "rejected.jsonl", "request.json")  # of a corpus, beside its manifest
CHUNK_BYTES = 1 << 20  # raw records handed to a worker at a time

LICENCES = {PYTHON_DOCS: ("PSF-2.0, and that of each installed package", "docstrings of Python and its packages")}


@dataclass(frozen=True)
class Prepared:
    """What a run of ``prepare`` did."""

    manifest: Manifest
    tally: Tally
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
) -> Prepared:
    """Writes a corpus folder and returns its manifest and the tally of what was kept and dropped.

    Where ``output`` already holds the corpus that the same inputs and settings gave, it is left as it is.
    Raises KinspanError where an input or the tokenizer cannot be used, or nothing is left to write.
    """
    began, folder, rules = time.monotonic(), Path(output), rules or Rules()
    _check(rules, num_workers, shard_tokens)
    files = input_files(inputs)
    tokenizer = tokenizers.load_tokenizer(tokenizer_name)
    settings = {**asdict(rules), "shard_tokens": shard_tokens}
    request = {
        "inputs": _identity(files),
        "settings": settings,
        "tokenizer": tokenizers.fingerprint(tokenizer),
    }
    old = _finished(folder, request)
    if old:
        return Prepared(old, Tally(), time.monotonic() - began, reused=True)
    partial = folder / "partial"
    _make_room(folder, partial)
    try:
        tally = _encode_all(files, tokenizer, rules, num_workers, partial, quiet)
        with tqdm(desc="writing shards", unit=" documents", total=tally.counts["documents kept"], disable=quiet) as bar:
            shards = write_shards(partial / "spill.arrow", partial, objectives, shard_tokens, bar.update)
        manifest = _manifest(shards, tokenizer, settings, tally, inputs, licence)
        (partial / "request.json").write_text(json.dumps(request))
        tokenizer.save_pretrained(str(partial / "tokenizer"))
        for name in PARTS:
            (partial / name).replace(folder / name)
        write_manifest(manifest, folder)
    except OSError as error:
        raise KinspanError(f"--output_dir {folder}: {error.strerror or error}") from error
    finally:
        if (folder / "manifest.json").exists() or not any((folder / name).exists() for name in PARTS):
            shutil.rmtree(partial, ignore_errors=True)  # else it marks what lies beside it as unfinished
    return Prepared(manifest, tally, time.monotonic() - began)


def _check(rules: Rules, num_workers: int, shard_tokens: int) -> None:
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


def _identity(files: list[Path]) -> list[list]:
    """The inputs as far as one can tell without reading them: name, size and time of change of each file."""
    names = [f for path in files for f in (python_doc_files() if str(path) == PYTHON_DOCS else [path])]
    return [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns] for f in names]


def _finished(folder: Path, request: dict) -> Manifest | None:
    """The corpus already there, if it is what this request would give and whole."""
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
    try:
        manifest = Corpus(folder).manifest
        if all((folder / s.file).stat().st_size == s.bytes for s in manifest.shards):
            return manifest
    except (KinspanError, OSError):
        pass  # it is this very corpus, damaged: made again
    (folder / "partial").mkdir(exist_ok=True)  # the mark of an unfinished corpus
    (folder / "manifest.json").unlink()
    return None


def _make_room(folder: Path, partial: Path) -> None:
    """An empty ``partial`` folder; what an interrupted run left is removed, anything else is refused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = {p.name for p in folder.iterdir()}
        others = there - {"partial", "manifest.json.tmp", *PARTS} if "partial" in there else there
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


def _chunks(files: list[Path], bar: Any) -> Iterator[list[Record]]:
    """Records in chunks of about CHUNK_BYTES, in order, across files."""
    chunk: list[Record] = []
    size = 0
    for number, path in enumerate(files):
        bar.set_postfix_str(f"file {number + 1} of {len(files)}: {path.name}", refresh=False)
        for record in read_records(path):
            chunk.append(record)
            size += len(record.content if isinstance(record.content, bytes) else str(record.content))
            if size >= CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
    if chunk:
        yield chunk


def _encode_all(files: list[Path], tokenizer: Any, rules: Rules, num_workers: int, partial: Path, quiet: bool) -> Tally:
    """Spills encoded documents and rejected records into ``partial``, with a progress bar."""
    wide = len(tokenizer) > 1 << 16
    worker = (tokenizers.backend_for_corpus(tokenizer), rules, wide)
    tally = Tally()
    with (
        tqdm(desc="tokenising", unit=" documents", mininterval=1.0, disable=quiet) as bar,
        pa.OSFile(str(partial / "spill.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, schema(wide)) as spill,
        (partial / "rejected.jsonl").open("w", encoding="utf-8", errors="backslashreplace") as rejected,
    ):
        began, checked = time.monotonic(), False
        for encoded in local(Encoder, worker, _chunks(files, bar), num_workers):
            if encoded.sample and not checked:
                _check_joins(tokenizer, encoded.sample)
                checked = True
            if encoded.rows is not None:
                spill.write_batch(pa.ipc.read_record_batch(encoded.rows, schema(wide)))
            for entry in encoded.rejected:
                rejected.write(json.dumps(entry, ensure_ascii=False) + "\n")
            tally.add(encoded.tally)
            megabytes = tally.counts["characters read"] / 1e6
            bar.set_postfix_str(f"{megabytes / (time.monotonic() - began):.2f} MB/s", refresh=False)
            bar.update(encoded.tally.counts["documents read"])
    if not tally.counts["documents kept"]:
        reason = _why_nothing(tally, partial / "rejected.jsonl")
        raise KinspanError(f"no document was kept of {len(files)} input files: {reason}")
    return tally


def _check_joins(tokenizer: Any, sentences: list[str]) -> None:
    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    tokenizers.check_joins(encode, sentences, tokenizers.describe(tokenizer)["name"])


def _why_nothing(tally: Tally, rejected: Path) -> str:
    reasons = {k: n for k, n in tally.counts.items() if n and k.startswith(("documents ", "records "))}
    said = ", ".join(f"{n} {name}" for name, n in reasons.items()) or "they are empty"
    with rejected.open(encoding="utf-8") as file:
        line = file.readline()
    if line:
        entry = json.loads(line)
        said += f"; first: {entry['file']} line {entry['line']}: {entry['reason']}"
    return said


def _manifest(
    shards: list[ShardInfo], tokenizer: Any, settings: dict, tally: Tally, inputs: list[str], licence: str
) -> Manifest:
    totals = {
        k: sum(getattr(s, k) for s in shards) for k in ("documents", "paragraphs", "sentences", "tokens", "bytes")
    }
    sources = []
    for name, counts in sorted(tally.sources.items()):
        known, origin = LICENCES.get(name, (licence or "not stated", name))
        sources.append({"name": name, "licence": known, "origin": origin, **counts})
    described = tokenizers.describe(tokenizer)
    fingerprint = corpus_fingerprint(shards, described["fingerprint"])
    return Manifest(described, settings, sources, shards, totals, fingerprint)
