import json
import os
import resource
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from data_pipeline import corpus as corpus_module
from data_pipeline import tokenizers, verification
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import hash_file
from data_pipeline.corpus import Corpus


@pytest.fixture
def copy(tiny_corpus, tmp_path):
    """A corpus folder of the test's own."""
    return shutil.copytree(tiny_corpus, tmp_path / "corpus")


def change(path, edit):
    fields = json.loads(path.read_text())
    edit(fields)
    path.write_text(json.dumps(fields))


def refused(match):
    return pytest.raises(KinspanError, match=match)


def is_one_line_that_names(error, *names):
    text = str(error.value)
    return "\n" not in text and all(str(name) in text for name in names)


def open_all(folder, **kwargs):
    corpus = Corpus(folder, **kwargs)
    return [corpus.shard(n) for n in range(len(corpus.manifest.shards))]


def test_opening_reads_the_manifest_alone(copy):
    shutil.rmtree(copy / "shards")
    assert Corpus(copy).manifest.totals["documents"] == 60


def test_a_shard_is_mapped_once_as_long_as_it_is_used_and_not_copied(tiny_corpus):
    corpus = Corpus(tiny_corpus)
    shard = corpus.shard(0)
    assert corpus.shard(0) is shard
    for array in (shard.tokens, shard.sentence_starts, shard.paragraph_starts, shard.document_starts):
        assert not array.flags.owndata
        assert not array.flags.writeable
    del shard, array
    assert not corpus._mapped


def test_a_folder_without_a_manifest_is_no_corpus(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with refused("no corpus at") as error:
            Corpus(folder)
        assert is_one_line_that_names(error, folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.write_bytes(b""),
        lambda p: p.write_bytes(b"\xff\xfe"),
        lambda p: p.write_text("[]"),
        lambda p: p.write_text("null"),
        lambda p: p.write_text(p.read_text()[:-40]),
        lambda p: change(p, lambda fields: fields.pop("tokenizer")),
        lambda p: change(p, lambda fields: fields.pop("format_version")),
        lambda p: change(p, lambda fields: fields["shards"][0].pop("sha256")),
        lambda p: change(p, lambda fields: fields["shards"][0].update(file=5)),
        lambda p: change(p, lambda fields: fields.update(shards=5)),
    ],
    ids=[
        "empty",
        "not UTF-8",
        "a list",
        "null",
        "cut",
        "no tokenizer",
        "no version",
        "no hash",
        "a number for a file",
        "a number for the shards",
    ],
)
def test_a_damaged_manifest_is_named(copy, damage):
    damage(copy / "manifest.json")
    with refused("is damaged") as error:
        Corpus(copy)
    assert is_one_line_that_names(error, copy / "manifest.json")


def test_another_format_version_is_named(copy):
    change(copy / "manifest.json", lambda fields: fields.update(format_version=99))
    with refused("format version 99") as error:
        Corpus(copy)
    assert is_one_line_that_names(error, copy / "manifest.json")


@pytest.mark.parametrize("name", ["/etc/passwd", "../elsewhere.arrow", "shards/../../elsewhere.arrow"])
def test_a_manifest_that_names_a_path_outside_its_folder_is_refused(copy, name):
    shutil.copy(next((copy / "shards").iterdir()), copy.parent / "elsewhere.arrow")
    change(copy / "manifest.json", lambda fields: fields["shards"][0].update(file=name))
    with refused("outside its folder") as error:
        Corpus(copy)
    assert is_one_line_that_names(error, name)


def test_a_link_that_leads_outside_the_folder_is_refused(copy):
    shard = copy / "shards/00000.arrow"
    shard.rename(copy.parent / "elsewhere.arrow")
    shard.symlink_to(copy.parent / "elsewhere.arrow")
    with refused("outside its folder"):
        Corpus(copy)


