from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import hash_file
from data_pipeline.corpus import SPLITS, Corpus
from data_pipeline.prepare import encode as encode_module
from data_pipeline.prepare import pipeline as prepare_module
from data_pipeline.prepare import write as write_module
from data_pipeline.prepare.cleaning import STEPS, Rules, Tally, clean, split_sentences
from data_pipeline.prepare.document import Document
from data_pipeline.prepare.pipeline import CORPUS_PARTS
from data_pipeline.prepare.plan import PreparePlan
from data_pipeline.prepare.summary import format_corpus
from objectives import OBJECTIVES
from tests.synthetic import short_tokenizer

NUM_DOCUMENTS = 30


@pytest.fixture(scope="module")
def documents(helpers):
    return helpers.synthetic_documents(NUM_DOCUMENTS, seed="prepare")


@pytest.fixture
def source(documents, helpers, tmp_path):
    return helpers.write_jsonl(tmp_path / "in.jsonl", documents)


@pytest.fixture(scope="module")
def good(documents, helpers, tmp_path_factory):
    """Hashes of the shards of ``source``, of 3000 tokens each."""
    folder = tmp_path_factory.mktemp("good")
    source = helpers.write_jsonl(folder / "in.jsonl", documents)
    helpers.prepare([source], short_tokenizer(), folder / "out", shard_tokens=3000)
    return hashes(folder / "out")


def hashes(folder):
    return [(s.file, s.sha256) for s in Corpus(folder).manifest.shards]


def stored(corpus):
    """``{id: (shard, held_out, tokens)}`` as plain Arrow reads it."""
    result = {}
    for number, info in enumerate(corpus.manifest.shards):
        with pa.ipc.open_file(str(corpus.folder / info.file)) as file:
            assert file.num_record_batches == 1
            for row in file.read_all().to_pylist():
                assert row["id"] not in result
                result[row["id"]] = (number, row["held_out"], row["tokens"])
    return result


# What is written ------------------------------------------------------------------------------------------


def test_stores_every_sentence_of_every_kept_paragraph(any_corpus, documents_of, helpers):
    corpus, documents = Corpus(any_corpus), documents_of(any_corpus)
    tokenizer = helpers.tokenizer(any_corpus / "tokenizer")
    rows = stored(corpus)
    for number, (name, document) in enumerate(documents.items()):
        read = Document(name, document["title"], document["paragraphs"], "source")
        if not (paragraphs := clean(read, Rules(skip_steps=[step.name for step in STEPS]), Tally())):
            assert name not in rows
            continue
        tokens = rows[name][2]
        assert len(tokens) == len(paragraphs)
        if number % 10 == 0:
            for stored_ids, paragraph in zip(tokens, paragraphs, strict=True):
                texts = split_sentences(paragraph)
                ids = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
                assert stored_ids == [i for i in ids if i]


def test_counts_in_the_manifest_are_those_of_the_files(any_corpus):
    corpus = Corpus(any_corpus)
    rows = stored(corpus)
    assert len(corpus.manifest.shards) >= 3
    for number, info in enumerate(corpus.manifest.shards):
        documents = [(held_out, tokens) for n, held_out, tokens in rows.values() if n == number]
        assert info.documents == len(documents)
        assert info.paragraphs == sum(len(d) for _, d in documents)
        assert info.sentences == sum(len(p) for _, d in documents for p in d)
        assert info.tokens == sum(len(s) for _, d in documents for p in d for s in p)
        path = corpus.folder / info.file
        assert (info.bytes, info.sha256) == (path.stat().st_size, hash_file(path))
        assert set(info.usable) == {name for name, objective in OBJECTIVES.items() if not objective.column}
        for name in info.usable:
            enough = OBJECTIVES[name].usable
            for held_out, split in enumerate(SPLITS):
                usable = [
                    int(enough(np.array([len(p) for p in tokens]), np.full(len(tokens), len(tokens))).sum())
                    for h, tokens in documents
                    if h == held_out
                ]
                assert info.usable[name][split] == {"anchors": sum(usable), "documents": sum(n > 0 for n in usable)}
    totals = corpus.manifest.totals
    for name in ("documents", "paragraphs", "sentences", "tokens", "bytes"):
        assert totals[name] == sum(getattr(s, name) for s in corpus.manifest.shards)


def test_a_large_vocabulary_is_stored_in_four_bytes(tmp_path, source, helpers, make_stream, monkeypatch):
    helpers.prepare([source], short_tokenizer(), tmp_path / "narrow")
    monkeypatch.setattr(PreparePlan, "wide", True)
    helpers.prepare([source], short_tokenizer(), tmp_path / "wide")
    wide, narrow = Corpus(tmp_path / "wide"), Corpus(tmp_path / "narrow")
    assert wide.shard(0).tokens.dtype == np.int32
    assert np.array_equal(wide.shard(0).tokens, narrow.shard(0).tokens)
    for corpus in (wide, narrow):  # which keys what is drawn
        corpus.manifest = replace(corpus.manifest, fingerprint="same")
    ids = [make_stream(corpus).batch(0, 50).input_ids for corpus in (wide, narrow)]
    assert np.array_equal(*ids)


def test_what_was_read_kept_and_dropped_is_in_the_manifest_and_fits_a_screen(tmp_path, helpers):
    documents = helpers.synthetic_documents(9, seed="prepare")
    documents[1]["paragraphs"].append("Short.")
    (tmp_path / "in").mkdir()
    helpers.write_jsonl(tmp_path / "in/a.jsonl", [*documents, documents[1]])
    manifest = helpers.prepare([tmp_path / "in"], short_tokenizer(), tmp_path / "out").manifest
    assert manifest == Corpus(tmp_path / "out").manifest
    counts = {name: manifest.counts[name] for name in ("documents read", "documents kept", "paragraphs too short")}
    assert counts == {"documents read": 10, "documents kept": 9, "paragraphs too short": 3}
    lines = format_corpus(manifest).splitlines()
    assert len(lines) <= 24
    ends = ("documents of in", "documents that repeat")
    assert [line.split()[-1] for line in lines if line.startswith(ends)] == ["9", "1"]


