"""Reads --corpus, on the command line and in a YAML file."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.core.errors import KinspanError
from data_pipeline.sources import Source, list_paths, name_corpora, parse_sources

PATHS = st.text(st.sampled_from("ab=,0/:."), min_size=1, max_size=12)
OBJECTIVES = st.sampled_from([None, "ssp", "ssp:2+psd:1", "my_module:my_objective"])


@pytest.mark.parametrize(
    ("text", "source"),
    [
        *[("corpora/docs", Source("corpora/docs")), ("s3://bucket/wiki=3", Source("s3://bucket/wiki", 3))],
        ("corpora/news=1,psd", Source("corpora/news", 1, "psd")),
        *[("corpora/a=b=2,ssp:2+sp", Source("corpora/a=b", 2, "ssp:2+sp")), ("corpora/a,b", Source("corpora/a,b"))],
        ("corpora/docs=0.7,ssp", Source("corpora/docs", Fraction(7, 10), "ssp")),
        ("corpora/docs=.25", Source("corpora/docs", Fraction(1, 4))),
        *[("corpora/docs=2.0", Source("corpora/docs", 2)), ("corpora/lr=1e-3", Source("corpora/lr=1e-3"))],
        *[("corpora/a=3=1", Source("corpora/a=3", 1)), ("corpora/x=1,y=2,psd", Source("corpora/x=1,y", 2, "psd"))],
    ],
)
def test_a_corpus_is_read_from_the_right(text, source):
    assert parse_sources([text]) == (source,)


@given(PATHS, st.integers(1, 1000) | st.sampled_from([0.5, 0.7, 2.0]), OBJECTIVES)
def test_what_is_written_comes_back(path, weight, objective):
    text = f"{path}={weight}" + (f",{objective}" if objective else "")
    assert parse_sources([text]) == (Source(path, Fraction(str(weight)), objective),)


@pytest.mark.parametrize("text", ["docs=0", "docs=0.0", "docs=1000.5", "docs=0,ssp", "docs=-1", f"docs={'9' * 5000}"])
def test_a_weight_out_of_range_is_refused(text):
    with pytest.raises(KinspanError, match="--corpus"):
        parse_sources([text])


def test_corpora_are_named_by_the_last_part_of_their_place():
    paths = ["corpora/wiki", "s3://user:secret@bucket/wiki/", "news", "wiki"]
    assert name_corpora(paths) == ["wiki", "wiki-2", "news", "wiki-3"]
    assert list_paths(parse_sources(["a=1,ssp", "b=2", "a=1,psd"])) == ["a", "b"]


@given(st.lists(st.sampled_from(["wiki", "x/wiki", "wiki-2", "y/wiki-2", "news", "/"]), unique=True))
def test_no_two_corpora_have_one_name(paths):
    assert len(set(name_corpora(paths))) == len(paths)
