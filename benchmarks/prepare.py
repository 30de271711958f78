"""Measures ``prepare`` against blingfire and the tokenizer alone, and two workers against one.

The baseline does the two things that cannot be saved: in one thread, with the documents already parsed and
cleaned in memory, it splits each kept paragraph into sentences and encodes them, about 1 MB of text at a time
and by the call that ``prepare`` uses. It reads, parses, cleans, shuffles and writes nothing.
``prepare`` is timed from its files to the finished corpus, the start of its workers included; the import of
``transformers`` is not. One worker means one process that reads and one that tokenises in a single thread.
All three take turns; medians count.

Bars: one worker within 1.3 times the baseline; two workers at least 1.7 times as fast as one."""

import contextlib
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from benchmarks import _common
from data_pipeline.errors import KinspanError
from data_pipeline.prepare.document import Document, Rejected
from data_pipeline.prepare.encode import Rules, Tally, clean
from data_pipeline.prepare.pipeline import prepare
from data_pipeline.prepare.readers import find_input_files, parse_record, read_records
from data_pipeline.tokenizers import load_tokenizer, serialize_backend
from objectives import OBJECTIVES

INPUT = _common.ROOT.parent / "shared/data/corpus/enwiki2015_AA.jsonl.xz"
TOKENIZER = _common.ROOT.parent / "shared/tokenizers/roberta-base-tokenizer"
CHUNK_CHARS = 1 << 20
ALONE, ONE, TWO = "blingfire and tokenizer alone", "prepare, 1 worker", "prepare, 2 workers"

EPILOG = """example:
  python benchmarks/prepare.py --input enwiki2015_AA.jsonl.xz --tokenizer roberta-base
  python benchmarks/prepare.py --input docs.jsonl --tokenizer path/to/model --documents 500 --rounds 1"""


def documents_of(path: str, most: int | None) -> list[Document]:
    """The first documents of a file, parsed; what ``prepare`` rejects is left out."""
    found: list[Document] = []
    for record in read_records(find_input_files([path])[0][0]):
        if most is not None and len(found) >= most:
            break
        with contextlib.suppress(Rejected):
            found += parse_record(record)
    return found[:most]


def baseline(tokenizer_json: str, paragraphs: list[str]) -> tuple[float, float, int]:
    """Wall and CPU seconds of sentence splitting and tokenising alone, and how many tokens it gave."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import blingfire
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.encode_special_tokens = True
    began, cpu = time.perf_counter(), time.process_time()
    tokens = chars = 0
    sentences: list[str] = []

    def encode() -> int:
        return sum(len(e.ids) for e in tokenizer.encode_batch_fast(sentences, add_special_tokens=False))

    for paragraph in paragraphs:
        sentences += blingfire.text_to_sentences(paragraph).split("\n")
        chars += len(paragraph)
        if chars >= CHUNK_CHARS:
            tokens += encode()
            sentences, chars = [], 0
    tokens += encode()
    return time.perf_counter() - began, time.process_time() - cpu, tokens


def timed_prepare(path: str, tokenizer: str, num_workers: int) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds of this process and its workers, and tokens in the corpus."""
    before = cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        done = prepare([path], tokenizer, folder, OBJECTIVES, num_workers=num_workers, quiet=True)
    return done.seconds, cpu_seconds() - before, done.manifest.totals["tokens"]


def cpu_seconds() -> float:
    """Of this process and of its ended children: ``prepare`` waits for its workers."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--input", default=str(INPUT), help="Documents, one file.")
    parser.add_argument("--tokenizer", default=str(TOKENIZER), help="Hub name or folder.")
    parser.add_argument("--documents", type=int, help="Only so many, for a quick look. Default: all.")
    parser.add_argument("--rounds", type=int, default=3, help="Times that each is measured.")
    args = parser.parse_args()
    if not Path(args.input).is_file():
        raise KinspanError(f"--input {args.input}: no such file; give a .jsonl file of documents")
    if args.rounds < 1 or (args.documents is not None and args.documents < 1):
        raise KinspanError("--rounds and --documents: give at least 1")
    tokenizer_json = serialize_backend(load_tokenizer(args.tokenizer))
    documents, rules, tally = documents_of(args.input, args.documents), Rules(), Tally()
    paragraphs = [p for d in documents for p in clean(d, rules, tally)]
    with tempfile.TemporaryDirectory() as folder:
        path = args.input
        if args.documents is not None:
            path = str(Path(folder) / "documents.jsonl")
            write_documents(documents, path)
        del documents
        spent: dict[str, list[tuple[float, float, int]]] = {name: [] for name in (ALONE, ONE, TWO)}
        for _ in range(args.rounds):
            spent[ALONE].append(_common.in_fresh_process(baseline, tokenizer_json, paragraphs))
            spent[ONE].append(timed_prepare(path, args.tokenizer, 1))
            spent[TWO].append(timed_prepare(path, args.tokenizer, 2))
    show(spent, sum(map(len, paragraphs)))


def write_documents(documents: list[Document], path: str) -> None:
    """As JSON lines, uncompressed."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(d)) + "\n" for d in documents)


def show(spent: dict[str, list[tuple[float, float, int]]], chars: int) -> None:
    wall = {name: statistics.median(w for w, _, _ in times) for name, times in spent.items()}
    cpu = {name: statistics.median(c for _, c, _ in times) for name, times in spent.items()}
    tokens = {name: times[0][2] for name, times in spent.items()}
    rows = [(n, f"{wall[n]:.2f}", f"{cpu[n]:.2f}", f"{chars / 1e6 / wall[n]:.2f}", f"{tokens[n]:,}") for n in spent]
    header = (f"{chars / 1e6:.1f} M characters kept", "seconds", "CPU s", "MB/s", "tokens")
    _common.print_table(header, rows)
    over, speedup = wall[ONE] / wall[ALONE], wall[ONE] / wall[TWO]
    print(f"\nprepare takes {over:.2f} times the baseline; two workers make it {speedup:.2f} times as fast")
    cores = len(os.sched_getaffinity(0))
    if cores < 3:
        print(f"(two workers and the reader share {cores} core(s) here)")
    figures = {"characters": chars, "tokens": tokens[ONE], "alone_seconds": wall[ALONE]}
    figures |= {"one_worker_seconds": wall[ONE], "two_workers_seconds": wall[TWO]}
    figures |= {"alone_cpu_seconds": cpu[ALONE], "one_worker_cpu_seconds": cpu[ONE]}
    figures |= {"two_workers_cpu_seconds": cpu[TWO]}
    figures |= {"over_alone": over, "two_workers_speedup": speedup}
    _common.report("prepare", figures)


if __name__ == "__main__":
    _common.run(main)
