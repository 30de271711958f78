"""Which forums --forums and --min_questions leave."""

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import CacheSettings
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.order import TooFewDocuments
from data_pipeline.sampling.stream import PairStream
from data_pipeline.sources import parse_sources
from data_pipeline.tokenizers import read_template
from pretrain.config import PretrainConfig
from pretrain.planning.corpora import build_mixture, drop_untrainable, list_sources, mix_validation
from pretrain.planning.forums import BALANCED, BENCHMARK_FORUMS, LARGEST, choose_forums
from tests.synthetic import short_tokenizer

EVERY = sorted({*BALANCED, *LARGEST, *BENCHMARK_FORUMS, "beer"})
GIVEN = parse_sources([f"forums/{name}.stackexchange.com" if len(name) % 2 else f"forums/{name}" for name in EVERY])


def choose(chosen, sources=GIVEN, min_questions=None):
    return [source.path for source in choose_forums(sources, chosen, min_questions, CacheSettings(None, 1.0))]


@pytest.mark.parametrize(("chosen", "names"), [("balanced", BALANCED), ("largest", LARGEST)])
def test_the_sets_of_the_paper(chosen, names):
    assert len(set(names)) == 18
    paths = choose(chosen)
    assert sorted(path.split("/")[1].removesuffix(".stackexchange.com") for path in paths) == sorted(names)
    assert paths == [source.path for source in GIVEN if source.path in paths]  # in the order of --corpus


def test_all_leaves_out_the_forums_of_the_benchmarks_and_their_metas():
    assert len(choose("all")) == len(EVERY) - 6
    of_benchmarks = [
        *("cooking.meta.stackexchange.com", "meta.askubuntu.com", "Aviation.stackexchange.com", "askubuntu.com-Posts"),
        *("travel.stackexchange.com_2024-04-02", "2024-04/apple.stackexchange.com.7z", "b/apple.stackexchange.com"),
    ]
    others = ["pineapple", "apple-pie", "beer.meta.stackexchange.com", "meta.stackexchange.com", "meta.superuser.com"]
    kept = choose("all", parse_sources([f"forums/{name}" for name in of_benchmarks + others]))
    assert kept == [f"forums/{name}" for name in others]


def test_named_forums_are_chosen():
    assert choose(None) == [source.path for source in GIVEN]
    assert choose("beer, physics") == [s.path for s in GIVEN if "/beer" in s.path or "/physics" in s.path]


@pytest.mark.parametrize("chosen", ["balanced", "winegrowing"])
def test_a_forum_that_is_not_there_is_named(chosen):
    with pytest.raises(KinspanError, match=f"--forums {chosen}"):
        choose(chosen, parse_sources(["forums/beer", "forums/gardening"]))


def test_small_forums_are_left_out(tiny_corpus, make_corpus, helpers):
    sources = parse_sources([str(tiny_corpus), str(make_corpus(helpers.synthetic_documents(7)))])
    sizes = [Corpus(s.path).manifest.totals["documents"] for s in sources]
    assert sizes[0] != sizes[1]
    kept = choose(None, sources, max(sizes))
    assert kept == [s.path for s, size in zip(sources, sizes, strict=True) if size == max(sizes)]
    with pytest.raises(KinspanError, match="--min_questions"):
        choose(None, sources, max(sizes) + 1)


def write_duplicates_of_one(folder, helpers, validation_share=0.0):
    """A forum of 40 questions, of which every second one was closed as a duplicate of the first."""
    folder.mkdir()
    lines = [
        {"id": f"q{n}", "title": f"How does thing {n} work?", "text": f"I have tried it {n} times, and it broke."}
        | ({"links": ["q0"]} if n % 2 else {})
        for n in range(40)
    ]
    asked = f"questions:{helpers.write_jsonl(folder / 'asked.jsonl', lines)}"
    helpers.prepare([asked], short_tokenizer(), folder / "corpus", validation_share=validation_share)
    return folder / "corpus"


def test_duplicates_of_one_question_have_no_turn_and_end_no_run(tmp_path, helpers):
    forum = write_duplicates_of_one(tmp_path / "forum", helpers)
    given = {"corpus": [str(forum)], "corpus_schedule": "round_robin"}
    both = PretrainConfig(**given, objective="title_body+duplicate")
    mixture, notes = drop_untrainable(build_mixture(both, list_sources(both)).read_from(Corpus(forum)))
    assert mixture.names == ("title_body",)
    assert len(notes) == 1
    alone = PretrainConfig(**given, objective="duplicate")
    asked = build_mixture(alone, list_sources(alone)).read_from(Corpus(forum))
    assert drop_untrainable(asked) == (asked, [])
    stream = PairStream(asked, template=read_template(helpers.tokenizer(short_tokenizer())), seed=1)
    with pytest.raises(KinspanError, match=r"^document q[0-9]+"):
        stream.batch(0, 8)


def test_held_out_duplicates_of_one_question_are_not_validated(tmp_path, helpers):
    forum = write_duplicates_of_one(tmp_path / "forum", helpers, validation_share=0.999)
    both = PretrainConfig(corpus=[str(forum)], objective="title_body+duplicate")
    mixture, notes = mix_validation(build_mixture(both, list_sources(both)).read_from(Corpus(forum)))
    assert mixture.weights == (1, 0)
    assert len(notes) == 1
    alone = PretrainConfig(corpus=[str(forum)], objective="duplicate")
    with pytest.raises(TooFewDocuments):
        mix_validation(build_mixture(alone, list_sources(alone)).read_from(Corpus(forum)))


def test_what_has_too_few_held_out_documents_is_left_out_of_validation_alone(tiny_corpus, make_corpus, helpers):
    small = make_corpus(helpers.synthetic_documents(30, seed="none"), validation_share=0.0)
    config = PretrainConfig(corpus=[f"{tiny_corpus}=1", f"{small}=1"])
    given = build_mixture(config, list_sources(config)).read_from(Corpus(tiny_corpus), Corpus(small))
    mixture, (note,) = mix_validation(given)
    assert mixture.weights == (1, 0)
    assert mixture.names[1] in note
