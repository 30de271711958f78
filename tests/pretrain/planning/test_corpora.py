"""Several corpora in one run: shares, pairs, names, and what makes them these."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.browse import decode_pairs, format_pair
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import CacheSettings
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.batch import concatenate
from data_pipeline.sampling.stream import PairStream
from data_pipeline.sources import Source, parse_sources
from pretrain.planning.corpora import identify_corpora, mix, open_corpora, open_corpora_for_tokenizer, summarize_corpora
from tests.cases import assert_equal

OBJECTIVES = st.sampled_from([None, "ssp", "nsp", "ssp:2+nsp:3", "all"])


@st.composite
def sources(draw):
    given = draw(st.lists(st.tuples(st.integers(1, 12), OBJECTIVES), min_size=1, max_size=5))
    return tuple(Source(f"corpus{k}", Fraction(weight), objective) for k, (weight, objective) in enumerate(given))


@given(sources(), st.integers(0, 10**6))
def test_each_corpus_has_its_exact_share_after_each_turn_of_all_and_nearly_everywhere(given, first):
    mixture = mix(given, "ssp")
    total, cycle = sum(source.weight for source in given), mixture.turn * sum(mixture.weights)
    for number, source in enumerate(given):
        parts = [k for k, part in enumerate(mixture.parts) if part.source == number]

        def count(a, b, parts=parts):
            return sum(end - begin for begin, end in (mixture.own_pairs(part, a, b) for part in parts))

        assert count(0, cycle) * total == cycle * source.weight
        assert count(first, first + 3 * cycle) * total == 3 * cycle * source.weight
        assert abs(count(0, first) - first * source.weight / total) <= mixture.turn * (len(parts) + 1)


@pytest.mark.parametrize(
    ("texts", "objective", "names", "weights"),
    [
        (["wiki=3,ssp:2+sp:1", "news=1"], "psd", ("wiki/ssp", "wiki/sp", "news"), (2, 1, 1)),
        *[([], "ssp:4+psd:2", ("ssp", "psd"), (2, 1)), (["docs=7"], "ssp:4+psd:2", ("ssp", "psd"), (2, 1))],
        *[(["docs=7,nsp"], "ssp", ("nsp",), (1,)), (["a=0.7,ssp", "b=0.3,sp"], "psd", ("a", "b"), (7, 3))],
        (["a=1.4,ssp", "b=.6,sp"], "psd", ("a", "b"), (7, 3)),
        (["a=1,ssp", "a=2,nsp"], "sp", ("ssp", "nsp"), (1, 2)),
    ],
)
def test_names_and_shares_of_the_parts(texts, objective, names, weights):
    mixture = mix(parse_sources(texts), objective)
    assert (mixture.names, mixture.weights) == (names, weights)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        *[(["a=1", "a=2"], "--corpus a"), (["a=1,spp", "b"], "spp")],
        (["a=997,ssp:991+sp:983", "b=967,ssp:953+sp:947"], "--corpus and --objective"),
        ([f"c{n}=1,all" for n in range(350)], "--corpus"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(texts, message):
    with pytest.raises(KinspanError, match=message):
        mix(parse_sources(texts), "ssp")


@pytest.fixture(scope="module")
def mixed(tiny_corpus, other_corpus, make_stream):
    """Of ten pairs, eight of tiny_corpus: three SSP to one NSP; and two PSD of the other one."""
    given = parse_sources([f"{tiny_corpus}=4,ssp:3+nsp:1", f"{other_corpus}=1"])
    mixture = mix(given, "psd").read_from(Corpus(tiny_corpus), Corpus(other_corpus))
    like = make_stream(tiny_corpus, masking=True)
    return PairStream(mixture, template=like.template, seed=3, masking=like.masking, block_anchors=60)


@given(st.integers(0, 5000), st.integers(1, 300), st.integers(1, 5))
def test_a_batch_does_not_depend_on_how_it_is_cut(mixed, first, count, ranks):
    bounds = np.linspace(0, count, ranks + 1).astype(int)
    shares = [mixed.batch(first + a, b - a) for a, b in pairwise(bounds) if b > a]
    assert_equal(concatenate(shares), mixed.batch(first, count))


def test_each_part_gives_the_pairs_of_its_corpus_alone(mixed, tiny_corpus, other_corpus, make_stream, helpers):
    cycle = mixed.mixture.turn * sum(mixed.mixture.weights)
    batch = mixed.batch(0, 4 * cycle)
    assert Counter(batch.part.tolist()) == {n: 4 * mixed.mixture.turn * w for n, w in enumerate(mixed.mixture.weights)}
    tokenizer = helpers.tokenizer(tiny_corpus / "tokenizer")
    places = [("ssp", tiny_corpus), ("nsp", tiny_corpus), ("psd", other_corpus)]
    described = list(decode_pairs(mixed, tokenizer, 0, 4 * cycle))
    for number, (name, folder) in enumerate(places):
        pairs = [pair for pair, part in zip(described, batch.part, strict=True) if part == number]
        alone = make_stream(folder, objective=name, seed=3, block_anchors=60, max_length=mixed.max_length)
        expected = decode_pairs(alone, tokenizer, 0, len(pairs))
        for ours, theirs in zip(pairs, expected, strict=True):
            assert all(ours[k] == theirs[k] for k in ("a", "b", "doc_id", "b_doc_id"))
    assert {pair["corpus"] for pair in described} == {"corpus", "corpus-2"}
    assert format_pair(described[0]).startswith("pair 0: corpus, ssp, ")


def test_what_makes_a_mixture_this_one(tiny_corpus, other_corpus):
    corpora = [Corpus(tiny_corpus), Corpus(other_corpus)]

    def identity(*texts, objective="ssp"):
        given = parse_sources(texts)
        return identify_corpora(mix(given, objective).read_from(*corpora), given)

    first, second = (corpus.manifest.fingerprint for corpus in corpora)
    assert identity("a") == first
    assert identity("a=2", "b=4") == identity("x=1", "y=2")
    assert identity("a=1", "b=2") == [
        {"corpus": first, "objective": "ssp", "weight": 1},
        {"corpus": second, "objective": "ssp", "weight": 2},
    ]
    identities = [identity("a=1", "b=2"), identity("a=2", "b=1"), identity("a=1,psd", "b=2"), identity("a=1,psd")]
    assert all(identities.count(each) == 1 for each in identities)


def test_what_is_said_of_several_corpora(tiny_corpus, other_corpus):
    corpora = [Corpus(tiny_corpus), Corpus(other_corpus)]
    mixture = mix(parse_sources(["a/wiki=3", "b/news=1,ssp+psd"]), "ssp").read_from(*corpora)
    facts = summarize_corpora(mixture, corpora)
    assert [(part["name"], part["share"]) for part in facts["corpora"]] == [("wiki", 0.75), ("news", 0.25)]
    assert facts["totals"]["documents"] == 100
    assert len({facts["fingerprint"], *(corpus.manifest.fingerprint for corpus in corpora)}) == 3
    assert "corpora" not in summarize_corpora(mix((), "ssp").read_from(corpora[0]), corpora[:1])


def test_corpora_of_two_tokenizers_are_refused(tiny_corpus, default_corpus, helpers):
    with pytest.raises(KinspanError, match="--corpus"):
        open_corpora(parse_sources([f"{tiny_corpus}=1", f"{default_corpus}=1"]), CacheSettings(), lambda: None)
    tokenizer = helpers.tokenizer(tiny_corpus / "tokenizer")
    with pytest.raises(KinspanError, match="tokenizer"):
        open_corpora_for_tokenizer(tokenizer, parse_sources([str(default_corpus)]), CacheSettings())


def test_an_objective_of_one_corpus_at_two_places_is_refused(tiny_corpus, tmp_path):
    """Each of its pairs would be learned twice."""
    (tmp_path / "copy").symlink_to(tiny_corpus)
    corpora = [Corpus(tiny_corpus), Corpus(tmp_path / "copy")]
    with pytest.raises(KinspanError, match="--corpus"):
        mix(parse_sources([f"{tiny_corpus}=1,psd+ssp", f"{tmp_path}/copy=1"]), "ssp").read_from(*corpora)
    mixture = mix(parse_sources([f"{tiny_corpus}=1,psd", f"{tmp_path}/copy=1"]), "ssp").read_from(*corpora)
    assert len(mixture.parts) == 2
