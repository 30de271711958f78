import json
import os
import resource
import shutil

import numpy as np
import pyarrow as pa
import pytest

from data_pipeline import corpus as corpus_module
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import hash_file
from data_pipeline.corpus import Corpus, ShardInfo, fingerprint_corpus


@pytest.fixture
def copy(tiny_corpus, tmp_path):
    """A corpus folder of the test's own."""
    return shutil.copytree(tiny_corpus, tmp_path / "corpus")


def change(path, edit):
    fields = json.loads(path.read_text())
    edit(fields)
    path.write_text(json.dumps(fields))


def rewrite(folder, rows, number=0):
    """Puts another shard in the place of one, and its size and hash into the manifest, so that the hash is right."""
    path = folder / f"shards/{number:05d}.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_batch(rows)

    def edit(fields):
        fields["shards"][number].update(bytes=path.stat().st_size, sha256=hash_file(path))
        shards = [ShardInfo(**shard) for shard in fields["shards"]]
        fields["fingerprint"] = fingerprint_corpus(shards, fields["tokenizer"]["fingerprint"])

    change(folder / "manifest.json", edit)


def rows_of(folder, number=0):
    with pa.OSFile(str(folder / f"shards/{number:05d}.arrow"), "rb") as source:
        return pa.ipc.open_file(source).get_batch(0)


def open_all(folder, **kwargs):
    corpus = Corpus(folder, **kwargs)
    return [corpus.shard(n) for n in range(len(corpus.manifest.shards))]


def test_a_folder_without_a_manifest_is_no_corpus(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(KinspanError, match=str(folder)):
            Corpus(folder)


@pytest.mark.parametrize(
    "damage",
    {
        "empty": lambda p: p.write_bytes(b""),
        "not UTF-8": lambda p: p.write_bytes(b"\xff\xfe"),
        "cut": lambda p: p.write_text(p.read_text()[:-40]),
        "another version": lambda p: change(p, lambda fields: fields.update(format_version=99)),
        "another hash": lambda p: change(p, lambda fields: fields["shards"][0].update(sha256="0" * 64)),
        "a number for the shards": lambda p: change(p, lambda fields: fields.update(shards=5)),
        "a path outside": lambda p: change(p, lambda fields: fields["shards"][0].update(file="../elsewhere.arrow")),
        "a link outside": lambda p: link_outside(p.parent / "shards/00000.arrow"),
        "a link of the tokenizer": lambda p: link_outside(p.parent / "tokenizer/tokenizer.json"),
    }.items(),
    ids=lambda damage: damage[0],
)
def test_a_damaged_manifest_is_named(copy, damage):
    damage[1](copy / "manifest.json")
    with pytest.raises(KinspanError, match=str(copy / "manifest.json")):
        Corpus(copy)


def link_outside(path):
    elsewhere = path.parents[2] / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


@pytest.mark.parametrize("where", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_a_flipped_bit_anywhere_in_a_shard_is_found(copy, where):
    shard = copy / "shards/00001.arrow"
    content = bytearray(shard.read_bytes())
    content[int(where * (len(content) - 1))] ^= 1
    shard.write_bytes(content)
    corpus = Corpus(copy)
    corpus.shard(0)
    for _ in range(2):
        with pytest.raises(KinspanError, match=str(shard)):
            corpus.shard(1)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("size", [None, 0, 100, -1])
def test_a_truncated_or_missing_shard_is_named(copy, verify, size):
    shard = copy / "shards/00001.arrow"
    content = shard.read_bytes()
    shard.unlink()
    if size is not None:
        shard.write_bytes(content[:size])
    with pytest.raises(KinspanError, match=str(shard)):
        open_all(copy, verify=verify)


def test_a_shard_of_other_columns_is_refused(copy):
    rewrite(copy, rows_of(copy).drop_columns(["title"]))
    with pytest.raises(KinspanError, match=r"00000.arrow"):
        Corpus(copy).shard(0)


@pytest.mark.parametrize("place", [1, -2])
def test_offsets_that_lead_outside_the_file_are_refused(copy, place):
    rows = rows_of(copy)
    lists = rows.column("tokens")
    inner = lists.values.values
    offsets = inner.offsets.to_numpy().copy()
    offsets[place] = 2**31 - 1
    data = [None, pa.py_buffer(offsets.tobytes())]
    inner = pa.ListArray.from_buffers(inner.type, len(inner), data, children=[inner.values])
    nested = pa.ListArray.from_arrays(lists.offsets, pa.ListArray.from_arrays(lists.values.offsets, inner))
    rewrite(copy, pa.RecordBatch.from_arrays([*rows.columns[:-1], nested], schema=rows.schema))
    with pytest.raises(KinspanError, match=r"00000.arrow"):
        Corpus(copy).shard(0)


def test_a_shard_that_was_edited_with_its_hash_is_another_corpus(copy):
    """A run recognises its corpus by the fingerprint, which must be that of the shards."""
    before = Corpus(copy).manifest.fingerprint
    rows = rows_of(copy)
    held_out = pa.array(1 - np.array(rows.column("held_out")), pa.uint8())
    rewrite(copy, rows.set_column(rows.schema.get_field_index("held_out"), rows.schema.field("held_out"), held_out))
    assert Corpus(copy).manifest.fingerprint != before
    change(copy / "manifest.json", lambda fields: fields.update(fingerprint=before))
    with pytest.raises(KinspanError, match=r"manifest.json"):
        Corpus(copy)


def test_usable_paragraphs_that_are_not_there_are_refused(copy, make_stream):
    def remove(fields):
        for shard in fields["shards"]:
            shard["usable"]["ssp"]["train"]["anchors"] -= 1

    change(copy / "manifest.json", remove)
    with pytest.raises(KinspanError, match=r"manifest.json"):
        make_stream(copy).batch(0, 5)


def test_a_tokenizer_that_is_gone_is_named(copy):
    shutil.rmtree(copy / "tokenizer")
    with pytest.raises(KinspanError, match="corpus/tokenizer"):
        _ = Corpus(copy).tokenizer_folder


# Marks of what was verified -------------------------------------------------------------------------------


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


def test_a_mark_does_not_hide_damage_that_keeps_size_and_time(copy):
    open_all(copy)
    shard = copy / "shards/00001.arrow"
    before = shard.stat()
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x00")
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(KinspanError, match=str(shard)):
        Corpus(copy).shard(1)


def test_where_there_is_no_room_for_a_mark_the_shard_is_good_even_so(copy, hashed):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # as a full disk, it fails every write
    try:
        Corpus(copy).shard(0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    Corpus(copy).shard(0)
    assert hashed == ["00000.arrow"] * 2
