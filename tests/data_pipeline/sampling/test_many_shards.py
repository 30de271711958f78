"""A corpus of many shards opens a handful: at its opening, its first batch, its first validation, and a resume."""

import numpy as np

from benchmarks.stream import larger_corpus
from data_pipeline import corpus as corpus_module
from data_pipeline.corpus import Corpus, map_shard
from data_pipeline.sampling.order import BLOCK_SHARDS

PAIRS = 1000  # of a batch


def test_a_corpus_of_hundreds_of_shards(tiny_corpus, make_stream, tmp_path, monkeypatch):
    (tmp_path / "corpus").mkdir()
    larger_corpus(tiny_corpus, tmp_path / "corpus", 80)
    opened = []
    monkeypatch.setattr(corpus_module, "map_shard", lambda path: opened.append(path.name) or map_shard(path))
    monkeypatch.setattr(corpus_module, "verify_once", lambda *given: None)  # which maps a shard once more
    corpus = Corpus(tmp_path / "corpus")
    assert len(corpus.manifest.shards) >= 300
    train, validation = (make_stream(corpus, split=split) for split in ("train", "validation"))
    assert not opened
    order = train.orders[0]
    begin = next(order.segments(order.epoch_anchors // 2, 1 << 40))  # up to the end of a block: the next one begins
    place = (begin.first_anchor + len(begin.anchors)) * 5
    batches = []
    for stream, first in ((train, 0), (validation, 0), (make_stream(Corpus(tmp_path / "corpus")), place)):
        batches.append(stream.batch(first, PAIRS))
        assert 0 < len(opened) <= BLOCK_SHARDS
        opened.clear()
    assert not np.array_equal(batches[0].input_ids[:100], batches[2].input_ids[:100])
