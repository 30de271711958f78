"""The cache of a node: bounded, shared, and never half."""

import hashlib
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.stream import larger_corpus
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import CacheSettings
from data_pipeline.corpus import Corpus
from data_pipeline.remote import cache as cache_module
from tests.cases import mark_slow
from tests.synthetic import write_file

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 600  # after which a test has failed

# Ranks without torch, forked once the imports are done. Each writes what it read of each step, as a hash on a line.
RANKS = """
import hashlib, os, pickle, sys
from pathlib import Path
from data_pipeline.corpus import Corpus
from data_pipeline.core.settings import CacheSettings
from data_pipeline.sampling.stream import PairStream
from objectives import parse_mixture

url, folder, gigabytes, template, out, world, steps, share = sys.argv[1:]
world, steps, share = int(world), int(steps), int(share)

def train(rank):
    corpus = Corpus(url, cache=CacheSettings(folder, float(gigabytes)))
    mixture = parse_mixture("ssp").read_from(corpus)
    stream = PairStream(mixture, template=pickle.loads(Path(template).read_bytes()), seed=1, block_anchors=60)
    batches = [stream.batch((step * world + rank) * share, share) for step in range(steps)]
    Path(out, str(rank)).write_text(" ".join(hashlib.sha256(b.input_ids.tobytes()).hexdigest() for b in batches))
    assert "torch" not in sys.modules and "transformers" not in sys.modules

children = []
for rank in range(world):
    children.append(os.fork())
    if not children[-1]:
        train(rank)
        os._exit(0)  # an error ends with another status
sys.exit(max(os.waitpid(child, 0)[1] for child in children) != 0)
"""


@pytest.fixture
def many(tiny_corpus, tmp_path):
    """tiny_corpus eight times over: shards of their own for each copy."""
    (tmp_path / "many").mkdir()
    larger_corpus(tiny_corpus, tmp_path / "many", 8)
    return tmp_path / "many"


@pytest.fixture
def start_ranks(tiny_corpus, make_stream, tmp_path):
    def start(url, cache, world=1, steps=1, share=5):
        (tmp_path / "out").mkdir(exist_ok=True)
        template = write_file(tmp_path / "template", pickle.dumps(make_stream(tiny_corpus).template))
        values = [url, cache.folder, cache.gigabytes, template, tmp_path / "out", world, steps, share]
        return subprocess.Popen([sys.executable, "-c", RANKS, *map(str, values)], cwd=ROOT, start_new_session=True)

    return start


def shards_in(cache):
    return [p for p in Path(cache.folder).rglob("*.arrow") if p.is_file()]


def test_shards_used_longest_ago_leave_and_those_in_use_stay(http, many, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "ROOM_SECONDS", 0.3)
    sizes = [shard.bytes for shard in Corpus(many).manifest.shards]
    cache = CacheSettings(str(tmp_path / "cache"), (sum(sizes[:4]) + max(sizes) / 2) / 1e9)
    corpus = Corpus(http.put(many), cache=cache)
    held = corpus.shard(0)
    for number in (1, 2, 3, 1):
        corpus.shard(number)
        time.sleep(0.01)  # so that the times of use differ
    corpus.shard(4)
    left = {p.name for p in shards_in(cache)}
    assert {"00000.arrow", "00004.arrow", "00001.arrow"} <= left
    assert "00002.arrow" not in left
    kept = [held, *(corpus.shard(n) for n in (1, 4))]
    with pytest.raises(KinspanError, match="--cache_gb"):
        kept += [corpus.shard(n) for n in range(5, 12)]
    assert int(held.tokens.sum()) == int(Corpus(many).shard(0).tokens.sum())


@pytest.mark.parametrize(("place", "share"), mark_slow([("http", 0.4), ("s3", 1.5)], [("http", 0.4)]))
def test_eight_ranks_share_a_cache(request, place, share, many, start_ranks, make_stream, tmp_path):
    """Where the cache holds all, each shard is fetched once."""
    served, (world, steps, pairs) = request.getfixturevalue(place), (8, 25, 20)
    total = sum(shard.bytes for shard in Corpus(many).manifest.shards)
    cache, url = CacheSettings(str(tmp_path / "cache"), total * share / 1e9), served.put(many)
    assert start_ranks(url, cache, world, steps, pairs).wait(SECONDS) == 0
    stream = make_stream(many, block_anchors=60)
    for rank in range(world):
        ours = [stream.batch((step * world + rank) * pairs, pairs).input_ids.tobytes() for step in range(steps)]
        expected = " ".join(hashlib.sha256(batch).hexdigest() for batch in ours)
        assert (tmp_path / "out" / str(rank)).read_text() == expected
    asked = [n for name, n in served.faults.asked.items() if name.endswith(".arrow")]
    assert len(asked) >= 10
    assert share < 1 or set(asked) == {1}
    assert sum(p.stat().st_size for p in shards_in(cache)) <= total * share


def test_a_process_that_is_killed_while_it_fetches_leaves_nothing_half(http, many, start_ranks, make_stream, tmp_path):
    cache, url = CacheSettings(str(tmp_path / "cache"), 1.0), http.put(many)
    http.faults.always = {f"{n:05d}.arrow": "slow" for n in range(100)}
    killed = 0
    for wait in (0.1, 0.4, 0.7):
        ranks = start_ranks(url, cache)
        ends = time.monotonic() + SECONDS
        while not list(Path(cache.folder).rglob("*.part")) and time.monotonic() < ends:
            time.sleep(0.01)
        time.sleep(wait)
        killed += bool(list(Path(cache.folder).rglob("*.part")))
        os.killpg(ranks.pid, signal.SIGKILL)
        ranks.wait(SECONDS)
        corpus = Corpus(many)
        for shard in shards_in(cache):  # what has its name is whole
            info = next(s for s in corpus.manifest.shards if Path(s.file).name == shard.name)
            assert shard.stat().st_size == info.bytes
            assert shard.read_bytes() == (many / info.file).read_bytes()
    assert killed
    http.faults.reset()
    local, remote = (make_stream(c, block_anchors=60) for c in (many, Corpus(url, cache=cache)))
    for first in range(0, local.epoch_pairs, 50):
        assert np.array_equal(remote.batch(first, 50).input_ids, local.batch(first, 50).input_ids)
    assert not list(Path(cache.folder).rglob("*.part"))
