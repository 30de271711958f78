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
from data_pipeline.sampling.batch import Batch, concatenate
from data_pipeline.sampling.stream import PairStream
from data_pipeline.sources import Source, parse_sources
from objectives import parse_mixture
from pretrain.planning.corpora import (
    describe_corpora,
    identify_corpora,
    mix,
    open_corpora,
    open_corpora_for_tokenizer,
)

WEIGHTS = st.integers(1, 1000)
OBJECTIVES = st.sampled_from([None, "ssp", "nsp", "ssp:2+nsp:3", "all"])


def assert_equal(one, other):
    for name in Batch.__dataclass_fields__:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


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


@given(st.lists(WEIGHTS, min_size=2, max_size=4))
def test_any_weights_up_to_a_thousand_give_exact_shares(weights):
    mixture = mix([Source(str(number), Fraction(weight)) for number, weight in enumerate(weights)], "ssp")
    cycle = mixture.turn * sum(mixture.weights)
    counted = [end - begin for begin, end in (mixture.own_pairs(part, 0, cycle) for part in range(len(weights)))]
    assert sum(counted) == cycle
    assert [n * sum(weights) for n in counted] == [cycle * weight for weight in weights]


def test_within_a_corpus_its_objectives_have_their_shares():
    mixture = mix(parse_sources(["wiki=3,ssp:2+sp:1", "news=1"]), "psd")
    assert mixture.names == ("wiki/ssp", "wiki/sp", "news")
    assert mixture.weights == (2, 1, 1)
    assert [part.objective.name for part in mixture.parts] == ["ssp", "sp", "psd"]


