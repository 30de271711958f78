"""Natural Questions' files -> train.tsv, dev.tsv and test.tsv of ASNQ, in worker processes."""

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

from tqdm import tqdm

from data_pipeline.errors import KinspanError, one_line
from data_pipeline.executors import check_workers, local
from data_pipeline.prepare.readers.compression import COMPRESSED_SUFFIXES, open_decompressed

from .natural_questions import LABELS, build_chunk
from .tables import text_lines

CHUNK_BYTES = 4_000_000  # of lines given to a worker at a time
REPEATED = "asked before: the first one counts"
NOT_LISTED = "in neither list of --split_questions"

# Garg et al., 2020, table 1: sentences of each label; its development set is dev and test here
TANDA_TABLE_1 = {
    "train": {1: 19_446_120, 2: 428_122, 3: 442_140, 4: 61_186},
    "dev": {1: 870_404, 2: 25_814, 3: 29_558, 4: 4_286},
}


@dataclass
class Tally:
    """Of one set of files.

    outcomes:  how many questions were kept, or why they were not
    labels:    how many sentences have each label, by split
    questions: of each split
    rejected:  how many lines are not of the data, and ``first_rejected`` the first of them
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    labels: dict[str, Counter[int]] = field(default_factory=dict)
    questions: Counter[str] = field(default_factory=Counter)
    rejected: int = 0
    first_rejected: str = ""


def build_asnq(
    train: list[str],
    dev: list[str],
    output: str | Path,
    num_workers: int = 1,
    split_questions: list[str] | None = None,
) -> dict[str, Tally]:
    """Writes train.tsv from the ``train`` files, dev.tsv and test.tsv from the ``dev`` files; either may be none.

    split_questions: two files, the questions of dev and those of test, one a line, as Soldaini and Moschitti, 2020,
                     publish theirs: unique.dev, unique.test. Without them questions are ordered by a hash, and halved

    Questions stand in the order of the files, whatever the number of workers. Files are there whole or not at all.

    Returns a Tally of "train" and of "dev". Raises KinspanError.
    """
    folder = Path(output)
    inputs = {flag: _files(flag, names) for flag, names in (("train", train), ("dev", dev)) if names}
    if not inputs:
        raise KinspanError("--train and --dev are both missing: name the files of Natural Questions")
    check_workers(num_workers)
    lists = _read_lists(split_questions or [])
    temporary = {name: folder / f"{name}.tsv.tmp" for name in ("train", "dev", "test", "undivided")}
    tallies: dict[str, Tally] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KinspanError(f"--output {folder} cannot be made: {error.strerror}") from error
    try:
        if "train" in inputs:
            with temporary["train"].open("wb") as file:
                tallies["train"] = _build("train", inputs["train"], num_workers, partial(_write_one, file))
        if "dev" in inputs:
            with temporary["undivided"].open("w+b") as file:
                kept: list[tuple[str, int, list[int]]] = []
                tallies["dev"] = _build("dev", inputs["dev"], num_workers, partial(_write_undivided, file, kept))
                _divide(file, kept, lists, temporary, tallies["dev"])
        for name in ("train",) * ("train" in inputs) + ("dev", "test") * ("dev" in inputs):
            temporary[name].replace(folder / f"{name}.tsv")
    except OSError as error:
        raise KinspanError(f"--output {folder} cannot be written: {error.strerror or error}") from error
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)
    return tallies


def _files(flag: str, names: list[str]) -> list[Path]:
    """The files that a flag names: paths, globs, or folders with .jsonl files, compressed or not."""
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
    """The split of each question that the two files list."""
    if len(names) not in (0, 2):
        raise KinspanError("--split_questions takes two files: the questions of dev, and those of test")
    lists: dict[str, str] = {}
    for split, name in zip(("dev", "test"), names, strict=False):
        for line, question in text_lines(Path(name)):
            question = " ".join(question.split())
            if lists.setdefault(question, split) != split:
                raise KinspanError(f"--split_questions {name} line {line}: this question is in the other list too")
    return lists


def _chunks(files: list[Path], bar: Any) -> Iterator[list[tuple[str, int, bytes]]]:
    """Lines in chunks of about CHUNK_BYTES, across files."""
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
            raise KinspanError(f"{path} line {number + 1}: cannot read on: {one_line(error)}") from error
    if chunk:
        yield chunk


def _write_one(file: IO[bytes], tally: Tally, question: str, lines: bytes, counts: list[int]) -> None:
    file.write(lines)
    _count(tally, "train", counts)


def _write_undivided(file: IO[bytes], kept: list, tally: Tally, question: str, lines: bytes, counts: list[int]) -> None:
    file.write(lines)
    kept.append((question, len(lines), counts))


def _count(tally: Tally, split: str, counts: list[int]) -> None:
    tally.questions[split] += 1
    tally.labels.setdefault(split, Counter()).update(dict(zip(LABELS, counts, strict=True)))


def _build(name: str, files: list[Path], num_workers: int, write: Callable[..., None]) -> Tally:
    """Hands each kept question to ``write``, in order. Raises KinspanError where there is none."""
    tally, seen = Tally(), set[bytes]()
    with tqdm(desc=name, unit=" questions", mininterval=1.0, disable=None) as bar:
        for built in local(_worker, (), _chunks(files, bar), num_workers):
            tally.outcomes.update(built.outcomes)
            for file, line, reason in built.rejected:
                tally.first_rejected = tally.first_rejected or f"{file} line {line}: {reason}"
                tally.rejected += 1
            for question, lines, counts in built.questions:
                digest = _digest(question)
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
    return tally


def _worker() -> Callable[..., Any]:
    return build_chunk


def _digest(question: str) -> bytes:
    return hashlib.blake2b(question.encode(), digest_size=16).digest()


def _divide(
    file: IO[bytes], kept: list[tuple[str, int, list[int]]], lists: dict[str, str], temporary: dict, tally: Tally
) -> None:
    """Shares the questions of ``file`` out to dev and test."""
    if lists:
        split_of = [lists.get(question) for question, _, _ in kept]
    else:
        order = sorted(range(len(kept)), key=lambda k: _digest(kept[k][0]))
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
                _count(tally, split, counts)
    empty = [split for split in ("dev", "test") if not tally.questions[split]]
    if lists and empty:
        raise KinspanError(f"--split_questions: no question of the list of {empty[0]} is among those of --dev")
