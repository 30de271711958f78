"""Measures how fast pairs are made: sampled, packed and masked, on one core, against the usual way.

Ours: ``PairStream.batch`` over global batches of SSP pairs of at most 128 tokens.
The usual way: the same pairs, given as text, each tokenised by the fast tokenizer as a data set's ``__getitem__``
does, then 64 at a time through ``DataCollatorForLanguageModeling``. "Batched" hands the tokenizer 64 pairs at once.

Also: every objective at its own length, and all three of the paper together; the seconds to open the corpus and make
batch 1,000,000 in a fresh process (imports do not count); and the memory of a reader that goes through an epoch in
blocks of one shard, against the same for a corpus 4 and 16 times as large.

Bars: 300,000 pairs/s, or 30 M tokens/s of the longer ones; 50 times the usual way; under a second; no growth with the
corpus."""

import dataclasses
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _common
from data_pipeline.corpus import Corpus, fingerprint_corpus
from data_pipeline.prepare.write import write_manifest
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import load_tokenizer

CUT = {"truncation": "longest_first", "max_length": _common.MAX_LENGTH}
LOADER_BATCH = 64  # pairs that the usual way collates at a time
SEEK_BATCH, SEEK_PAIRS = 1_000_000, 4096
TIMES_LARGER = (1, 4, 16)
OBJECTIVES = ("ssp", "sp", "psd", "nsp", "sop", "ict", "all")
MOST_READS = 1000  # batches of an epoch that the memory test reads, evenly spread where there are more
Texts = list[tuple[str, str]]

EPILOG = """example:
  kinspan prepare --input enwiki2015_AA.jsonl.xz --tokenizer roberta-base --output_dir corpora/aa-roberta
  python benchmarks/stream.py --corpus corpora/aa-roberta"""


def list_texts(stream: PairStream, tokenizer: Any, first: int, count: int) -> Texts:
    """Returns pairs as a loader that tokenises reads them: two whole texts each."""

    def decode(ids: Any) -> str:
        return tokenizer.decode(ids, clean_up_tokenization_spaces=False).strip()

    texts = []
    for rows in stream.pairs(first, count):
        for row in range(len(rows.index)):
            a, b = (decode(rows.block.read_tokens(spans[row])) for spans in rows.texts)
            texts.append((a, b))
    return texts


def list_usual_ways(tokenizer: Any, texts: list[Texts]) -> dict[str, Callable[[int], None]]:
    """Returns two ways to make batches from texts, whose special tokens the collator need not look for in Python."""
    import torch
    from transformers import DataCollatorForLanguageModeling

    torch.set_num_threads(1)
    collate = DataCollatorForLanguageModeling(tokenizer)
    options = CUT | {"return_special_tokens_mask": True}

    def one_by_one(number: int) -> None:
        for start in range(0, len(texts[number]), LOADER_BATCH):
            collate([tokenizer(a, b, **options) for a, b in texts[number][start : start + LOADER_BATCH]])

    def batched(number: int) -> None:
        for start in range(0, len(texts[number]), LOADER_BATCH):
            a, b = (list(of) for of in zip(*texts[number][start : start + LOADER_BATCH], strict=True))
            encoded = tokenizer(a, b, **options)
            collate([{name: column[k] for name, column in encoded.items()} for k in range(len(a))])

    return {"usual way": one_by_one, "usual way, batched": batched}


def count_same_ids(stream: PairStream, tokenizer: Any, count: int = 500) -> float:
    """Returns the share of pairs that have the same ids both ways, before masking: decoding is not quite lossless."""
    batch = stream.batch(0, count)
    ours = [batch.input_ids[a:b].tolist() for a, b in zip(batch.starts[:-1], batch.starts[1:], strict=True)]
    theirs = [tokenizer(a, b, **CUT)["input_ids"] for a, b in list_texts(stream, tokenizer, 0, count)]
    return sum(x == y for x, y in zip(ours, theirs, strict=True)) / count


def seek(folder: str) -> float:
    """Returns the seconds to open a corpus and make batch 1,000,000, thousands of epochs away; hashing included."""
    began = time.perf_counter()
    _common.open_stream(folder, max_length=_common.MAX_LENGTH).batch(SEEK_BATCH * SEEK_PAIRS, SEEK_PAIRS)
    return time.perf_counter() - began


