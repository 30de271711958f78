"""Measures how fast pairs are made: sampled, packed and masked, on one core, against the usual way.

Ours: ``PairStream.batch`` over consecutive global batches of SSP pairs of at most 128 tokens.
The usual way: the same pairs, given as text (cutting them out of the corpus costs it nothing here), each
tokenised by the fast tokenizer as a data set's ``__getitem__`` does, then 64 at a time through
``DataCollatorForLanguageModeling``. "Batched" hands the tokenizer 64 pairs at once instead.
The ways take turns, a global batch each, and the medians count, so that what disturbs hits all of them.

Also: the seconds to open the corpus and make batch 1,000,000 in a fresh process (imports do not count), and
the memory of a reader that goes through an epoch in blocks of one shard, against the same for a corpus 4 and
16 times as large. (A reader holds up to three blocks: a corpus of fewer shards needs a little less.)

Also: every objective at its own length, and all three of the paper together.

Bars: 300,000 pairs/s, or 30 M tokens/s of the longer ones; 50 times the usual way; under a second; no growth with the
corpus."""

import dataclasses
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from benchmarks import _common
from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus, fingerprint_corpus
from data_pipeline.prepare.write import write_manifest
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import load_tokenizer, read_pair_template
from objectives import parse_mixture
from objectives.mlm import MaskedLM

CUT = {"truncation": "longest_first", "max_length": _common.MAX_LENGTH}
LOADER_BATCH = 64  # pairs that the usual way collates at a time
SEEK_BATCH, SEEK_PAIRS = 1_000_000, 4096
TIMES_LARGER = (1, 4, 16)
MOST_READS = 1000  # batches of an epoch that the memory test reads, evenly spread where there are more

Rates = dict[str, tuple[int, float, float]]  # objective -> tokens of a pair at most, pairs/s, tokens/s
Grown = dict[int, tuple[float, float]]  # times the corpus -> MB that the reader grew by: at the end, at most

EPILOG = """example:
  kinspan prepare --input enwiki2015_AA.jsonl.xz --tokenizer roberta-base --output_dir corpora/aa-roberta
  python benchmarks/stream.py --corpus corpora/aa-roberta"""


def usual_ways(tokenizer: Any) -> dict[str, Callable[[list[tuple[str, str]]], None]]:
    """The two ways to make batches from text. Both tell the collator the special tokens, which it would else
    look for in Python, id by id."""
    import torch
    from transformers import DataCollatorForLanguageModeling

    torch.set_num_threads(1)
    collate = DataCollatorForLanguageModeling(tokenizer)
    options = CUT | {"return_special_tokens_mask": True}

    def one_by_one(pairs: list[tuple[str, str]]) -> None:
        for start in range(0, len(pairs), LOADER_BATCH):
            collate([tokenizer(a, b, **options) for a, b in pairs[start : start + LOADER_BATCH]])

    def batched(pairs: list[tuple[str, str]]) -> None:
        for start in range(0, len(pairs), LOADER_BATCH):
            a, b = (list(texts) for texts in zip(*pairs[start : start + LOADER_BATCH], strict=True))
            collate(_common.rows_of(tokenizer(a, b, **options)))

    return {"usual way": one_by_one, "usual way, batched": batched}


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


def take_turns(stream: PairStream, tokenizer: Any, num_batches: int, size: int) -> dict[str, list[float]]:
    """Seconds of each way for each global batch; the first batch warms up and does not count."""
    ways = usual_ways(tokenizer)
    spent: dict[str, list[float]] = {"ours": [], **{name: [] for name in ways}}
    for number in range(num_batches + 1):
        first = number * size
        pairs = _common.pairs_as_text(stream, tokenizer, first, size)
        stream.batch(first + size, size)  # the usual way swept the caches: a loader makes batches in a row
        spent["ours"].append(seconds(stream.batch, first, size))
        for name, way in ways.items():
            spent[name].append(seconds(way, pairs if number else pairs[:LOADER_BATCH]))
    return {name: times[1:] for name, times in spent.items()}


def by_objective(corpus: Corpus, template: Any, masking: MaskedLM, seed: int, num_batches: int, size: int) -> Rates:
    """Pairs and tokens a second of each objective at its own length; they take turns, a global batch each."""
    streams = {
        name: PairStream(parse_mixture(name).read_from(corpus), template=template, seed=seed, masking=masking)
        for name in _common.names_of_objectives()
    }
    spent: dict[str, list[float]] = {name: [] for name in streams}
    tokens = dict.fromkeys(streams, 0)
    for number in range(num_batches + 1):
        for name, stream in streams.items():
            stream.batch((2 * number) * size, size)  # warms the caches that the others swept
            began = time.perf_counter()
            batch = stream.batch((2 * number + 1) * size, size)
            spent[name].append(time.perf_counter() - began)
            tokens[name] += batch.num_tokens
    rates = {}
    for name, times in spent.items():
        pairs = size / statistics.median(times[1:])
        rates[name] = (streams[name].max_length, pairs, pairs * tokens[name] / (num_batches + 1) / size)
    return rates


def same_ids(stream: PairStream, tokenizer: Any, count: int = 500) -> float:
    """Share of pairs that have the same ids both ways, before masking: decoding is not quite lossless."""
    batch = stream.batch(0, count)
    ours = [batch.input_ids[a:b].tolist() for a, b in zip(batch.starts[:-1], batch.starts[1:], strict=True)]
    texts = _common.pairs_as_text(stream, tokenizer, 0, count)
    theirs = [tokenizer(a, b, **CUT)["input_ids"] for a, b in texts]
    return sum(x == y for x, y in zip(ours, theirs, strict=True)) / count


