"""A remote corpus gives what a local one does, whatever its store answers, and fetches no more than it needs."""

import contextlib
import shutil
from collections import Counter, deque
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import CacheSettings
from data_pipeline.corpus import Corpus
from data_pipeline.tokenizers import fingerprint_tokenizer, load_tokenizer
from pretrain.config import PretrainConfig, as_dict
from tests.cases import assert_equal
from tests.chaos.faults import flip
from tests.synthetic import short_tokenizer

FAULTS = ("500 Internal Server Error", "truncate", "short", "corrupt", "stall")


def shards_of(counter):
    return Counter({name: n for name, n in counter.items() if name.endswith(".arrow")})


def files_in(cache):
    return {p for p in Path(cache.folder).rglob("*") if p.is_file()}


def nothing_half(cache):
    return not [p for p in files_in(cache) if p.suffix == ".part"]


@pytest.mark.parametrize("place", ["http", "s3", "local"])
def test_a_remote_corpus_gives_the_pairs_of_the_local_one(request, place, tiny_corpus, make_stream, cache):
    url = request.getfixturevalue(place).put(tiny_corpus)
    remote = Corpus(url, cache=cache)
    assert (remote.name, remote.manifest) == (url, Corpus(tiny_corpus).manifest)
    assert fingerprint_tokenizer(load_tokenizer(remote.tokenizer_folder)) == remote.manifest.tokenizer["fingerprint"]
    for split in ("train", "validation"):
        here, there = (make_stream(c, split=split, masking=True) for c in (tiny_corpus, remote))
        assert_equal(here.batch(0, 300), there.batch(0, 300))
    assert nothing_half(cache)


def test_what_is_fetched_is_what_is_needed(served, tiny_corpus, make_stream, cache):
    url = served.put(tiny_corpus)
    corpus = Corpus(url, cache=cache)
    assert served.faults.asked == {"manifest.json": 1}
    stream = make_stream(corpus, block_anchors=60)
    tokenizer = dict(served.faults.asked)
    assert not shards_of(served.faults.asked)
    stream.batch(0, 5)
    (segment,) = stream.orders[0].segments(0, 1)
    names = [Path(corpus.manifest.shards[n].file).name for n in segment.shards]
    assert shards_of(served.faults.asked) == Counter(names)
    assert_equal(make_stream(Corpus(url, cache=cache), block_anchors=60).batch(0, 5), stream.batch(0, 5))
    assert shards_of(served.faults.asked) == Counter(names)
    tokenizer["manifest.json"] += 1
    assert served.faults.asked - Counter(names) == tokenizer  # the manifest is read at each opening, and nothing else


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_answer_is_fetched_again_and_then_named(served, fault, tiny_corpus, make_stream, cache, impatient):
    url = served.put(tiny_corpus)
    corpus = Corpus(url, cache=cache)
    names = [Path(s.file).name for s in corpus.manifest.shards]
    stream = make_stream(corpus)
    served.faults.always = dict.fromkeys(names, fault)
    with pytest.raises(KinspanError, match=f"{url}/shards/"):
        stream.batch(0, 5)
    assert not [p for p in files_in(cache) if p.suffix == ".arrow"]
    served.faults.reset()
    served.faults.planned = {name: deque([fault]) for name in names}
    assert_equal(stream.batch(0, 300), make_stream(tiny_corpus).batch(0, 300))
    assert min(shards_of(served.faults.asked).values()) >= 2
    assert nothing_half(cache)


@pytest.mark.parametrize("fault", ["truncate", "short", "500 Internal Server Error"])
def test_a_damaged_manifest_is_fetched_again_and_then_named(served, fault, tiny_corpus, cache, impatient):
    url = served.put(tiny_corpus)
    served.faults.planned["manifest.json"] = deque([fault])
    assert Corpus(url, cache=cache).manifest == Corpus(tiny_corpus).manifest
    served.faults.always["manifest.json"] = fault
    with pytest.raises(KinspanError, match=f"{url}/manifest.json"):
        Corpus(url, cache=cache)