def test_one_corpus_is_what_it_was():
    for texts in ([], ["docs"], ["docs=7"]):
        assert mix(parse_sources(texts), "ssp:4+psd:2").weights == (2, 1)
        assert mix(parse_sources(texts), "ssp:4+psd:2").names == ("ssp", "psd")
    assert mix(parse_sources(["docs=7,nsp"]), "ssp").names == ("nsp",)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a=1", "a=2"], "--corpus a"),
        (["a=1,spp", "b"], "spp"),
        (["a=997,ssp:991+sp:983", "b=967,ssp:953+sp:947"], "--corpus and --objective"),
        ([f"c{n}=1,all" for n in range(350)], "--corpus"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(texts, message):
    with pytest.raises(KinspanError, match=message) as error:
        mix(parse_sources(texts), "ssp")
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def other_corpus(make_corpus, helpers):
    return make_corpus(helpers.synthetic_documents(40, "other"), validation_share=0.3, shard_tokens=4000)


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
        own = [pair for pair, part in zip(described, batch.part, strict=True) if part == number]
        alone = make_stream(folder, objective=name, seed=3, block_anchors=60, max_length=mixed.max_length)
        expected = decode_pairs(alone, tokenizer, 0, len(own))
        for ours, theirs in zip(own, expected, strict=True):
            assert [ours[k] for k in ("a", "b", "doc_id", "b_doc_id")] == [
                theirs[k] for k in ("a", "b", "doc_id", "b_doc_id")
            ]
    names = {pair["corpus"] for pair in described}
    assert names == {"corpus", "corpus-2"}
    assert format_pair(described[0]).startswith("pair 0: corpus, ssp, ")


def test_what_makes_a_mixture_this_one(tiny_corpus, other_corpus):
    corpora = [Corpus(tiny_corpus), Corpus(other_corpus)]

    def identity(*texts, objective="ssp"):
        given = parse_sources(texts)
        return identify_corpora(mix(given, objective).read_from(*corpora), given)

    one, two = (corpus.manifest.fingerprint for corpus in corpora)
    assert identity("a") == one  # as runs of one corpus were recognised before
    assert identity("a=2", "b=4") == identity("x=1", "y=2")
    assert identity("a=1", "b=2") == [
        {"corpus": one, "objective": "ssp", "weight": 1},
        {"corpus": two, "objective": "ssp", "weight": 2},
    ]
    found = [identity("a=1", "b=2"), identity("a=2", "b=1"), identity("a=1,psd", "b=2"), identity("a=1,psd")]
    assert all(found.count(each) == 1 for each in found)


def test_what_is_said_of_several_corpora(tiny_corpus, other_corpus):
    corpora = [Corpus(tiny_corpus), Corpus(other_corpus)]
    mixture = mix(parse_sources(["a/wiki=3", "b/news=1,ssp+psd"]), "ssp").read_from(*corpora)
    found = describe_corpora(mixture, corpora)
    assert [(own["name"], own["share"]) for own in found["corpora"]] == [("wiki", 0.75), ("news", 0.25)]
    assert found["totals"]["documents"] == 100
    assert len({found["fingerprint"], *(corpus.manifest.fingerprint for corpus in corpora)}) == 3
    assert "corpora" not in describe_corpora(mix((), "ssp").read_from(corpora[0]), corpora[:1])


def test_corpora_of_two_tokenizers_are_refused(tiny_corpus, default_corpus, helpers):
    with pytest.raises(KinspanError, match="--corpus"):
        open_corpora(parse_sources([f"{tiny_corpus}=1", f"{default_corpus}=1"]), CacheSettings(), lambda: None)
    tokenizer = helpers.tokenizer(tiny_corpus / "tokenizer")
    with pytest.raises(KinspanError, match="was prepared with the tokenizer"):
        open_corpora_for_tokenizer(tokenizer, parse_sources([str(default_corpus)]), CacheSettings())


def test_a_folder_whose_name_ends_like_a_weight_is_explained(tiny_corpus, tmp_path):
    for name in ("docs=3", "lr=0.1"):
        (tmp_path / name).symlink_to(tiny_corpus)
        with pytest.raises(KinspanError, match=rf"{name}=1") as error:
            open_corpora(parse_sources([f"{tmp_path}/{name}"]), CacheSettings(), lambda: None)
        assert "\n" not in str(error.value)
        (corpus,) = open_corpora(parse_sources([f"{tmp_path}/{name}=1"]), CacheSettings(), lambda: None)
        assert corpus.manifest == Corpus(tiny_corpus).manifest


def test_shares_need_not_add_up_to_one():
    texts = [["a=0.7,ssp", "b=0.3,sp"], ["a=7,ssp", "b=3,sp"], ["a=1.4,ssp", "b=.6,sp"]]
    assert {mix(parse_sources(given), "psd").weights for given in texts} == {(7, 3)}


def test_an_objective_of_one_corpus_at_two_places_is_refused(tiny_corpus, tmp_path):
    """Each of its pairs would be learned twice."""
    (tmp_path / "copy").symlink_to(tiny_corpus)
    corpora = [Corpus(tiny_corpus), Corpus(tmp_path / "copy")]
    with pytest.raises(KinspanError, match="ssp") as error:
        mix(parse_sources([f"{tiny_corpus}=1,psd+ssp", f"{tmp_path}/copy=1"]), "ssp").read_from(*corpora)
    assert "\n" not in str(error.value)
    mixture = mix(parse_sources([f"{tiny_corpus}=1,psd", f"{tmp_path}/copy=1"]), "ssp").read_from(*corpora)
    assert len(mixture.parts) == 2


def test_a_corpus_given_twice_is_opened_once(tiny_corpus):
    given = parse_sources([f"{tiny_corpus}=1,ssp", f"{tiny_corpus}=2,nsp"])
    corpora = open_corpora(given, CacheSettings(), lambda: None)
    mixture = mix(given, "sp").read_from(*corpora)
    assert len(corpora) == 1
    assert (mixture.names, mixture.weights) == (("ssp", "nsp"), (1, 2))
    assert mixture.names == parse_mixture("ssp:1+nsp:2").names
