"""A corpus of many shards opens a handful: at its opening, its first batch, its first validation, and a resume."""

import pytest

from benchmarks.stream import larger_corpus
from data_pipeline import corpus as corpus_module
from data_pipeline.core.settings import CacheSettings
from data_pipeline.corpus import Corpus, map_shard
from data_pipeline.sampling.order import BLOCK_SHARDS

PAIRS = 1000  # of a batch


@pytest.fixture
def opened(monkeypatch):
    """The shards that were mapped, in order."""
    names = []
    monkeypatch.setattr(corpus_module, "map_shard", lambda path: names.append(path.name) or map_shard(path))
    monkeypatch.setattr(corpus_module, "verify_once", lambda *given: None)  # which maps a shard once more
    return names


def count_steps_of_a_run(place, cache, make_stream, opened):
    """How many shards the beginning of a run opens, by what it does; and the first and a later batch."""
    counts = {}

    def note(what):
        counts[what] = len(opened)
        opened.clear()

    opened.clear()
    corpus = Corpus(place, cache=cache)
    train, validation = (make_stream(corpus, split=split) for split in ("train", "validation"))
    note("opening")
    first = train.batch(0, PAIRS)
    note("first batch")
    validation.batch(0, PAIRS)
    note("first validation")
    middle = train.orders[0].epoch_anchors // 2
    begin = next(train.orders[0].segments(middle, 1 << 40))  # up to the end of a block: the next one begins there
    place_of_resume = (begin.first_anchor + len(begin.anchors)) * 5
    resumed = make_stream(Corpus(place, cache=cache)).batch(place_of_resume, PAIRS)
    note("resume")
    return counts, first, resumed, place_of_resume


def is_a_handful(counts):
    most = {"opening": 0, "first batch": BLOCK_SHARDS, "first validation": BLOCK_SHARDS, "resume": BLOCK_SHARDS}
    return all(counts[what] <= most[what] for what in most) and counts["first batch"] > 0


def test_a_corpus_of_hundreds_of_shards(tiny_corpus, make_stream, tmp_path, opened):
    (tmp_path / "corpus").mkdir()
    larger_corpus(tiny_corpus, tmp_path / "corpus", 80)
    assert len(Corpus(tmp_path / "corpus").manifest.shards) >= 300
    counts, *_ = count_steps_of_a_run(tmp_path / "corpus", CacheSettings(), make_stream, opened)
    assert is_a_handful(counts), counts
