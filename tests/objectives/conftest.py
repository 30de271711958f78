"""Shares checks of pairs: what holds for any pairs of each objective, and blocks made by hand."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from data_pipeline.corpus import Shard
from data_pipeline.sampling.block import Block, Spans
from data_pipeline.sampling.pairs import EASY, HARD, POSITIVE
from data_pipeline.sampling.random_bits import draw_random_bits
from objectives import parse_mixture


@dataclass(frozen=True)
class Groups:
    """The pairs of some anchors of one block, ``[n, g]`` each."""

    block: Block
    a: Spans
    b: Spans
    kinds: np.ndarray


def groups(stream: Any, first: int, count: int) -> Iterator[Groups]:
    """Examples of a stream of one objective, block by block."""
    (objective,) = stream.mixture.objectives
    g = objective.pairs_per_anchor
    assert first % g == count % g == 0
    for rows in stream.pairs(first, count):
        a, b = (spans.map(lambda x: x.reshape(-1, g).astype(np.int64)) for spans in rows.texts)
        yield Groups(rows.block, a, b, rows.kinds.reshape(-1, g))


def paragraphs_of(counts: Iterable[int], first: int = 0) -> list[list[int]]:
    """Paragraphs of so many sentences, no two sentences alike: they are numbered from ``first``."""
    bounds = np.cumsum([first, *counts]).tolist()
    return [list(range(a, b)) for a, b in pairwise(bounds)]


def shard_of(documents: list[list[list[int]]]) -> Shard:
    """A shard that was never on disk; a sentence is one token."""

    def starts(nested: list) -> np.ndarray:
        return np.cumsum([0, *map(len, nested)]).astype(np.int32)

    paragraphs = [p for d in documents for p in d]
    tokens = np.array([s for p in paragraphs for s in p], dtype=np.uint16)
    names = [f"d{k}" for k in range(len(documents))]
    rows = pa.record_batch({"id": names, "title": names})
    held_out = np.zeros(len(documents), dtype=np.uint8)
    sentence_starts = np.arange(len(tokens) + 1, dtype=np.int32)
    return Shard(rows, tokens, sentence_starts, starts(paragraphs), starts(documents), held_out)


def sampled(
    name: str, shards: list[list[list[list[int]]]], seed: int = 0, repeat: int = 5, sampling: str = "matched"
) -> Groups:
    """``repeat`` times the pairs of each anchor of a block of these shards."""
    (how,) = parse_mixture(name, sampling).objectives
    block = Block([shard_of(documents) for documents in shards], "train", how.usable)
    anchors = np.tile(block.anchors.astype(np.int64), repeat)
    pairs = how.sample(block, anchors, draw_random_bits(seed, "test", 0, len(anchors), how.num_draws))
    a, b = (spans.map(lambda x: x.astype(np.int64)) for spans in pairs.texts)
    return Groups(block, a, b, pairs.kind)


def texts(block: Block, spans: Spans) -> list[bytes]:
    """The tokens of each of ``[m]`` spans, read one by one."""
    return [block.read_tokens(spans[k]).astype(np.int64).tobytes() for k in range(len(spans.paragraph))]


def other_usable(block: Block, paragraphs: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Other usable paragraphs of the document with so many sentences at least, ``[n]``."""
    first, last = (block.document_first[block.document[paragraphs] + k] for k in (0, 1))
    rows = zip(paragraphs.tolist(), first.tolist(), last.tolist(), least.tolist(), strict=True)
    return np.array([(block.num_sentences[f:e] >= s).sum() - (block.num_sentences[p] >= s) for p, f, e, s in rows])


def check_any(these: Groups) -> None:
    """One positive, in slot 0; kinds say which documents the texts are of; spans lie in their paragraphs."""
    block, a, b, kinds = these.block, these.a, these.b, these.kinds
    assert (kinds[:, 0] == POSITIVE).all()
    assert (kinds[:, 1:] != POSITIVE).all()
    assert np.array_equal(block.document[a.paragraph] == block.document[b.paragraph], kinds != EASY)
    for spans in (a, b):
        assert (spans.start >= 0).all()
        assert (spans.start < spans.end).all()
        assert (spans.end <= block.num_sentences[spans.paragraph]).all()
    assert a.hole_start is None


def check_negatives(these: Groups) -> None:
    """All have one A, and no negative's B is the text of the positive's."""
    for name in ("paragraph", "start", "end"):
        assert np.ptp(getattr(these.a, name), axis=1).max() == 0
    check_different(these.block, these.b, these.b[:, 0])


def check_different(block: Block, b: Spans, spans: Spans) -> None:
    """No negative of ``[n, g]`` spans reads as its row's of ``[n]``."""
    read = texts(block, spans)
    for slot in range(1, b.paragraph.shape[1]):
        assert not any(x == y for x, y in zip(texts(block, b[:, slot]), read, strict=True))


def check_hard(these: Groups, least: np.ndarray, hard_where_possible: bool) -> None:
    """Hard negatives: two at most, of two paragraphs, first; as many as there are paragraphs of ``least`` sentences."""
    b, hard = these.b, these.kinds == HARD
    counts = hard.sum(axis=1)
    assert not hard[:, 3:].any()
    assert (b.paragraph[counts == 2, 1] != b.paragraph[counts == 2, 2]).all()
    if hard_where_possible:
        assert (np.diff(hard[:, 1:].astype(int), axis=1) <= 0).all()
        anchors = these.a.paragraph[:, 0]
        assert np.array_equal(counts, np.minimum(other_usable(these.block, anchors, least), 2))
        assert np.array_equal(counts > 0, other_usable(these.block, anchors, np.minimum(least, 2)) > 0)