def seek(folder: str, template: Any, masking: MaskedLM, seed: int) -> float:
    """Seconds to open a corpus and make batch 1,000,000, thousands of epochs away; hashing included."""
    began = time.perf_counter()
    _common.ssp_stream(Corpus(folder), template, masking, seed).batch(SEEK_BATCH * SEEK_PAIRS, SEEK_PAIRS)
    return time.perf_counter() - began


def read_epoch(folder: str, template: Any, masking: MaskedLM, seed: int, size: int) -> tuple[float, float]:
    """MB that a reader's own memory grew by, at the end of an epoch and at most, with blocks of one shard."""
    before = peak = _common.rss_anon()
    stream = _common.ssp_stream(Corpus(folder), template, masking, seed, block_anchors=1)
    num_batches = -(-stream.epoch_pairs // size)
    for number in range(0, num_batches, -(-num_batches // MOST_READS)):
        stream.batch(number * size, size)
        peak = max(peak, _common.rss_anon())
    return _common.rss_anon() - before, peak - before


def larger_corpus(folder: Path, target: Path, times: int) -> None:
    """A corpus whose manifest lists each shard ``times`` times; files are linked where they can be."""
    manifest = Corpus(folder).manifest
    shutil.copytree(folder / "tokenizer", target / "tokenizer")
    shards = []
    for number, shard in enumerate(manifest.shards * times):
        name = f"shards/{number:05d}.arrow"
        (target / name).parent.mkdir(exist_ok=True)
        try:
            os.link(folder / shard.file, target / name)
        except OSError:  # another file system
            shutil.copyfile(folder / shard.file, target / name)
        shards.append(dataclasses.replace(shard, file=name))
    fingerprint = fingerprint_corpus(shards, manifest.tokenizer["fingerprint"])
    write_manifest(dataclasses.replace(manifest, shards=shards, fingerprint=fingerprint), target)


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", required=True, help=_common.CORPUS_HELP)
    parser.add_argument("--pairs", type=int, default=40_960, help="Pairs that each way makes.")
    parser.add_argument("--batch", type=int, default=4096, help="Pairs of a global batch.")
    parser.add_argument("--seed", type=int, default=1, help="Of order, spans and masks.")
    args = parser.parse_args()
    if args.batch < LOADER_BATCH or args.pairs < args.batch:
        raise KinspanError(f"--pairs {args.pairs} --batch {args.batch}: at least 64, and pairs for a batch")
    _common.pin_to_one_core()
    corpus = Corpus(args.corpus)
    tokenizer = load_tokenizer(str(corpus.folder / "tokenizer"))
    masking = MaskedLM(tokenizer.mask_token_id, len(tokenizer))
    setup = (read_pair_template(tokenizer), masking, args.seed)
    same = same_ids(_common.ssp_stream(corpus, setup[0], None, args.seed), tokenizer)
    spent = take_turns(_common.ssp_stream(corpus, *setup), tokenizer, args.pairs // args.batch, args.batch)
    rates = by_objective(corpus, *setup, args.pairs // args.batch, args.batch)
    seek_seconds = _common.in_fresh_process(seek, args.corpus, *setup)
    grown = {}
    for times in TIMES_LARGER:
        with tempfile.TemporaryDirectory() as temporary:
            larger_corpus(Path(args.corpus), Path(temporary), times)
            grown[times] = _common.in_fresh_process(read_epoch, temporary, *setup, args.batch)
    show(args.batch, spent, same, rates, seek_seconds, grown)


def show(
    size: int, spent: dict[str, list[float]], same: float, rates: Rates, seek_seconds: float, grown: Grown
) -> None:
    rate = {name: size / statistics.median(times) for name, times in spent.items()}
    overall = {name: size * len(times) / sum(times) for name, times in spent.items()}
    ratio = {name: rate["ours"] / rate[name] for name in rate}
    rows = [(n, f"{rate[n]:,.0f}", f"{overall[n]:,.0f}", f"{ratio[n]:.1f}") for n in rate]
    _common.print_table(("one core, pairs of at most 128 tokens", "pairs/s", "overall", "ours is x"), rows)
    print(f"\n{100 * same:.1f}% of the pairs have the same ids both ways, before masking\n")
    each = [(n, str(most), f"{pairs:,.0f}", f"{tokens / 1e6:.1f} M") for n, (most, pairs, tokens) in rates.items()]
    _common.print_table(("each objective at its own length", "at most", "pairs/s", "tokens/s"), each)
    print()
    reader = [(f"open, and make batch {SEEK_BATCH:,} of {SEEK_PAIRS} pairs", f"{seek_seconds:.2f} s", "")]
    for times, (end, peak) in grown.items():
        what = f"memory after an epoch of {times} x the corpus"
        reader.append((what, f"{end:.1f} MB", f"peak {peak:.1f} MB"))
    _common.print_table(("a reader in a fresh process", "measured", ""), reader)
    figures = {"pairs_per_second": rate["ours"], "pairs_per_second_overall": overall["ours"]}
    for name, prefix in (("usual way", "usual"), ("usual way, batched", "batched")):
        figures |= {f"{prefix}_pairs_per_second": rate[name], f"ratio_to_{prefix}": ratio[name]}
    figures |= {f"{name}_pairs_per_second": pairs for name, (_, pairs, _) in rates.items()}
    figures |= {f"{name}_tokens_per_second": tokens for name, (_, _, tokens) in rates.items()}
    figures |= {"same_ids_share": same, "seek_seconds": seek_seconds}
    figures |= {f"reader_mb_{times}x": end for times, (end, _) in grown.items()}
    figures |= {f"reader_peak_mb_{times}x": peak for times, (_, peak) in grown.items()}
    _common.report("stream", figures)


if __name__ == "__main__":
    _common.run(main)
