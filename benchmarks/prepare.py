"""Measures ``prepare`` against blingfire and the tokenizer alone, two workers against one, and memory by input size.

The baseline does the two things that cannot be saved: in one thread, with the documents already parsed and
cleaned in memory, it splits each kept paragraph into sentences and encodes them, about 1 MB of text at a time
and by the call that ``prepare`` uses. It reads, parses, cleans, hashes, shuffles and writes nothing.
``prepare`` is timed from its files to the finished corpus, the start of its workers included, in a new process;
the import of ``transformers`` is not. One worker is one process that does everything. All three take turns;
medians count. Then, once each: near-duplicates too; and 1, 4 and 16 times --memory_mb of text, two workers.

The projection takes the processor time of two workers, starts included, as what each of 64 cores needs for as much
text; it holds for text that is extracted, as the input is, and disks that keep up.

Bars: one worker within 1.3 times the baseline; two workers at least 1.8 times as fast as one; a worker's memory
below 1 GB, whatever the input's size."""

import contextlib
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from benchmarks import _common
from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.cleaning import Rules, Tally, clean, split_sentences
from data_pipeline.prepare.document import Document, Rejected
from data_pipeline.prepare.pipeline import prepare
from data_pipeline.prepare.readers import find_input_files, parse_record, read_records
from data_pipeline.tokenizers import load_tokenizer, serialize_backend
from objectives import OBJECTIVES

TEXTS = _common.ROOT.parent / "shared/data/corpus"
INPUTS = [str(TEXTS / f"enwiki2015_{part}.jsonl.xz") for part in ("AA", "AB")]
TOKENIZER = _common.ROOT.parent / "shared/tokenizers/roberta-base-tokenizer"
CHUNK_CHARS = 1 << 20
ALONE, ONE, TWO = "blingfire and tokenizer alone", "prepare, 1 worker", "prepare, 2 workers"
NEAR = "prepare, 2 workers, near-duplicates"
SIZES = (1, 4, 16)
TARGET_BYTES, TARGET_CORES = 409e9, 64  # the texts of Di Liello et al. (2022), section 5.1, and a small cluster

EPILOG = """example:
  python benchmarks/prepare.py --input enwiki2015_AA.jsonl.xz enwiki2015_AB.jsonl.xz --tokenizer roberta-base
  python benchmarks/prepare.py --input docs.jsonl --tokenizer path/to/model --rounds 1 --memory_mb 5"""


@dataclass(frozen=True)
class Timed:
    """Seconds by the clock and of processors, tokens, and of ``prepare`` the seconds of stages and peaks in bytes."""

    wall: float
    cpu: float
    tokens: int
    stages: dict[str, float]
    peaks: list[int]


def read_documents(paths: list[str]) -> list[Document]:
    """The documents of the files, parsed; what ``prepare`` rejects is left out."""
    found: list[Document] = []
    for file in find_input_files(paths)[0]:
        for record in read_records(file.name):
            with contextlib.suppress(Rejected):
                found += parse_record(record)
    return found


def time_alone(tokenizer_json: str, paragraphs: list[str]) -> Timed:
    """Sentence splitting and tokenising alone."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.encode_special_tokens = True
    split_sentences("Loads the library.")
    began, cpu = time.perf_counter(), time.process_time()
    tokens = chars = 0
    sentences: list[str] = []

    def encode() -> int:
        return sum(len(e.ids) for e in tokenizer.encode_batch_fast(sentences, add_special_tokens=False))

    for paragraph in paragraphs:
        sentences += split_sentences(paragraph)
        chars += len(paragraph)
        if chars >= CHUNK_CHARS:
            tokens += encode()
            sentences, chars = [], 0
    tokens += encode()
    return Timed(time.perf_counter() - began, time.process_time() - cpu, tokens, {}, [])


def time_prepare(paths: list[str], tokenizer: str, num_workers: int, duplicates: str = "exact") -> Timed:
    """A whole run of ``prepare``."""
    load_tokenizer(tokenizer)  # imports transformers
    before = count_cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        done = prepare(paths, tokenizer, folder, OBJECTIVES, num_workers=num_workers, duplicates=duplicates, quiet=True)
    cpu = count_cpu_seconds() - before
    return Timed(done.seconds, cpu, done.manifest.totals["tokens"], done.stages, done.peak_bytes)


def count_cpu_seconds() -> float:
    """Of this process and of its ended children: ``prepare`` waits for its workers."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def write_text(documents: list[Document], path: Path, size: float) -> None:
    """Write JSON lines of about ``size`` bytes; documents that come again differ in each paragraph."""
    written = 0
    with path.open("w", encoding="utf-8") as file:
        for number, document in enumerate(cycle(documents)):
            again = f" ({number // len(documents)})" if number >= len(documents) else ""
            paragraphs = [paragraph + again for paragraph in document.paragraphs]
            written += file.write(json.dumps({"id": str(number), "paragraphs": paragraphs}, ensure_ascii=False) + "\n")
            if written >= size:
                return


