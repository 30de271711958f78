"""The first stage: an input task is read, cleaned and tokenised, and its documents are put into buckets."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .benchmark import Benchmark
from .cleaning import Rules, Tally
from .duplicates.near import write_signatures
from .encode import Encoder
from .inputs import InputTask, read_tasks
from .readers import SKIPPED, UNREADABLE
from .readers.reader import Record, measure_content
from .rejection import ReadTally
from .spill import SpillWriter, is_written
from .tasks import Progress, measure_peak

THREADS = "TOKENIZERS_PARALLELISM"
CHUNK_BYTES = 1 << 20  # of raw records that are encoded together


@dataclass(frozen=True)
class EncodeInputs:
    """Encodes the input task of a number, unless that was done before. It can be sent to another process or machine.

    tasks:      the file of the input tasks
    output:     the folder of what they leave, see ``spill``
    tokenizer:  its file
    name:       of the tokenizer, for an error
    benchmark:  the file of sentences whose documents are dropped, a line each; None where there are none
    signatures: whether signatures are made by which near-duplicates are found
    """

    tasks: Path
    output: Path
    tokenizer: Path
    name: str
    rules: Rules
    wide: bool
    benchmark: Path | None
    signatures: bool

    def __call__(self, number: int, progress: Progress) -> None:
        task = read_tasks(self.tasks)[number]
        if is_written(self.output, task.key):
            return
        writer = SpillWriter(self.output, task.key, self.wide)
        unread: set[str] = set()
        tally, read = Tally(), ReadTally(piece.file.name for piece in task.pieces if piece.part)
        with use_one_thread():
            texts = self._encode(task, writer, tally, read, unread, progress)
            if self.signatures:
                self._write_signatures(task, texts)
            else:
                for _ in texts:
                    pass
        facts = {"tally": vars(tally), "read": read.to_json(), "unread": sorted(unread), "peak_bytes": measure_peak()}
        writer.finish(facts)

    def _encode(
        self,
        task: InputTask,
        writer: SpillWriter,
        tally: Tally,
        read: ReadTally,
        unread: set[str],
        progress: Progress,
    ) -> Iterator[str]:
        """Yield the text of each kept document, after it was put where it belongs."""
        encoder = get_encoder(self)
        for chunk in cut_chunks(task.read()):
            encoded = encoder(chunk, read)
            tally.add(encoded.tally)
            writer.reject(encoded.rejected)
            unread |= find_unread(encoded.rejected)
            if encoded.rows is not None:
                writer.add(encoded.rows, encoded.documents, encoded.paragraphs)
            progress.add(encoded.tally.counts["documents read"])
            yield from ("\n".join(paragraphs) for paragraphs in encoded.texts)

    def _write_signatures(self, task: InputTask, texts: Iterator[str]) -> None:
        folder = signature_folder(self.output, task.key)
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


_encoders: dict[str, Encoder] = {}  # one at most, by the settings that it was made for


def get_encoder(settings: EncodeInputs) -> Encoder:
    """Get the encoder that all tasks of a process share."""
    if repr(settings) not in _encoders:
        benchmark = None
        if settings.benchmark:
            benchmark = Benchmark(settings.benchmark.read_text(encoding="utf-8").split("\n"))
        tokenizer = settings.tokenizer.read_text(encoding="utf-8")
        _encoders.clear()
        _encoders[repr(settings)] = Encoder(tokenizer, settings.name, settings.rules, settings.wide, benchmark)
    return _encoders[repr(settings)]


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
