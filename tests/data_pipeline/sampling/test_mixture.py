"""Which objective, and which of its pairs, an index is; and the objectives that ``--objective`` names."""

import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.batch import concatenate
from data_pipeline.sampling.mixture import Mixture, MixturePart, deal_turns
from data_pipeline.sampling.pairs import POSITIVE
from data_pipeline.sampling.stream import PairStream
from objectives import OBJECTIVES, hash_own_sources, parse_mixture

WEIGHTS = st.lists(st.integers(1, 9), min_size=1, max_size=4)


# Arithmetic -----------------------------------------------------------------------------------------------


@given(WEIGHTS)
def test_turns_are_dealt_in_exact_shares_and_spread(weights):
    """After any number of turns no part has had a whole one more or less than its share."""
    pattern = deal_turns(tuple(weights))
    assert [pattern.count(part) for part in range(len(weights))] == weights
    had = np.cumsum(np.array(pattern)[:, None] == np.arange(len(weights)), axis=0)
    share = np.arange(1, len(pattern) + 1)[:, None] * np.array(weights) / sum(weights)
    assert np.abs(had - share).max() < 1


@st.composite
def mixtures(draw):
    """Objectives with groups of two and five pairs."""
    weights = draw(WEIGHTS)
    sizes = [draw(st.sampled_from([2, 5])) for _ in weights]
    objectives = (replace(OBJECTIVES["ssp"], name=f"o{k}", pairs_per_anchor=g) for k, g in enumerate(sizes))
    return Mixture(tuple(MixturePart(objective, weight) for objective, weight in zip(objectives, weights, strict=True)))


@given(mixtures(), st.integers(0, 3000), st.integers(0, 700))
def test_every_index_is_one_pair_of_one_part(how, first, count):
    indices = []
    for part in range(len(how.objectives)):
        pairs = np.arange(*how.own_pairs(part, first, first + count))
        index = how.index_of(part, pairs)
        assert (np.diff(index) > 0).all()
        indices += index.tolist()
        for pair, i in zip(pairs.tolist()[:20], index.tolist()[:20], strict=True):
            assert how.own_pairs(part, i, i + 1) == (pair, pair + 1)
    assert sorted(indices) == list(range(first, first + count))


# Streams --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_corpus(make_corpus):
    """Not tiny_corpus: five documents of three paragraphs."""
    note = "Note {} of file {} begins here. It has a second sentence, and is long enough."
    return make_corpus([[note.format(p, d) for p in range(3)] for d in range(5)], min_document_chars=0)


def test_two_corpora_of_one_shape_are_not_drawn_alike(make_corpus, make_stream):
    """Draws are keyed by the corpus: both the order of anchors and the places of sentences differ."""
    starts = []
    for word in ("one", "two"):
        paragraph = " ".join(f"Sentence {word} is the number w{n} of them." for n in range(6))
        corpus = make_corpus(
            [[f"Document w{d} {p} begins. {paragraph}" for p in range(4)] for d in range(30)], skip_steps=[]
        )
        rows = next(make_stream(corpus).pairs(0, 200))
        starts.append((rows.texts[0].paragraph, rows.texts[0].start))
    for first, second in zip(*starts, strict=True):
        assert np.mean(first == second) < 0.6


# Names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names", "weights"),
    [
        *[("nsp", ("nsp",), (1,)), ("ssp:7", ("ssp",), (1,)), ("all", ("ssp", "sp", "psd"), (1, 1, 1))],
        *[("ssp:2+sp:1", ("ssp", "sp"), (2, 1)), ("sop:4 + ict:6", ("sop", "ict"), (2, 3))],
        ("ssp+psd:1000", ("ssp", "psd"), (1, 1000)),
    ],
)
def test_names_and_weights_are_read(text, names, weights):
    assert (parse_mixture(text).names, parse_mixture(text).weights) == (names, weights)
    assert parse_mixture("ssp:2+nsp").positive_share == pytest.approx((2 * 0.2 + 0.5) / 3)


