"""Builds train.tsv, dev.tsv and test.tsv of ASNQ from the files of Natural Questions, in worker processes."""

import glob
import hashlib
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from data_pipeline.errors import KinspanError, quote_error
from data_pipeline.executors import check_workers, map_chunks
from data_pipeline.files import make_folder
from data_pipeline.prepare.readers.compression import COMPRESSED_SUFFIXES, open_decompressed
from data_pipeline.prepare.rejection import ReadTally, refuse_rejected
from data_pipeline.progress import show_progress
from finetune.data.tables import read_lines

from .natural_questions import LABELS, build_chunk

CHUNK_BYTES = 4_000_000  # how much a worker is given at a time
REPEATED = "asked before: the first one counts"
NOT_LISTED = "in neither list of --split_questions"


@dataclass
class QuestionTally:
    """What became of the questions of one set of files.

    outcomes:       number of questions by outcome: kept, or why not
    labels:         number of sentences with each label, by split
    questions:      number of questions of each split
    rejected:       number of lines that are not of the form of Natural Questions
    first_rejected: where the first of them is, and what is wrong with it
    read:           how many bytes they are, and of which files
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    labels: dict[str, Counter[int]] = field(default_factory=dict)
    questions: Counter[str] = field(default_factory=Counter)
    rejected: int = 0
    first_rejected: str = ""
    read: ReadTally = field(default_factory=ReadTally)


def build_asnq(
    train: list[str],
    dev: list[str],
    output: str | Path,
    num_workers: int = 1,
    split_questions: list[str] | None = None,
    allow_rejected: float | None = None,
) -> dict[str, QuestionTally]:
    """Writes train.tsv from the ``train`` files, and dev.tsv and test.tsv from ``dev``; one list may be empty.

    split_questions: two files with the questions of dev and of test, one per line, as Soldaini and Moschitti, 2020,
                     published theirs (unique.dev and unique.test). Without them, the questions are ordered by a hash
                     and halved
    allow_rejected: the share of the bytes that may be rejected, see data_pipeline/prepare/rejection.py

    Questions stand in the order of the files, whatever the number of workers. A file is written whole or not at all.

    Returns a QuestionTally for "train" and for "dev". Raises KinspanError, naming the flag or the file and line, for a
    file that is missing or cannot be read or written, where no question is kept, and where too much is rejected.
    """
    folder = Path(output)
    inputs = {flag: _find_inputs(flag, names) for flag, names in (("train", train), ("dev", dev)) if names}
    if not inputs:
        raise KinspanError("--train and --dev are both missing: name the files of Natural Questions")
    if split_questions and "dev" not in inputs:
        raise KinspanError("--split_questions divides the questions of --dev, which is missing")
    check_workers(num_workers)
    lists = _read_lists(split_questions or [])
    temporary = {name: folder / f"{name}.tsv.tmp" for name in ("train", "dev", "test", "undivided")}
    tallies: dict[str, QuestionTally] = {}
    make_folder(folder)
    try:
        if "train" in inputs:
            with temporary["train"].open("wb") as file:
                write = partial(_write_train, file)
                tallies["train"] = _build("train", inputs["train"], num_workers, write, allow_rejected)
        if "dev" in inputs:
            with temporary["undivided"].open("w+b") as file:
                kept: list[tuple[str, int, list[int]]] = []
                write = partial(_write_undivided, file, kept)
                tallies["dev"] = _build("dev", inputs["dev"], num_workers, write, allow_rejected)
                _divide(file, kept, lists, temporary, tallies["dev"])
        for name in ("train",) * ("train" in inputs) + ("dev", "test") * ("dev" in inputs):
            temporary[name].replace(folder / f"{name}.tsv")
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
        found = [Path(p) for p in sorted(glob.glob(name, recursive=True))] or [Path(name)]
        for path in found:
            inside = [p for p in sorted(path.iterdir()) if p.name.endswith(kinds)] if path.is_dir() else [path]
            if not inside or not inside[0].is_file():
                raise KinspanError(f"--{flag} {name}: no such file, or a folder without .jsonl files")
            files.update(dict.fromkeys(inside))
    return list(files)


def _read_lists(names: list[str]) -> dict[str, str]:
    """Returns the split of each question that the two files list."""
    if len(names) not in (0, 2):
        raise KinspanError("--split_questions takes two files: the questions of dev, and those of test")
    lists: dict[str, str] = {}
    for split, name in zip(("dev", "test"), names, strict=False):
        for line, question in read_lines(Path(name)):
            question = " ".join(question.split())
            if question and lists.setdefault(question, split) != split:
                raise KinspanError(f"--split_questions {name} line {line}: this question is in the other list too")
        if split not in lists.values():
            raise KinspanError(f"--split_questions {name}: it lists no question")
    return lists


def _read_chunks(files: list[Path], bar: Any) -> Iterator[list[tuple[str, int, bytes]]]:
    """Yields (file, line number, line) in chunks of about CHUNK_BYTES, across files."""
    chunk: list[tuple[str, int, bytes]] = []
    size = 0
    for count, path in enumerate(files, 1):
        bar.set_postfix_str(f"file {count} of {len(files)}: {path.name}", refresh=False)
        number = 0
        try:
            with open_decompressed(path) as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        chunk.append((str(path), number, line))
                        size += len(line)
                    if size >= CHUNK_BYTES:
                        yield chunk
                        chunk, size = [], 0
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise KinspanError(f"{path} line {number + 1}: cannot read on: {quote_error(error)}") from error
    if chunk:
        yield chunk


def _write_train(file: IO[bytes], tally: QuestionTally, question: str, lines: bytes, counts: list[int]) -> None:
    file.write(lines)
    _count_question(tally, "train", counts)


def _write_undivided(
    file: IO[bytes], kept: list, tally: QuestionTally, question: str, lines: bytes, counts: list[int]
) -> None:
    file.write(lines)
    kept.append((question, len(lines), counts))


def _count_question(tally: QuestionTally, split: str, counts: list[int]) -> None:
    tally.questions[split] += 1
    tally.labels.setdefault(split, Counter()).update(dict(zip(LABELS, counts, strict=True)))


def _build(
    name: str, files: list[Path], num_workers: int, write: Callable[..., None], allow_rejected: float | None
) -> QuestionTally:
    """Passes each kept question to ``write``, in order.

    Raises KinspanError where no question is kept, and where too much is rejected.
    """
    tally, seen = QuestionTally(), set[bytes]()
    with show_progress(name, "questions") as bar:
        for built in map_chunks(_make_worker, (), _read_chunks(files, bar), num_workers):
            tally.outcomes.update(built.outcomes)
            for file, size, reason in built.read:
                tally.read.count(file, not reason, size, reason, is_rejected=bool(reason))
            for file, line, reason in built.rejected:
                tally.first_rejected = tally.first_rejected or f"{file} line {line}: {reason}"
                tally.rejected += 1
            for question, lines, counts in built.questions:
                digest = _hash_question(question)
                if digest in seen:
                    tally.outcomes.update({REPEATED: 1, "kept": -1})
                    continue
                seen.add(digest)
                write(tally, question, lines, counts)
            bar.update(sum(built.outcomes.values()) + len(built.rejected))
    if not seen:
        reasons = [f"{n:,} {reason}" for reason, n in tally.outcomes.items() if n]
        reasons += [f"{tally.rejected:,} bad lines; first: {tally.first_rejected}"] if tally.rejected else []
        raise KinspanError(f"--{name}: no question was kept of {len(files)} files: {', '.join(reasons) or 'empty'}")
    refuse_rejected(tally.read, allow_rejected, f"--{name}")
    return tally


def _make_worker() -> Callable[..., Any]:
    return build_chunk


def _hash_question(question: str) -> bytes:
    return hashlib.blake2b(question.encode(), digest_size=16).digest()


def _divide(
    file: IO[bytes],
    kept: list[tuple[str, int, list[int]]],
    lists: dict[str, str],
    temporary: dict,
    tally: QuestionTally,
) -> None:
    """Divides the questions of ``file`` among dev and test."""
    if lists:
        split_of = [lists.get(question) for question, _, _ in kept]
    else:
        order = sorted(range(len(kept)), key=lambda k: _hash_question(kept[k][0]))
        to_dev = set(order[: (len(kept) + 1) // 2])
        split_of = ["dev" if k in to_dev else "test" for k in range(len(kept))]
    file.seek(0)
    with temporary["dev"].open("wb") as dev, temporary["test"].open("wb") as test:
        for split, (_, size, counts) in zip(split_of, kept, strict=True):
            lines = file.read(size)
            if split is None:
                tally.outcomes.update({NOT_LISTED: 1, "kept": -1})
            else:
                (dev if split == "dev" else test).write(lines)
                _count_question(tally, split, counts)
    empty = [split for split in ("dev", "test") if not tally.questions[split]]
    if lists and empty:
        raise KinspanError(f"--split_questions: no question of the list of {empty[0]} is among those of --dev")