def read_epoch(folder: str, size: int) -> tuple[float, float]:
    """Returns the MB that a reader's memory grew by, at the end of an epoch and at most, with blocks of one shard."""
    before = peak = measure_memory()
    stream = _common.open_stream(folder, max_length=_common.MAX_LENGTH, block_anchors=1)
    num_batches = -(-stream.epoch_pairs // size)
    for number in range(0, num_batches, -(-num_batches // MOST_READS)):
        stream.batch(number * size, size)
        peak = max(peak, measure_memory())
    return measure_memory() - before, peak - before


def measure_memory() -> float:
    """Returns the MB of this process that no file stands behind: mapped shards do not count."""
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 1024


def larger_corpus(folder: Path, target: Path, times: int) -> None:
    """Writes a corpus whose manifest lists each shard ``times`` times, linked on the same disk."""
    manifest = Corpus(folder).manifest
    shutil.copytree(folder / "tokenizer", target / "tokenizer")
    shards = []
    for number, shard in enumerate(manifest.shards * times):
        name = f"shards/{number:05d}.arrow"
        (target / name).parent.mkdir(exist_ok=True)
        os.link(folder / shard.file, target / name)
        shards.append(dataclasses.replace(shard, file=name))
    fingerprint = fingerprint_corpus(shards, manifest.tokenizer["fingerprint"])
    write_manifest(dataclasses.replace(manifest, shards=shards, fingerprint=fingerprint), target)


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", required=True, help="Corpus folder, of kinspan prepare.")
    parser.add_argument("--rounds", type=int, default=10, help="Turns of each way.")
    parser.add_argument("--batch", type=int, default=4096, help="Pairs of a global batch.")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the first core takes more interrupts
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
    size, rounds = args.batch, args.rounds
    tokenizer = load_tokenizer(str(Path(args.corpus) / "tokenizer"))
    stream = _common.open_stream(args.corpus, max_length=_common.MAX_LENGTH)
    texts = [list_texts(stream, tokenizer, number * size, size) for number in range(2 * rounds)]
    ways = {"ours": lambda number: stream.batch(number * size, size), **list_usual_ways(tokenizer, texts)}
    seconds = _common.take_turns(ways, rounds)
    rows = [(name, f"{size / s:,.0f}", f"{s / seconds['ours']:.1f}") for name, s in seconds.items()]
    _common.print_table(("one core, pairs of at most 128 tokens", "pairs/s", "ours is x"), rows)
    same = count_same_ids(_common.open_stream(args.corpus, masked=False, max_length=_common.MAX_LENGTH), tokenizer)
    print(f"{100 * same:.1f}% of the pairs have the same ids both ways, before masking\n")

    streams = {name: _common.open_stream(args.corpus, name) for name in OBJECTIVES}
    objectives = {name: lambda number, of=of: of.batch(number * size, size) for name, of in streams.items()}
    rows = []
    for name, s in _common.take_turns(objectives, rounds).items():
        tokens = streams[name].batch(0, size).num_tokens / s / 1e6
        rows.append((f"{name}, at most {streams[name].max_length} tokens", f"{size / s:,.0f}", f"{tokens:.1f} M"))
    _common.print_table(("each objective", "pairs/s", "tokens/s"), rows)

    rows = [(f"open, and make batch {SEEK_BATCH:,}", f"{_common.in_fresh_process(seek, args.corpus):.2f} s", "")]
    for times in TIMES_LARGER:
        with tempfile.TemporaryDirectory(dir=Path(args.corpus).parent) as larger:
            larger_corpus(Path(args.corpus), Path(larger), times)
            end, peak = _common.in_fresh_process(read_epoch, larger, size)
        rows.append((f"memory after an epoch of {times} x the corpus", f"{end:.1f} MB", f"peak {peak:.1f} MB"))
    _common.print_table(("a reader in a fresh process", "measured", ""), rows)
    _common.print_environment()


if __name__ == "__main__":
    _common.run(main)
