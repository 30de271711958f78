"""Which shards and columns are written: see format version 2 in data_pipeline/corpus.py."""

from dataclasses import replace

import pyarrow as pa

from data_pipeline.corpus import OPTIONAL_COLUMNS, SPLITS, Corpus
from data_pipeline.prepare.readers import READERS, jsonl
from tests.synthetic import short_tokenizer


def test_held_out_documents_have_shards_of_their_own(tiny_corpus, make_stream):
    shards = Corpus(tiny_corpus).manifest.shards
    assert [s.split for s in shards] == sorted(s.split for s in shards)
    assert {s.split for s in shards} == set(SPLITS)
    for split in SPLITS:
        stream = make_stream(tiny_corpus, split=split)
        read = {number for segment in stream.orders[0].segments(0, 10**4) for number in segment.shards}
        assert read == {number for number, shard in enumerate(shards) if shard.split == split}


def test_what_only_some_readers_give_is_kept_as_token_ids(tmp_path, helpers, monkeypatch):
    def parse(record):
        [document] = jsonl.READER.parse(record)
        if document.id.endswith("3"):
            return [document]
        given = {"answers": ["", "First. And more of it.", "Second."], "accepted": 2, "links": ["prepare-3"]}
        return [replace(document, title="How long is it? Who knows.", title_is_text=True, **given)]

    source = helpers.write_jsonl(tmp_path / "in.jsonl", helpers.synthetic_documents(5, seed="prepare"))
    monkeypatch.setitem(READERS, ".jsonl", replace(jsonl.READER, parse=parse))
    helpers.prepare([source], short_tokenizer(), tmp_path / "out", validation_share=0.0)
    assert len(Corpus(tmp_path / "out").shard(0).document_starts) == 6  # it passes its checks
    with pa.ipc.open_file(str(tmp_path / "out/shards/00000.arrow")) as file:
        rows = {row["id"]: row for row in file.read_all().to_pylist()}
    tokenizer = helpers.tokenizer(short_tokenizer())
    first, plain = rows["prepare-0"], rows["prepare-3"]
    assert [tokenizer.decode(ids) for ids in first["title_tokens"]] == ["how long is it?", "who knows."]
    answers = [[tokenizer.decode(ids) for ids in answer] for answer in first["answers"]]
    assert answers == [[], ["first.", "and more of it."], ["second."]]
    assert (first["accepted"], first["links"]) == (2, ["prepare-3"])
    assert [plain[name] for name in OPTIONAL_COLUMNS] == [[], [], -1, []]
