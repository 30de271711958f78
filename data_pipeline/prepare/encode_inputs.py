"""The first stage: an input task is read, cleaned and tokenised, and its documents are put into buckets."""

import os
import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from .benchmark import Benchmark
from .cleaning import Tally
from .document import SKIPPED, UNREADABLE
from .duplicates.near import write_signatures
from .encode import Encoder
from .plan import load_plan
from .readers.reader import Record, measure_content
from .rejection import ReadTally
from .spill import SpillWriter, is_written
from .tasks import Progress, measure_peak

THREADS = "TOKENIZERS_PARALLELISM"
CHUNK_BYTES = 1 << 20  # of raw records that are encoded together


def encode_inputs(plan_file: Path, number: int, progress: Progress) -> None:
    """Encode the input task of a number, unless that was done before. ``plan_file`` is of a PreparePlan."""
    plan = load_plan(plan_file)
    task = plan.tasks[number]
    if is_written(plan.encoded, task.key):
        return
    writer = SpillWriter(plan.encoded, task.key, plan.wide)
    unread: set[str] = set()
    tally, read = Tally(), ReadTally(piece.file.name for piece in task.pieces if piece.part)

    def encode() -> Iterator[str]:
        """Yield the text of each kept document, after it was put where it belongs."""
        encoder = load_encoder(plan_file)
        for chunk in cut_chunks(task.read()):
            encoded = encoder(chunk, read)
            tally.add(encoded.tally)
            writer.reject(encoded.rejected)
            unread.update(find_unread(encoded.rejected))
            if encoded.rows is not None:
                writer.add(encoded.rows, encoded.documents, encoded.paragraphs)
            progress.add(encoded.tally.counts["documents read"])
            yield from ("\n".join(paragraphs) for paragraphs in encoded.texts)

    with use_one_thread():
        if plan.near:
            _write_signatures(signature_folder(plan.encoded, task.key), encode())
        else:
            deque(encode(), maxlen=0)
    facts = {"tally": vars(tally), "read": read.to_json(), "unread": sorted(unread), "peak_bytes": measure_peak()}
    writer.finish(facts)


def _write_signatures(folder: Path, texts: Iterator[str]) -> None:
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(partial, ignore_errors=True)
    write_signatures(texts, partial)
    shutil.rmtree(folder, ignore_errors=True)  # of a task that was killed between this and its end
    partial.replace(folder)


def find_unread(rejected: list[dict]) -> set[str]:
    """Name how text is missing that another try might read: the rest of a file, or a file in an archive."""
    return {kind for kind in (SKIPPED, UNREADABLE) for entry in rejected if entry["reason"].startswith(kind)}


def signature_folder(output: Path, key: str) -> Path:
    return output / f"{key}.signatures"


@lru_cache(maxsize=1)
def load_encoder(plan_file: Path) -> Encoder:
    """Load the encoder that all tasks of a process share."""
    plan = load_plan(plan_file)
    sentences = [" ".join(sentence.split()) for sentence in plan.decontaminate]
    tokenizer = plan.tokenizer_file.read_text(encoding="utf-8")
    return Encoder(tokenizer, plan.tokenizer_name, plan.rules, plan.wide, Benchmark(sentences) if sentences else None)


def cut_chunks(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Cut records into chunks of about CHUNK_BYTES."""
    chunk: list[Record] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += measure_content(record.content)
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Let the tokenizer work in one thread: there is a process for each core."""
    before = os.environ.get(THREADS)
    os.environ[THREADS] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREADS]
        else:
            os.environ[THREADS] = before
