"""Measures ``prepare`` against blingfire and the tokenizer alone, and two workers against one.

The baseline does the two things that cannot be saved: in one thread, with the cleaned documents in memory, it splits
each kept paragraph into sentences and encodes them, by the call that ``prepare`` uses.
``prepare`` is timed from its files to the finished corpus, the start of its workers included, in a new process;
the import of ``transformers`` is not. All three take turns; medians count. Then, once: near-duplicates too.
The projection is by the processor time of two workers, for text that is extracted and disks that keep up.

Bars: one worker within 1.3 times the baseline; two workers at least 1.8 times as fast as one."""

import contextlib
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _common
from data_pipeline.prepare.cleaning import Rules, Tally, clean, split_sentences
from data_pipeline.prepare.document import Document, Rejected
from data_pipeline.prepare.pipeline import prepare
from data_pipeline.prepare.readers import find_input_files, parse_record, read_records
from data_pipeline.tokenizers import load_tokenizer
from objectives import OBJECTIVES

TEXTS = _common.ROOT.parent / "shared/data/corpus"
INPUTS = [str(TEXTS / f"enwiki2015_{part}.jsonl.xz") for part in ("AA", "AB")]
TOKENIZER = _common.ROOT.parent / "shared/tokenizers/roberta-base-tokenizer"
CHUNK_CHARS = 1 << 20
ALONE, ONE, TWO = "blingfire and tokenizer alone", "prepare, 1 worker", "prepare, 2 workers"
NEAR = "prepare, 2 workers, near-duplicates"
TARGET_BYTES, TARGET_CORES = 409e9, 64  # the texts of Di Liello et al. (2022), section A.1, and a small cluster

EPILOG = """example:
  python benchmarks/prepare.py --input enwiki2015_AA.jsonl.xz enwiki2015_AB.jsonl.xz --tokenizer roberta-base"""


@dataclass(frozen=True)
class Timed:
    """Seconds by the clock and of processors, and tokens."""

    wall: float
    cpu: float
    tokens: int


def read_documents(paths: list[str]) -> list[Document]:
    """Returns the documents of the files, parsed; what ``prepare`` rejects is left out."""
    documents: list[Document] = []
    for file in find_input_files(paths)[0]:
        for record in read_records(file.name):
            with contextlib.suppress(Rejected):
                documents += parse_record(record)
    return documents


def time_alone(tokenizer_json: str, paragraphs: list[str]) -> Timed:
    """Times sentence splitting and tokenising alone."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.encode_special_tokens = True
    split_sentences("Loads the library.")
    began, cpu = time.perf_counter(), time.process_time()
    tokens = chars = 0
    sentences: list[str] = []
    for number, paragraph in enumerate(paragraphs, 1):
        sentences += split_sentences(paragraph)
        chars += len(paragraph)
        if chars >= CHUNK_CHARS or number == len(paragraphs):
            tokens += sum(len(e.ids) for e in tokenizer.encode_batch_fast(sentences, add_special_tokens=False))
            sentences, chars = [], 0
    return Timed(time.perf_counter() - began, time.process_time() - cpu, tokens)


def time_prepare(paths: list[str], tokenizer: str, num_workers: int, duplicates: str = "exact") -> Timed:
    """Times a whole run of ``prepare``."""
    load_tokenizer(tokenizer)  # imports transformers
    before = sum(os.times()[:4])  # of this process and of its ended children: prepare waits for its workers
    with tempfile.TemporaryDirectory() as folder:
        done = prepare(paths, tokenizer, folder, OBJECTIVES, num_workers=num_workers, duplicates=duplicates, quiet=True)
    return Timed(done.seconds, sum(os.times()[:4]) - before, done.manifest.totals["tokens"])


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--input", nargs="+", default=INPUTS, help="Documents; two files of about the same size.")
    parser.add_argument("--tokenizer", default=str(TOKENIZER), help="Hub name or folder.")
    parser.add_argument("--rounds", type=int, default=3, help="Times that each is measured.")
    args = parser.parse_args()
    tally = Tally()
    paragraphs = [p for document in read_documents(args.input) for p in clean(document, Rules(), tally) or []]
    chars = sum(map(len, paragraphs))
    tokenizer_json = load_tokenizer(args.tokenizer).backend_tokenizer.to_str()
    spent: dict[str, list[Timed]] = {name: [] for name in (ALONE, ONE, TWO)}
    for _ in range(args.rounds):
        spent[ALONE].append(_common.in_fresh_process(time_alone, tokenizer_json, paragraphs))
        spent[ONE].append(_common.in_fresh_process(time_prepare, args.input, args.tokenizer, 1))
        spent[TWO].append(_common.in_fresh_process(time_prepare, args.input, args.tokenizer, 2))
    spent[NEAR] = [_common.in_fresh_process(time_prepare, args.input, args.tokenizer, 2, "near")]
    wall = {name: statistics.median(t.wall for t in times) for name, times in spent.items()}
    cpu = {name: statistics.median(t.cpu for t in times) for name, times in spent.items()}
    rows = [(name, f"{wall[name]:.2f}", f"{cpu[name]:.2f}", f"{spent[name][0].tokens:,}") for name in spent]
    _common.print_table((f"{chars / 1e6:.1f} M characters kept", "seconds", "CPU s", "tokens"), rows)
    over, speedup = wall[ONE] / wall[ALONE], wall[ONE] / wall[TWO]
    print(f"prepare takes {over:.2f} times the baseline; two workers make it {speedup:.2f} times as fast")
    for name in (TWO, NEAR):
        hours = cpu[name] / TARGET_CORES * TARGET_BYTES / chars / 3600
        print(f"{TARGET_BYTES / 1e9:.0f} GB on {TARGET_CORES} cores, as {name}: {hours:.1f} hours")
    _common.print_environment()


if __name__ == "__main__":
    _common.run(main)