def test_what_is_missing_or_refused_is_named_at_once(served, tiny_corpus, make_stream, cache, tmp_path):
    with pytest.raises(KinspanError, match=r"corpus.*-elsewhere/manifest.json"):
        Corpus(served.put(tiny_corpus) + "-elsewhere", cache=cache)
    folder = shutil.copytree(tiny_corpus, tmp_path / "corpus")
    for shard in (folder / "shards").iterdir():
        shard.unlink()
    url = served.put(folder)
    with pytest.raises(KinspanError, match=f"{url}/shards/"):
        make_stream(Corpus(url, cache=cache)).batch(0, 5)
    served.faults.always["manifest.json"] = "403 Forbidden"
    with pytest.raises(KinspanError, match=f"{url}/manifest.json"):
        Corpus(url, cache=cache)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("nonsense://place/corpus", "nonsense://place/corpus"),
        ("http://127.0.0.1/corpus?version=secret", "http://127.0.0.1/corpus: "),
        ("http://[127.0.0.1/corpus", r"http://\[127.0.0.1/corpus"),
        ("s3://not a bucket/corpus", "s3://not a bucket/corpus"),
        ("http://user:secret@127.0.0.1:1/corpus", "http://127.0.0.1:1/corpus/manifest.json"),
    ],
)
def test_an_address_that_cannot_be_read_is_named_without_its_password(url, named, cache, impatient):
    with pytest.raises(KinspanError, match=named) as error:
        Corpus(url, cache=cache)
    assert "secret" not in str(error.value)


def test_no_secret_of_an_address_is_stored(http, tiny_documents, helpers, tmp_path):
    helpers.write_jsonl(tmp_path / "docs.jsonl", [{**document, "id": None} for document in tiny_documents])
    (tmp_path / "docs.jsonl").write_bytes((tmp_path / "docs.jsonl").read_bytes() + b"{broken\n")
    address = f"{http.put(tmp_path)}/docs.jsonl".replace("://", "://me:s3cr3t@")
    prepare = partial(helpers.prepare, tokenizer=short_tokenizer(), output=tmp_path / "corpus", max_rejected=0.5)
    assert prepare([f"{address}?sig=s3cr3t"]).read_tally.rejected == 1
    written = {path: path.read_bytes() for path in (tmp_path / "corpus").rglob("*") if path.is_file()}
    assert [path for path, content in written.items() if b"s3cr3t" in content] == []
    assert any(b"docs.jsonl:1" in content for content in written.values())
    assert prepare([f"{address}?sig=s3cr3t2"]).reused
    with pytest.raises(KinspanError, match=r"/none.jsonl: no such file") as error:
        prepare([address.replace("docs", "none") + "?sig=s3cr3t"])
    assert "s3cr3t" not in str(error.value)
    assert "s3cr3t" not in str(as_dict(PretrainConfig(corpus=[f"{address}=2,ssp"])))


def test_a_shard_that_was_damaged_in_the_cache_is_fetched_again(http, tiny_corpus, make_stream, cache):
    url = http.put(tiny_corpus)
    expected = make_stream(Corpus(url, cache=cache)).batch(0, 300)
    for shard in [p for p in files_in(cache) if p.suffix == ".arrow"]:
        flip(shard)
    http.faults.reset()
    assert_equal(make_stream(Corpus(url, cache=cache)).batch(0, 300), expected)
    assert shards_of(http.faults.asked)


def test_a_corpus_that_was_prepared_anew_is_another_one(http, tiny_corpus, make_corpus, make_stream, cache, tmp_path):
    folder = shutil.copytree(tiny_corpus, tmp_path / "corpus")
    url = http.put(folder)
    before = make_stream(Corpus(url, cache=cache)).batch(0, 100)
    anew = make_corpus([["One is here. Two is here, too. It is long enough for a paragraph of its own."] * 3] * 5)
    shutil.rmtree(folder)
    shutil.copytree(anew, folder)
    after = Corpus(url, cache=cache)
    assert after.manifest == Corpus(anew).manifest
    assert not np.array_equal(before.input_ids, make_stream(after).batch(0, 100).input_ids)


def test_a_cache_that_cannot_hold_two_blocks_is_refused(http, tiny_corpus, make_stream, tmp_path):
    sizes = [shard.bytes for shard in Corpus(tiny_corpus).manifest.shards if shard.split == "train"]
    for number, share in enumerate((1.01, 0.9)):
        settings = CacheSettings(str(tmp_path / str(number)), sum(sizes) / 1e9 * share)
        corpus = Corpus(http.put(tiny_corpus), cache=settings)
        with contextlib.nullcontext() if share > 1 else pytest.raises(KinspanError, match="--cache_gb"):
            make_stream(corpus).batch(0, 5)