@pytest.mark.parametrize("where", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_a_flipped_bit_anywhere_in_a_shard_is_found(copy, where):
    shard = copy / "shards/00001.arrow"
    content = bytearray(shard.read_bytes())
    content[int(where * (len(content) - 1))] ^= 1
    shard.write_bytes(content)
    corpus = Corpus(copy)
    corpus.shard(0)
    with refused("SHA-256") as error:
        corpus.shard(1)
    assert is_one_line_that_names(error, shard)


def test_a_damaged_shard_is_still_refused_when_asked_for_again(copy):
    shard = copy / "shards/00001.arrow"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x00")
    corpus = Corpus(copy)
    for _ in range(2):
        with refused("SHA-256"):
            corpus.shard(1)


@pytest.fixture
def hashed(monkeypatch):
    """The names of the shards that were hashed, in order."""
    names = []
    monkeypatch.setattr(corpus_module, "hash_file", lambda path: names.append(path.name) or hash_file(path))
    return names


def test_a_shard_is_hashed_once_per_machine_if_at_all(copy, hashed):
    """Later processes, which open the corpus anew, find a mark; a shard that was touched since is hashed again."""
    open_all(copy, verify=False)
    assert hashed == []
    for _ in range(2):
        corpus = Corpus(copy)
        for _ in range(2):
            corpus.shard(0)  # mapped anew, since nobody holds it
    assert hashed == ["00000.arrow"]
    os.utime(copy / "shards/00000.arrow", ns=(1, 1))
    Corpus(copy).shard(0)
    assert hashed == ["00000.arrow"] * 2


def test_a_mark_does_not_hide_damage_that_keeps_size_and_time(copy, hashed):
    open_all(copy)
    shard = copy / "shards/00001.arrow"
    before = shard.stat()
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x00")
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    with refused("SHA-256"):
        Corpus(copy).shard(1)


def test_who_needs_a_shard_while_another_hashes_it_waits_for_the_mark(copy, hashed):
    with ThreadPoolExecutor(4) as pool:  # a lock of the file holds threads apart as it does processes
        list(pool.map(lambda corpus: corpus.shard(2), [Corpus(copy) for _ in range(4)]))
    assert hashed == ["00002.arrow"]


def test_where_the_cache_cannot_be_written_each_verifies_for_itself(copy, hashed, monkeypatch):
    (copy.parent / "file").touch()
    monkeypatch.setattr("data_pipeline.verification.find_cache", lambda: copy.parent / "file")
    for _ in range(2):
        Corpus(copy).shard(0)
    assert hashed == ["00000.arrow"] * 2


def test_where_there_is_no_room_for_a_mark_the_shard_is_good_even_so(copy, hashed):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # as a full disk, it fails every write
    try:
        Corpus(copy).shard(0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    Corpus(copy).shard(0)
    assert hashed == ["00000.arrow"] * 2


def test_a_mark_that_is_no_text_counts_as_none(copy, hashed):
    Corpus(copy).shard(0)
    for mark in (verification.find_cache() / "verified").iterdir():
        mark.write_bytes(b"\xff\xfe")
    Corpus(copy).shard(0)
    assert hashed == ["00000.arrow"] * 2


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("size", [0, 100, -1])
def test_a_truncated_shard_is_named_with_both_sizes(copy, verify, size):
    shard = copy / "shards/00001.arrow"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:size])
    with refused("truncated") as error:
        open_all(copy, verify=verify)
    assert is_one_line_that_names(error, shard, len(whole), len(whole[:size]))


def test_a_missing_shard_is_named(copy):
    (copy / "shards/00002.arrow").unlink()
    with refused("is missing") as error:
        open_all(copy)
    assert is_one_line_that_names(error, copy / "shards/00002.arrow")


def test_a_shard_that_is_no_arrow_file_is_named(copy):
    """Where another process does the hashing, the file is still not taken for what it is not."""
    shard = copy / "shards/00000.arrow"
    shard.write_bytes(b"x" * shard.stat().st_size)
    with refused("no readable Arrow file") as error:
        open_all(copy, verify=False)
    assert is_one_line_that_names(error, shard)


# Tokenizers -----------------------------------------------------------------------------------------------

BERT, ROBERTA, MINILM = (
    "tokenizers/bert-uncased_electra-small",
    "tokenizers/roberta-base-tokenizer",
    "models/all-MiniLM-L6-v2-fp16",
)


def check(corpus, tokenizer, name="the-model"):
    corpus.check_tokenizer(tokenizers.fingerprint_tokenizer(tokenizer), name)


def test_the_corpus_passes_with_its_own_tokenizer(any_corpus, helpers):
    check(Corpus(any_corpus), helpers.tokenizer(any_corpus / "tokenizer"))


def test_equal_tokenizers_pass_under_any_name(bert_corpus, default_corpus, shared, helpers):
    check(Corpus(bert_corpus), helpers.tokenizer(shared / MINILM))
    check(Corpus(bert_corpus), helpers.tokenizer(shared / BERT))
    check(Corpus(default_corpus), helpers.tokenizer(shared / BERT))


def test_another_models_tokenizer_is_refused_and_both_are_named(
    bert_corpus, shared, helpers, make_corpus, tiny_documents
):
    with refused("was prepared with the tokenizer bert-uncased_electra-small") as error:
        check(Corpus(bert_corpus), helpers.tokenizer(shared / ROBERTA), "roberta-base")
    assert is_one_line_that_names(error, bert_corpus, "bert-uncased_electra-small", "roberta-base")
    with refused("tokenizer roberta-base-tokenizer"):
        check(
            Corpus(make_corpus(tiny_documents[:5], shared / ROBERTA)),
            helpers.tokenizer(shared / MINILM),
        )


def test_cased_against_uncased_is_refused(tiny_corpus, helpers, tmp_path):
    from transformers import BertTokenizer

    vocabulary = helpers.tokenizer(tiny_corpus / "tokenizer").get_vocab()
    BertTokenizer(vocab=vocabulary, do_lower_case=False).save_pretrained(str(tmp_path / "cased"))
    cased = tokenizers.load_tokenizer(str(tmp_path / "cased"))
    assert cased.get_vocab() == vocabulary
    with refused("was prepared with the tokenizer"):
        check(Corpus(tiny_corpus), cased)
