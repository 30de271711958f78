"""Builds train.tsv, dev.tsv and test.tsv of ASNQ from the files of Natural Questions, in worker processes."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.executors import map_chunks
from data_pipeline.core.files import make_folder
from data_pipeline.core.progress import show_progress
from data_pipeline.prepare.document import Unreadable
from data_pipeline.prepare.encode import cut_chunks
from data_pipeline.prepare.read import MAX_REJECTED, ReadTally, refuse_rejected
from data_pipeline.prepare.readers.compression import COMPRESSED_SUFFIXES
from data_pipeline.prepare.readers.files import expand_glob
from data_pipeline.prepare.readers.reader import Record
from data_pipeline.prepare.readers.registry import read_records

from .natural_questions import KEPT, LABELS, OUTCOMES, BuiltQuestion, build_chunk

REPEATED = "asked before: the first one counts"


@dataclass
class QuestionTally:
    """Counts the questions of a set of files by outcome, and the sentences and questions of each split.

    first_rejected: the first line that is not in the form of Natural Questions, and what is wrong with it
    read:           counts of all lines and bytes, and of the rejected ones by file
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    labels: dict[str, Counter[int]] = field(default_factory=dict)
    questions: Counter[str] = field(default_factory=Counter)
    first_rejected: str = ""
    read: ReadTally = field(default_factory=ReadTally)


def build_asnq(
    train: list[str], dev: list[str], output: str | Path, num_workers: int = 1, max_rejected: float = MAX_REJECTED
) -> dict[str, QuestionTally]:
    """Writes train.tsv from the ``train`` files, dev.tsv and test.tsv from halves of ``dev``; one list may be empty.

    max_rejected: the share of the bytes that may be rejected, see data_pipeline/prepare/read.py

    Questions are in the order of the files, whatever the number of workers. Each file is written atomically.
    Returns a QuestionTally for "train" and for "dev".
    """
    folder = Path(output)
    inputs = {flag: _find_inputs(flag, names) for flag, names in (("train", train), ("dev", dev)) if names}
    if not inputs:
        raise KinspanError("--train and --dev are both missing: name the files of Natural Questions")
    tallies = {name: QuestionTally() for name in inputs}
    splits = ("train",) * ("train" in inputs) + ("dev", "test") * ("dev" in inputs)
    temporary = {split: folder / f"{split}.tsv.tmp" for split in splits}
    make_folder(folder)
    try:
        with ExitStack() as stack:
            files = {split: stack.enter_context(path.open("wb")) for split, path in temporary.items()}
            for name, tally in tallies.items():
                kept = _build(name, inputs[name], num_workers, max_rejected, tally)
                for split, question in _divide(kept) if name == "dev" else (("train", q) for q in kept):
                    files[split].write(question.lines)
                    tally.questions[split] += 1
                    tally.labels.setdefault(split, Counter()).update(dict(zip(LABELS, question.counts, strict=True)))
        for split, path in temporary.items():
            path.replace(folder / f"{split}.tsv")
    except OSError as error:
        raise KinspanError(f"--output_dir {folder} cannot be written: {error.strerror or error}") from error
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)
    return tallies


def _find_inputs(flag: str, names: list[str]) -> list[Path]:
    """Returns the files that a flag names: paths, globs, or folders with .jsonl files, compressed or not."""
    kinds = (".jsonl", *(f".jsonl{c}" for c in COMPRESSED_SUFFIXES))
    files: dict[Path, None] = {}
    for name in names:
        for path in map(Path, expand_glob(name) or [name]):
            inside = [p for p in sorted(path.iterdir()) if p.name.endswith(kinds)] if path.is_dir() else [path]
            if not inside or not inside[0].is_file():
                raise KinspanError(f"--{flag} {name}: no such file, or a folder without .jsonl files")
            files.update(dict.fromkeys(inside))
    return list(files)


def _read(files: list[Path]) -> Iterator[Record]:
    for path in files:
        for record in read_records(f"jsonl:{path}"):
            if isinstance(record.content, Unreadable):
                raise KinspanError(f"{path} line {record.line}: {record.content}")
            yield replace(record, file=str(path))


def _build(
    name: str, files: list[Path], num_workers: int, max_rejected: float, tally: QuestionTally
) -> Iterator[BuiltQuestion]:
    """Yields each kept question, in order. Raises KinspanError if none is kept, or too much is rejected."""
    seen: set[bytes] = set()
    chunks = map_chunks(build_chunk, cut_chunks(_read(files)), num_workers)
    for built in show_progress(name, "chunks", chunks):
        for question in built:
            if question.outcome not in OUTCOMES:
                reason = f"line {question.number}: {question.outcome}"
                tally.read.reject(question.file, question.size, reason)
                tally.first_rejected = tally.first_rejected or f"{question.file} {reason}"
                continue
            tally.read.count(question.size)
            digest = _hash_question(question.question)
            is_repeated = question.outcome == KEPT and digest in seen
            tally.outcomes[REPEATED if is_repeated else question.outcome] += 1
            if question.outcome == KEPT and not is_repeated:
                seen.add(digest)
                yield question
    if not seen:
        raise KinspanError(f"--{name}: no question was kept: {dict(tally.outcomes)} {tally.first_rejected}")
    refuse_rejected(tally.read, max_rejected)


def _hash_question(question: str) -> bytes:
    return hashlib.blake2b(question.encode(), digest_size=16).digest()


def _divide(kept: Iterator[BuiltQuestion]) -> Iterator[tuple[str, BuiltQuestion]]:
    """Yields the few thousand questions of the development set with their splits: a hash puts half into dev."""
    questions = list(kept)
    order = sorted(range(len(questions)), key=lambda k: _hash_question(questions[k].question))
    to_dev = set(order[: (len(order) + 1) // 2])
    for k, question in enumerate(questions):
        yield "dev" if k in to_dev else "test", question