@pytest.mark.parametrize(
    ("text", "sampling", "flag"),
    [
        *[("spp", "matched", "--objective spp"), ("ssp+", "matched", "--objective")],
        *[("ssp+sp+ssp:2", "matched", r"--objective ssp\+sp\+ssp:2"), ("ssp:0", "matched", "--objective ssp:0")],
        *[("sp+ssp:1001", "matched", r"--objective sp\+ssp:1001"), ("ssp:-1", "matched", "--objective ssp:-1")],
        *[("ssp:²", "matched", "--objective ssp:²"), ("ssp+ict", "paper", "--sampling paper")],
        ("no_such_module:pairs", "matched", "--objective no_such_module:pairs"),
        *[("no_such_module:pairs", "paper", "--sampling paper"), ("json:dumps", "matched", "--objective json:dumps")],
        ("json:nothing", "matched", "--objective json:nothing"),
    ],
)
def test_an_objective_that_is_none_is_refused(text, sampling, flag):
    with pytest.raises(KinspanError, match=flag):
        parse_mixture(text, sampling)


# An objective of one's own --------------------------------------------------------------------------------

OWN = '''
"""Does B open the document that A closes? The other one's opening is another document's."""
import numpy as np
from data_pipeline.sampling.pairs import EASY, POSITIVE, Objective, Pairs
from data_pipeline.sampling.random_bits import draw_below
from data_pipeline.sampling.block import Spans

def usable(num_sentences, num_paragraphs):
    return (num_sentences >= 3) & (num_paragraphs >= 2)

def sample(block, anchors, random_bits):
    document, many = block.document[anchors], len(block.document_first) - 1
    drawn = draw_below(random_bits[:, 0], many - 1)
    b = block.document_first[np.column_stack([document, drawn + (drawn >= document)])].astype(np.int64)
    a = block.take_whole(np.column_stack([anchors, anchors]))
    kinds = np.tile(np.array([POSITIVE, EASY], dtype=np.int8), (len(anchors), 1))
    return Pairs((a, Spans(b, np.zeros_like(b), np.ones_like(b))), kinds)

my_objective = Objective(
    name="any", max_length=64, num_draws=4, usable=usable, needs="three sentences", sample=sample, pairs_per_anchor=2
)
'''


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module in the working directory, which is not on Python's path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_module.py").write_text(OWN, encoding="utf-8")
    yield tmp_path
    sys.modules.pop("my_module", None)


