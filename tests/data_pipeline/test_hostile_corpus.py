"""A corpus folder from elsewhere cannot lead outside itself, blow memory up, or give pairs that are none."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest

from data_pipeline import manifest as manifest_module
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import hash_file
from data_pipeline.corpus import Corpus, ShardInfo, fingerprint_corpus, make_schema


@pytest.fixture
def copy(tiny_corpus, tmp_path):
    """A corpus folder of the test's own."""
    return shutil.copytree(tiny_corpus, tmp_path / "corpus")


def change(folder, edit):
    path = folder / "manifest.json"
    fields = json.loads(path.read_text())
    edit(fields)
    path.write_text(json.dumps(fields))


def rewrite(folder, table, number=0, options=None):
    """Another shard in place of one, and its size and hash in the manifest: as somebody who means harm would."""
    name = f"shards/{number:05d}.arrow"
    with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_batch(table)
    declare(folder, number)


def declare(folder, number):
    """Makes the manifest say of a shard, and of the corpus, what is true of the file that now lies there."""
    name = f"shards/{number:05d}.arrow"

    def edit(fields):
        facts = {"bytes": (folder / name).stat().st_size, "sha256": hash_file(folder / name)}
        fields["shards"][number].update(facts)
        shards = [ShardInfo(**shard) for shard in fields["shards"]]
        fields["fingerprint"] = fingerprint_corpus(shards, fields["tokenizer"]["fingerprint"])

    change(folder, edit)


def rows_of(folder, number=0):
    with pa.OSFile(str(folder / f"shards/{number:05d}.arrow"), "rb") as source:
        return pa.ipc.open_file(source).get_batch(0)


def told(action, *names):
    """The text with which ``action`` is refused: one line, with these names in it."""
    with pytest.raises(KinspanError) as caught:
        action()
    text = str(caught.value)
    assert "\n" not in text
    assert all(str(name) in text for name in names), text
    return text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("documents", 10**12), ("paragraphs", 2**62), ("sentences", 10**9), ("tokens", 10**18), ("tokens", -1)),
        *(("tokens", 1.5), ("bytes", "9"), ("documents", True), ("usable", {"ssp": {"train": {"anchors": 9}}})),
        ("usable", {"ssp": {s: {"anchors": 10**9, "documents": 2} for s in ("train", "validation")}}),
    ],
)
def test_counts_that_cannot_be_are_refused_before_anything_is_made_of_them(copy, name, value):
    change(copy, lambda fields: fields["shards"][1].update({name: value}))
    told(lambda: Corpus(copy), copy / "manifest.json")


def test_counts_that_could_be_and_are_not_are_refused_at_first_use(copy):
    for name in ("documents", "paragraphs", "sentences", "tokens"):
        fields = json.loads((copy / "manifest.json").read_text())
        there = fields["shards"][0][name]
        change(copy, lambda f, name=name, there=there: f["shards"][0].update({name: there + 1}))
        for verify in (True, False):
            text = told(lambda verify=verify: Corpus(copy, verify).shard(0), "00000.arrow")
            assert f"{there} {name}, not {there + 1}" in text
        (copy / "manifest.json").write_text(json.dumps(fields))


def test_usable_paragraphs_that_are_not_there_are_refused(copy, make_stream):
    def more(fields):
        for shard in fields["shards"]:
            shard["usable"]["ssp"]["train"]["anchors"] -= 1

    change(copy, more)
    told(lambda: make_stream(copy).batch(0, 5), copy / "manifest.json")


def test_a_shard_that_was_edited_with_its_hash_is_another_corpus(copy):
    """A run takes a corpus for its own by the fingerprint: it must be that of the shards."""
    before = Corpus(copy).manifest.fingerprint

    def edit(tokens):
        tokens[0] = tokens[1]

    rewrite(copy, with_tokens(rows_of(copy), edit))
    edited = Corpus(copy)
    assert edited.manifest.fingerprint != before
    assert edited.shard(0).tokens[0] == edited.shard(0).tokens[1]
    change(copy, lambda fields: fields.update(fingerprint=before))
    told(lambda: Corpus(copy), copy / "manifest.json", "fingerprint")


def test_a_manifest_larger_than_any_is_not_read(copy, monkeypatch):
    monkeypatch.setattr(manifest_module, "MAX_MANIFEST_BYTES", 1000)
    told(lambda: Corpus(copy), "larger than any")


def test_a_tokenizer_that_is_gone_is_named(copy):
    shutil.rmtree(copy / "tokenizer")
    with pytest.raises(KinspanError, match=r"corpus/tokenizer is missing: prepare the corpus again"):
        _ = Corpus(copy).tokenizer_folder


def test_a_link_out_of_the_tokenizers_folder_is_refused(copy):
    path = copy / "tokenizer/tokenizer.json"
    path.rename(copy.parent / "elsewhere.json")
    path.symlink_to(copy.parent / "elsewhere.json")
    told(lambda: Corpus(copy), "outside its folder", "tokenizer/tokenizer.json")


BOMB = 1 << 30  # bytes that it would unfold to
MAGIC = {"zstd": b"\x28\xb5\x2f\xfd", "lz4": b"\x04\x22\x4d\x18"}


