"""Measures whether training notices the end of a block: how long it waits for batches around changes of block.

A loop takes its steps from the feeder of pretrain/batches.py, and sleeps where a device would compute. Around each of
the changes it takes some steps before and after; what lies between is left out. So the next block, which a run begins
to build in the middle of the present one, has only the steps before the change to be built in. The same is done with
nothing built ahead: that is what a change costs where somebody waits for it.

With --times the corpus is made larger by listing its shards several times, so that its blocks are of the usual size
(up to a million anchors). It may be a remote one, with a cache that holds two blocks, say.

Bar: the steps at changes wait no longer than the other steps."""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from tqdm import tqdm

from benchmarks import _common
from benchmarks.stream import larger_corpus
from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from data_pipeline.remote.cache import CacheSettings
from data_pipeline.sampling.block_cache import BlockCache
from data_pipeline.sampling.order import Order
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import load_tokenizer, read_pair_template
from objectives import parse_mixture
from objectives.mlm import MaskedLM
from pretrain.batches import Feeder
from pretrain.runtime.layout import Layout

EPILOG = """example:
  python launch/prepare.py --input enwiki2015_AA.jsonl.xz --tokenizer roberta-base --output_dir corpora/aa-roberta
  python benchmarks/blocks.py --corpus corpora/aa-roberta --times 40"""

Waits = tuple[list[float], list[float]]  # seconds that each step waited: at changes of block, and at the others


def find_changes(order: Order, count: int) -> list[int]:
    """The anchors with which the second and the following blocks begin."""
    changes, anchor = [], 0
    for _ in tqdm(range(count), desc="finding blocks", leave=False):
        segment = next(order.segments(anchor, 1 << 40))
        anchor = segment.first_anchor + len(segment.anchors)
        changes.append(anchor)
    return changes


def measure(stream: PairStream, layout: Layout, changes: list[int], around: int, pause: float, task: str) -> Waits:
    """Seconds that each step waited for its batch, around each of the changes."""
    at_changes: list[float] = []
    others: list[float] = []
    group = stream.mixture.objectives[0].pairs_per_anchor
    for anchor in tqdm(changes, desc=task, leave=False):
        change = anchor * group // layout.size  # the step whose batch is the first to have pairs of the next block
        first = max(0, change - around)
        stream.batch(first * layout.size, 1)  # the present block, which a run has had for long
        feeder = Feeder(stream, layout, 0, first, 1, end=change + around)
        feeder.next()  # the feeder was empty, which it is once in a run
        for step in range(first + 1, change + around):
            before = feeder.waited
            feeder.next()
            # The feeder is two batches ahead: a block that is late shows there or shortly after.
            (at_changes if change <= step < change + 3 else others).append(feeder.waited - before)
            time.sleep(pause)
        feeder.close()
    return at_changes, others


@contextmanager
def nothing_ahead() -> Iterator[None]:
    """Blocks are built where they are asked for."""
    fetch_ahead = BlockCache.fetch_ahead
    BlockCache.fetch_ahead = lambda *given: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        BlockCache.fetch_ahead = fetch_ahead  # type: ignore[method-assign]


def open_stream(place: str, cache: CacheSettings) -> PairStream:
    corpus = Corpus(place, cache=cache)
    tokenizer = load_tokenizer(corpus.tokenizer_folder)
    masking = MaskedLM(tokenizer.mask_token_id, len(tokenizer))
    mixture = parse_mixture("ssp").read_from(corpus)
    return PairStream(mixture, template=read_pair_template(tokenizer), seed=1, masking=masking)


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", required=True, help=_common.CORPUS_HELP + " Or the address of a remote one.")
    parser.add_argument("--times", type=int, default=1, help="List each shard so many times; of a folder.")
    parser.add_argument("--changes", type=int, default=20, help="Changes of block.")
    parser.add_argument("--around", type=int, default=40, help="Steps before and after each change.")
    parser.add_argument("--batch", type=int, default=1024, help="Pairs of a step.")
    parser.add_argument("--pause", type=float, default=0.1, help="Seconds that a step takes beside its data.")
    parser.add_argument("--cache_dir", help="As of launch/pretrain.py.")
    parser.add_argument("--cache_gb", type=float, default=20.0, help="As of launch/pretrain.py.")
    args = parser.parse_args()
    if min(args.times, args.changes, args.around, args.batch) < 1 or args.pause < 0:
        raise KinspanError("--times, --changes, --around and --batch must be above 0, --pause not below it")
    cache, layout = CacheSettings(args.cache_dir, args.cache_gb), Layout(args.batch, args.batch, 1)
    with tempfile.TemporaryDirectory() as temporary:
        place = args.corpus
        if args.times > 1:
            larger_corpus(Path(args.corpus), Path(temporary), args.times)
            place = temporary
        changes = find_changes(open_stream(place, cache).orders[0], args.changes)
        settings = (layout, changes, args.around, args.pause)
        ahead = measure(open_stream(place, cache), *settings, "built ahead")
        with nothing_ahead():
            late = measure(open_stream(place, cache), *settings, "not built ahead")
    show(ahead, late, changes, args.pause)


def show(ahead: Waits, late: Waits, changes: list[int], pause: float) -> None:
    rows, figures = [], {}
    for name, waits in (("built ahead", ahead), ("not built ahead", late)):
        for what, seconds in zip(("at changes", "at other steps"), waits, strict=True):
            median, longest = statistics.median(seconds), max(seconds)
            cells = (str(len(seconds)), f"{1e3 * median:.1f} ms", f"{1e3 * longest:.1f} ms", f"{sum(seconds):.2f} s")
            rows.append((f"{name}, {what}", *cells))
            figures |= {f"{name}/{what}/median": median, f"{name}/{what}/longest": longest}
        total = sum(map(sum, waits))
        share = total / (total + pause * sum(map(len, waits)))
        figures[f"{name}/data_wait_percent"] = 100 * share
        rows.append((f"{name}, share of the time", "", "", "", f"{share:.2%}"))
    sizes = [b - a for a, b in zip([0, *changes], changes, strict=False)]
    print(f"{len(changes)} changes of block, of {statistics.mean(sizes):,.0f} anchors\n")
    _common.print_table(("waiting for batches", "steps", "median", "longest", "in all"), rows)
    _common.report("blocks", figures | {"changes": len(changes), "anchors": statistics.mean(sizes)})


if __name__ == "__main__":
    _common.run(main)