def test_an_objective_of_ones_own_gives_pairs_of_a_corpus_that_does_not_know_it(
    own_module, tiny_corpus, tiny_documents, make_stream, helpers
):
    assert not any("my_module:my_objective" in shard.usable for shard in Corpus(tiny_corpus).manifest.shards)
    stream = make_stream(tiny_corpus, objective="my_module:my_objective", masking=True)
    assert stream.mixture.names == ("my_module:my_objective",)
    validation = make_stream(tiny_corpus, objective="my_module:my_objective", split="validation")
    three = sum(p.count(".") >= 3 for d in tiny_documents for p in d["paragraphs"])  # a sentence ends in a dot
    assert stream.epoch_pairs + validation.epoch_pairs == 2 * three
    batch = stream.batch(0, stream.epoch_pairs)
    assert np.array_equal(batch.labels, np.tile([1, 0], stream.epoch_pairs // 2))
    assert np.diff(batch.starts).max() == 64
    for rows in stream.pairs(0, stream.epoch_pairs):
        a, b = (rows.block.document[spans.paragraph] for spans in rows.texts)
        assert np.array_equal(a == b, rows.kinds == POSITIVE)
        assert (rows.block.num_sentences[rows.texts[0].paragraph] >= 3).all()


def sample_three_texts(*given):
    pairs = OBJECTIVES["ssp"].sample(*given)
    return replace(pairs, texts=(*pairs.texts, pairs.texts[0]))


@pytest.mark.parametrize("wrong", [{"pairs_per_anchor": 4}, {"sample": sample_three_texts}])
def test_other_pairs_than_promised_are_an_error(tiny_corpus, make_stream, wrong):
    stream = make_stream(tiny_corpus)
    (part,) = stream.mixture.parts
    stream.mixture = Mixture((replace(part, objective=replace(part.objective, **wrong)),))
    with pytest.raises(KinspanError, match="objective ssp"):
        stream.batch(0, 16)


def test_an_edit_beside_an_own_objective_makes_it_another(own_module):
    text = "from dataclasses import replace\nimport my_helper\nfrom objectives import OBJECTIVES\n"
    (own_module / "my_helper.py").write_text("X = 1\n", encoding="utf-8")
    (own_module / "my_own.py").write_text(text + "O = replace(OBJECTIVES['ssp'])\n", encoding="utf-8")
    mixture = parse_mixture("my_own:O")
    before = hash_own_sources(mixture)
    assert before == hash_own_sources(mixture)
    (own_module / "my_helper.py").write_text("X = 2\n", encoding="utf-8")
    assert hash_own_sources(mixture) != before


@pytest.mark.parametrize("batch", [6, 7, 64])
def test_round_robin_each_batch_is_of_one_part_in_turn(tiny_corpus, other_corpus, make_stream, batch):
    """And its pairs are those of the part alone, one batch after another; a weight of 2 is two turns."""
    corpora = Corpus(tiny_corpus), Corpus(other_corpus)
    ssp, psd = parse_mixture("ssp:2+psd").parts
    mixture = Mixture((replace(ssp, corpus=corpora[0]), replace(psd, corpus=corpora[1])), batch)
    template = make_stream(corpora[0]).template
    stream = PairStream(mixture, template=template, seed=1)
    turns = [stream.batch(k * batch, batch) for k in range(9)]
    assert [set(turn.part.tolist()) for turn in turns] == [{0}, {1}, {0}] * 3
    for part, (name, corpus) in enumerate(zip(("ssp", "psd"), corpora, strict=True)):
        alone = make_stream(corpus, objective=name, max_length=128)
        of_part = concatenate([turn for turn in turns if turn.part[0] == part])
        assert np.array_equal(of_part.input_ids, alone.batch(0, len(of_part.index)).input_ids)
    assert np.array_equal(stream.batch(0, 9 * batch).input_ids, concatenate(turns).input_ids)


def test_an_epoch_of_round_robin_counts_every_corpus_with_a_bound(tiny_corpus, other_corpus, make_stream, monkeypatch):
    corpora = Corpus(tiny_corpus), Corpus(other_corpus)
    anchors = [sum(make_stream(c).orders[0].anchors) for c in corpora]
    (ssp,) = parse_mixture("ssp").parts
    parts = tuple(replace(ssp, corpus=corpus, source=k) for k, corpus in enumerate(corpora))
    stream = PairStream(Mixture(parts, 32), template=make_stream(corpora[0]).template, seed=1)
    assert stream.epoch_pairs == 5 * sum(anchors)
    monkeypatch.setattr("data_pipeline.sampling.stream.ROUND_ROBIN_ANCHORS", min(anchors))
    assert stream.epoch_pairs == 5 * 2 * min(anchors)


def test_a_part_without_a_share_keeps_its_number_and_gives_no_pair(tiny_corpus, make_stream):
    corpus = Corpus(tiny_corpus)
    given = zip(parse_mixture("ssp:2+psd:1+nsp:1").parts, (2, 0, 1), strict=True)
    parts = tuple(replace(part, corpus=corpus, weight=n) for part, n in given)
    stream = PairStream(Mixture(parts), template=make_stream(corpus).template, seed=1)
    assert Counter(stream.batch(0, 300).part.tolist()) == {0: 200, 2: 100}
    assert stream.epoch_pairs > 0