# Running again --------------------------------------------------------------------------------------------


def test_running_again_says_reused_and_changes_nothing(tmp_path, source, helpers):
    first = helpers.prepare([source], short_tokenizer(), tmp_path / "out")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
    second = helpers.prepare([source], short_tokenizer(), tmp_path / "out")
    assert (first.reused, second.reused) == (False, True)
    assert second.manifest == first.manifest
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")} == before


@pytest.mark.parametrize(("part", "keep"), [("shard", None), ("shard", -100), ("manifest", -100)])
def test_preparing_again_mends_what_an_error_says_it_mends(tmp_path, source, good, helpers, part, keep):
    """The errors of a damaged corpus say "prepare the corpus again": that must help."""
    helpers.prepare([source], short_tokenizer(), tmp_path / "out", shard_tokens=3000)
    path = tmp_path / "out" / {"shard": good[1][0], "manifest": "manifest.json"}[part]
    content = path.read_bytes()
    path.unlink()
    if keep:
        path.write_bytes(content[:keep])
    helpers.prepare([source], short_tokenizer(), tmp_path / "out", shard_tokens=3000)
    assert hashes(tmp_path / "out") == good
    assert len(stored(Corpus(tmp_path / "out"))) == NUM_DOCUMENTS


OTHER = [{"validation_share": 0.5}, {"min_paragraph_chars": 10}, {"shard_tokens": 1000}]
OTHER += [{"inputs": ["docs", "more.jsonl"]}, {"tokenizer": "tokenizers/roberta-base-tokenizer"}]
REFUSED = [
    *[({"boilerplate": 1}, "--boilerplate"), ({"sbatch": ["partition=cpu"]}, "--sbatch")],
    *[({"output": "file/out"}, "--output_dir"), ({"output": "taken"}, "--output_dir .*taken")],
    ({"output": "docs/corpus"}, "--output_dir .*docs/corpus"),
    *(({"output": "done", **changed}, "--output_dir .*done") for changed in OTHER),
    ({"output": "done", "licence": "CC0"}, "--licence CC0"),
]


@pytest.fixture(scope="module")
def place(documents, helpers, tmp_path_factory):
    """A folder with documents, and with output folders that are in use."""
    folder = tmp_path_factory.mktemp("refused")
    for name in ("docs", "taken"):
        (folder / name).mkdir()
    (folder / "file").touch()
    (folder / "taken/thesis.tex").write_text("precious")
    helpers.write_jsonl(folder / "docs/in.jsonl", documents)
    helpers.write_jsonl(folder / "more.jsonl", documents)
    helpers.prepare([folder / "docs"], short_tokenizer(), folder / "done", licence="MIT")
    return folder


@pytest.mark.parametrize(("changed", "flag"), REFUSED, ids=lambda case: str(case))
def test_what_is_refused_names_the_flag_and_changes_nothing(place, helpers, request, changed, flag):
    before = sorted((path, path.stat().st_mtime_ns) for path in place.rglob("*"))
    options = {"licence": "MIT", **changed}
    inputs = [place / name for name in options.pop("inputs", ["docs"])]
    tokenizer = short_tokenizer()
    if "tokenizer" in options:
        tokenizer = request.getfixturevalue("shared") / options.pop("tokenizer")
    with pytest.raises(KinspanError, match=flag) as error:
        helpers.prepare(inputs, tokenizer, place / options.pop("output", "new"), **options)
    assert "\n" not in str(error.value)
    assert sorted((path, path.stat().st_mtime_ns) for path in place.rglob("*")) == before


# Interrupted runs -----------------------------------------------------------------------------------------


def interrupt_after(function, calls):
    """``function``, but Ctrl-C comes right after so many calls of it."""

    def interrupted(*args, **kwargs):
        nonlocal calls
        result = function(*args, **kwargs)
        calls -= 1
        if calls == 0:
            raise KeyboardInterrupt
        return result

    return interrupted


INTERRUPTED = {
    "while tokenising": (encode_module, "cut_chunks", 1),
    "before duplicates are found": (prepare_module, "check_unchanged", 1),
    "between shards": (write_module, "write_shard", 2),
    "after the shards": (prepare_module, "fingerprint_corpus", 1),
    "after the manifest": (prepare_module, "write_manifest", 1),
}


@pytest.mark.parametrize("when", INTERRUPTED)
def test_an_interrupted_run_leaves_no_corpus_and_the_same_command_succeeds(
    tmp_path, source, good, helpers, monkeypatch, when
):
    module, name, calls = INTERRUPTED[when]
    with monkeypatch.context() as patch:
        patch.setattr(module, name, interrupt_after(getattr(module, name), calls))
        with pytest.raises(KeyboardInterrupt):
            helpers.prepare([source], short_tokenizer(), tmp_path / "out", shard_tokens=3000)
    if name != "write_manifest":
        with pytest.raises(KinspanError, match="no corpus"):
            Corpus(tmp_path / "out")
    result = helpers.prepare([source], short_tokenizer(), tmp_path / "out", shard_tokens=3000)
    assert result.reused == (name == "write_manifest")
    assert hashes(tmp_path / "out") == good
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"manifest.json", *CORPUS_PARTS}