def measure_memory(documents: list[Document], tokenizer: str, base: float) -> dict[int, Timed]:
    """The peaks of two workers' memory, by how many times ``base`` bytes of text they read."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            path = Path(folder) / "text.jsonl"
            write_text(documents, path, size * base)
            found[size] = _common.in_fresh_process(time_prepare, [str(path)], tokenizer, 2)
    return found


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--input", nargs="+", default=INPUTS, help="Documents; two files of about the same size.")
    parser.add_argument("--tokenizer", default=str(TOKENIZER), help="Hub name or folder.")
    parser.add_argument("--rounds", type=int, default=3, help="Times that each is measured.")
    parser.add_argument("--memory_mb", type=float, default=25.0, help="Megabytes of text that memory is measured with.")
    args = parser.parse_args()
    if args.rounds < 1 or args.memory_mb <= 0:
        raise KinspanError("--rounds and --memory_mb: give more than 0")
    documents, tally = read_documents(args.input), Tally()
    paragraphs = [p for d in documents for p in clean(d, Rules(), tally)]
    chars = sum(map(len, paragraphs))
    few = list(islice(documents, 5000))
    del documents
    tokenizer_json = serialize_backend(load_tokenizer(args.tokenizer))
    spent: dict[str, list[Timed]] = {name: [] for name in (ALONE, ONE, TWO)}
    for _ in range(args.rounds):
        spent[ALONE].append(_common.in_fresh_process(time_alone, tokenizer_json, paragraphs))
        spent[ONE].append(_common.in_fresh_process(time_prepare, args.input, args.tokenizer, 1))
        spent[TWO].append(_common.in_fresh_process(time_prepare, args.input, args.tokenizer, 2))
    spent[NEAR] = [_common.in_fresh_process(time_prepare, args.input, args.tokenizer, 2, "near")]
    del paragraphs
    show(spent, measure_memory(few, args.tokenizer, args.memory_mb * 1e6), chars, args.memory_mb)


def show(spent: dict[str, list[Timed]], memory: dict[int, Timed], chars: int, memory_mb: float) -> None:
    wall = {name: statistics.median(t.wall for t in times) for name, times in spent.items()}
    cpu = {name: statistics.median(t.cpu for t in times) for name, times in spent.items()}
    rows = [
        (n, f"{wall[n]:.2f}", f"{cpu[n]:.2f}", f"{chars / 1e6 / wall[n]:.2f}", f"{spent[n][0].tokens:,}") for n in spent
    ]
    _common.print_table((f"{chars / 1e6:.1f} M characters kept", "seconds", "CPU s", "MB/s", "tokens"), rows)
    over, speedup = wall[ONE] / wall[ALONE], wall[ONE] / wall[TWO]
    print(f"\nprepare takes {over:.2f} times the baseline; two workers make it {speedup:.2f} times as fast\n")

    stages = {
        name: {stage: statistics.median(t.stages[stage] for t in spent[name]) for stage in spent[name][0].stages}
        for name in (ONE, TWO, NEAR)
    }
    names = list(stages[NEAR])
    rows = [(stage, *(f"{of.get(stage, 0):.2f}" for of in stages.values())) for stage in names]
    _common.print_table(("seconds by stage", *stages), rows)
    share = stages[TWO]["shards"] / wall[TWO]
    print(f"\nshuffling and writing shards: {share:.1%} of the time with two workers\n")

    rows = [
        (f"{size} x {memory_mb:g} MB", f"{max(timed.peaks) / 1e6:.0f}", f"{timed.wall:.1f}")
        for size, timed in memory.items()
    ]
    _common.print_table(("text", "a worker's peak, MB", "seconds"), rows)
    hours = {name: project(cpu[name], chars) for name in (TWO, NEAR)}
    print(
        f"\n{TARGET_BYTES / 1e9:.0f} GB on {TARGET_CORES} cores: {hours[TWO]:.1f} hours, with near-duplicates "
        f"{hours[NEAR]:.1f}"
    )
    figures = {f"{key} seconds": value for key, value in wall.items()} | {f"{key} CPU": v for key, v in cpu.items()}
    figures |= {"characters": chars, "over_alone": over, "two_workers_speedup": speedup, "shuffle_share": share}
    figures |= {f"peak_mb_{size}x": max(timed.peaks) / 1e6 for size, timed in memory.items()}
    _common.report("prepare", figures | {"projected_hours": hours[TWO], "projected_hours_near": hours[NEAR]})


def project(cpu_seconds: float, chars: int) -> float:
    """Hours for TARGET_BYTES on TARGET_CORES, of the processor time that ``chars`` bytes of text took."""
    return cpu_seconds / TARGET_CORES * TARGET_BYTES / chars / 3600


if __name__ == "__main__":
    _common.run(main)