def check_ssp(these: Groups, matched: bool = True, hard_where_possible: bool = True) -> None:
    """Up to three sentences, and up to five of the same paragraph, apart from them; as negatives, of others."""
    a, b = these.a, these.b
    assert these.kinds.shape[1] == 5
    assert b.hole_start is None
    length = b.end - b.start
    assert (a.end - a.start <= 3).all()
    assert (length <= 5).all()
    assert np.array_equal(b.paragraph == a.paragraph, these.kinds == POSITIVE)
    assert ((a.end <= b.start) | (b.end <= a.start))[:, 0].all()
    if matched:
        assert (length == length[:, :1]).all()
    check_negatives(these)
    check_hard(these, np.maximum(length[:, 0], 2) if matched else np.ones(len(length)), hard_where_possible)


def check_sp(these: Groups, matched: bool = True, hard_where_possible: bool = True, most: int = 3) -> None:
    """A and its paragraph without it; as negatives other paragraphs, of another text, without so many sentences."""
    block, a, b = these.block, these.a, these.b
    assert these.kinds.shape[1] == 5
    size, removed = a.end - a.start, b.hole_end - b.hole_start
    assert (size <= most).all()
    assert (b.start == 0).all()
    assert np.array_equal(b.end, block.num_sentences[b.paragraph])
    assert (b.hole_start >= 0).all()
    assert (b.hole_end <= b.end).all()
    assert ((removed >= 1) & (removed <= most) & (removed < b.end)).all()
    assert np.array_equal(b.paragraph == a.paragraph, these.kinds == POSITIVE)
    assert np.array_equal(b.hole_start[:, 0], a.start[:, 0])
    assert np.array_equal(b.hole_end[:, 0], a.end[:, 0])
    if matched:
        assert np.array_equal(removed, size)
    check_negatives(these)
    check_hard(these, size[:, 0] + 1 if matched else np.full(len(size), 2), hard_where_possible)
    check_different(block, block.take_whole(b.paragraph), block.take_whole(a.paragraph[:, 0]))


def check_psd(these: Groups, matched: bool = True, hard_where_possible: bool = True) -> None:
    """Whole paragraphs; the positive's is another of the document, and no negative reads as it or as A."""
    block, a, b = these.block, these.a, these.b
    assert these.kinds.shape[1] == 5
    assert (these.kinds[:, 1:] == EASY).all()
    assert b.hole_start is None
    for spans in (a, b):
        assert (spans.start == 0).all()
        assert np.array_equal(spans.end, block.num_sentences[spans.paragraph])
    assert (a.paragraph != b.paragraph).all()
    check_negatives(these)
    check_different(block, b, a[:, 0])


def check_nsp(these: Groups, hard_where_possible: bool = True) -> None:
    """The text that follows A, and as many sentences of another document."""
    a, b = these.a, these.b
    assert these.kinds.shape[1] == 2
    assert (these.kinds[:, 1] == EASY).all()
    assert b.hole_start is None
    assert np.array_equal(b.paragraph[:, 0], a.paragraph[:, 0])
    assert np.array_equal(b.start[:, 0], a.end[:, 0])
    assert np.array_equal((b.end - b.start)[:, 0], (b.end - b.start)[:, 1])
    assert (a.end - a.start <= 3).all()
    assert (b.end - b.start <= 5).all()
    check_negatives(these)


def check_sop(these: Groups, hard_where_possible: bool = True) -> None:
    """Two spans, the second right after the first, in this order and in the other."""
    a, b = these.a, these.b
    assert these.kinds.shape[1] == 2
    assert (these.kinds[:, 1] == HARD).all()
    assert b.hole_start is None
    for name in ("paragraph", "start", "end"):
        assert np.array_equal(getattr(a, name), getattr(b, name)[:, ::-1])
    assert np.array_equal(a.paragraph, b.paragraph)
    assert np.array_equal(a.end[:, 0], b.start[:, 0])
    assert (a.end - a.start <= 4).all()


CHECKS: dict[str, Callable[..., None]] = {"ssp": check_ssp, "sp": check_sp, "psd": check_psd, "nsp": check_nsp}
CHECKS |= {"sop": check_sop, "ict": partial(check_sp, most=1)}


def check(name: str, parts: Iterable[Groups], **expected: bool) -> Counter:
    """Whether these are pairs as the objective of that name defines them. How many there are of each kind.

    matched: False where lengths are drawn freely;  hard_where_possible: False where equal texts may forbid them
    """
    seen: Counter = Counter()
    for these in parts:
        check_any(these)
        CHECKS[name](these, **expected)
        seen.update(these.kinds.ravel().tolist())
    return seen


def check_stream(stream: Any, first: int = 0, count: int | None = None, **expected: bool) -> Counter:
    """``check`` of a stream's examples, all of an epoch's where there is no ``count``."""
    (objective,) = stream.mixture.objectives
    return check(objective.name, groups(stream, first, count or stream.epoch_pairs), **expected)


def as_likely(counts: Iterable[int], shares: Iterable[float]) -> None:
    """Counts are as the shares say, give or take what chance allows (5.5 standard deviations each)."""
    observed, expected = np.array(list(counts)), np.array(list(shares), dtype=float)
    assert len(observed) == len(expected)
    expected *= observed.sum() / expected.sum()
    assert expected.min() > 50, "too few draws to tell"
    assert (np.abs(observed - expected) < 5.5 * np.sqrt(expected)).all(), (observed, expected)


@pytest.fixture(scope="session")
def tools() -> SimpleNamespace:
    return SimpleNamespace(
        **{f.__name__: f for f in (groups, shard_of, sampled, texts, check, check_stream, as_likely)}
    )