def bomb(folder, compression):
    """The content of a compressed shard whose tokens would unfold to BOMB bytes; the shard is left in its place.

    A compressed buffer begins with the length to which it unfolds, which Arrow believes and allocates.
    """
    rows = rows_of(folder)
    columns = [rows.column(name) for name in rows.schema.names[:-1]]
    nested = pa.array(np.random.default_rng(0).integers(0, 1000, 1 << 19, dtype=np.uint16))
    for count in (1, 1, len(rows)):
        offsets = np.zeros(count + 1, dtype=np.int32)
        offsets[-1] = len(nested)
        nested = pa.ListArray.from_arrays(pa.array(offsets), nested)
    table = pa.RecordBatch.from_arrays([*columns, nested], schema=make_schema(wide=False))
    rewrite(folder, table, options=pa.ipc.IpcWriteOptions(compression=compression))
    content = (folder / "shards/00000.arrow").read_bytes()
    length = (1 << 20).to_bytes(8, "little") + MAGIC[compression]
    assert content.count(length) == 1
    return content.replace(length, BOMB.to_bytes(8, "little") + MAGIC[compression])


def place(folder, content):
    (folder / "shards/00000.arrow").write_bytes(content)
    declare(folder, 0)


@pytest.fixture
def no_bomb():
    """Fails a test in which Arrow allocated what the bomb unfolds to."""
    pool = pa.default_memory_pool()
    assert pool.max_memory() < BOMB, "this process has used too much memory before for the test to see anything"
    yield
    assert pool.max_memory() < BOMB


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_compressed_shard_is_refused_before_it_unfolds(copy, no_bomb, compression):
    place(copy, bomb(copy, compression))
    told(lambda: Corpus(copy, verify=False).shard(0), "00000.arrow", "it is compressed")


def test_a_compressed_batch_that_only_the_footer_names_is_not_read(copy, no_bomb):
    """The file's first batch is a plain one, and its footer says that the first is the compressed one behind it."""
    plain = (copy / "shards/00000.arrow").read_bytes()
    tokens = Corpus(copy).manifest.shards[0].tokens
    compressed = bomb(copy, "zstd")
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(plain[8:]))
    start = 8 + len(messages.read_next_message().serialize())
    end = start + len(messages.read_next_message().serialize())
    footer_start = len(compressed) - 10 - int.from_bytes(compressed[-10:-6], "little")
    footer = compressed[footer_start:]
    assert footer.count(start.to_bytes(8, "little")) == 1
    footer = footer.replace(start.to_bytes(8, "little"), end.to_bytes(8, "little"))
    place(copy, plain[:end] + compressed[start:footer_start] + footer)
    assert len(Corpus(copy).shard(0).tokens) == tokens


def with_tokens(rows, change_tokens):
    """The batch with other ids."""
    lists = rows.column("tokens")
    tokens = lists.values.values.values.to_numpy().copy()
    change_tokens(tokens)
    nested = pa.ListArray.from_arrays(lists.values.values.offsets, pa.array(tokens))
    nested = pa.ListArray.from_arrays(lists.values.offsets, nested)
    nested = pa.ListArray.from_arrays(lists.offsets, nested)
    return pa.RecordBatch.from_arrays([*rows.columns[:-1], nested], schema=rows.schema)


def test_ids_beyond_the_vocabulary_are_refused(copy):
    def edit(tokens):
        tokens[7] = 60_000

    rewrite(copy, with_tokens(rows_of(copy), edit))
    told(lambda: Corpus(copy).shard(0), "vocabulary")


def test_ids_beyond_the_vocabulary_are_refused_in_columns_that_few_corpora_have(copy):
    rows = rows_of(copy)
    titles = pa.array([[[60_000]]] * len(rows), pa.list_(pa.list_(pa.uint16())))
    columns = [*rows.columns[:-1], titles, rows.columns[-1]]
    rewrite(copy, pa.RecordBatch.from_arrays(columns, schema=make_schema(False, ["title_tokens"])))
    told(lambda: Corpus(copy).shard(0), "vocabulary")


def test_a_shard_of_documents_of_the_other_split_is_refused(copy):
    change(copy, lambda fields: fields["shards"][0].update(split="validation"))
    told(lambda: Corpus(copy).shard(0), "not of the split validation")
    change(copy, lambda fields: fields["shards"][0].update(split="both"))
    told(lambda: Corpus(copy), "is no split")


@pytest.mark.parametrize("place", [1, -2])
def test_offsets_that_lead_outside_the_file_are_refused(copy, place):
    rows = rows_of(copy)
    lists = rows.column("tokens")
    offsets = lists.values.values.offsets.to_numpy().copy()
    offsets[place] = 2**31 - 1
    data = [None, pa.py_buffer(offsets.tobytes())]
    inner = lists.values.values
    inner = pa.ListArray.from_buffers(inner.type, len(inner), data, children=[inner.values])
    nested = pa.ListArray.from_arrays(lists.offsets, pa.ListArray.from_arrays(lists.values.offsets, inner))
    rewrite(copy, pa.RecordBatch.from_arrays([*rows.columns[:-1], nested], schema=rows.schema))
    told(lambda: Corpus(copy).shard(0), "00000.arrow")


@pytest.mark.parametrize("column", ["id", "title"])
def test_a_shard_of_other_columns_is_refused(copy, column):
    rewrite(copy, rows_of(copy).drop_columns([column]))
    told(lambda: Corpus(copy).shard(0), "columns are not those of a shard")
