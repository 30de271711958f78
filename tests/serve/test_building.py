"""An index that was changed answers like one built at once; whatever is cut short leaves no trace."""

from pkgutil import resolve_name
from unittest.mock import Mock

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import lock_file
from finetune.ranking.embedder import Embedder
from finetune.ranking.retrieval import find_by_words, find_exactly
from serve import building
from serve import index as opening
from serve.building import build_index
from serve.folder import LOCK, read_manifest
from serve.index import Index, iterate_answers
from serve.search import Searcher

QUESTIONS = ["a river of stone", "music in the garden", "number 41"]


def read(folder, embedder, k=10):
    """Ids and scores that an index gives, by vectors and by words."""
    index = Index(folder)
    ranked = find_exactly(index.matrix, embedder.embed_queries(QUESTIONS), k)
    ranked += [find_by_words(index.words, q, k, "en") for q in QUESTIONS]
    return [([index.answer(row).id for row in rows], np.round(scores, 4).tolist()) for rows, scores in ranked]


def test_an_index_becomes_what_its_answers_are_now(tmp_path, embedder, answers, monkeypatch, caplog):
    caplog.set_level("INFO")
    encode, encoded = embedder.embed_answers, []
    monkeypatch.setattr(embedder, "embed_answers", lambda texts, *more: encoded.append(len(texts)) or encode(texts))
    built, grown = tmp_path / "built", tmp_path / "grown"
    first = [*answers[30:50], answers[0]._replace(text="an older text"), answers[1]._replace(title="T"), *answers[2:20]]
    build_index(grown, embedder, first)
    moved = answers[2]._replace(id="elsewhere")
    now = [*answers[:2], *answers[3:40], moved]
    build_index(grown, embedder, now)
    assert encoded == [40, 11]  # texts of a0 and a20 to a29: not those of other ids or titles
    assert "11 answers added, 2 changed, 11 removed, 27 unchanged" in caplog.text
    build_index(built, embedder, now)
    index = Index(grown)
    assert list(iterate_answers(index.texts)) == now
    assert read(grown, embedder) == read(built, embedder)
    (grown / "evaluations").mkdir()
    before = read_manifest(grown)
    assert build_index(grown, embedder, now) == before
    now = [now[0]._replace(title="new"), *now[1:]]
    build_index(grown, embedder, now)
    assert list(iterate_answers(Index(grown).texts)) == now
    assert {path.name for path in grown.iterdir() if path.is_dir()} == {read_manifest(grown).data, "evaluations"}


def test_a_killed_build_goes_on_where_it_was(tmp_path, embedder, answers, monkeypatch, caplog):
    caplog.set_level("INFO")
    answers = [answers[0]._replace(text="river " * 2 * embedder.max_length), *answers[1:]]
    build_index(tmp_path / "other", embedder, answers)
    monkeypatch.setattr(building, "STEP", 20)
    encode, seen, rest = embedder.embed_answers, [], []

    def die_in_the_third(texts, precision):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(len(texts))
        return encode(texts, precision)

    monkeypatch.setattr(embedder, "embed_answers", die_in_the_third)
    with pytest.raises(KeyboardInterrupt):
        build_index(tmp_path / "index", embedder, answers)
    with pytest.raises(KinspanError, match="unfinished"):
        Index(tmp_path / "index")
    monkeypatch.setattr(embedder, "embed_answers", lambda texts, p: rest.append(len(texts)) or encode(texts, p))
    caplog.clear()
    build_index(tmp_path / "index", embedder, answers)
    assert (seen, rest) == ([20, 20], [20])
    assert "1 of 60 answers" in caplog.text
    assert read(tmp_path / "index", embedder) == read(tmp_path / "other", embedder)
    before = read_manifest(tmp_path / "index")
    assert build_index(tmp_path / "index", embedder, answers) == before


@pytest.mark.parametrize("place", ["building.write_words", "building.write_manifest", "folder.write_atomically"])
@pytest.mark.parametrize("after", [False, True])
def test_a_killed_change_leaves_the_index_as_it_was(tmp_path, embedder, answers, monkeypatch, place, after):
    folder = tmp_path / "index"
    build_index(folder, embedder, answers[:30])
    before = read(folder, embedder)
    new = [*answers[:3], answers[3]._replace(text="music in the garden"), *answers[5:50]]
    original = resolve_name(f"serve.{place}")

    def die(*arguments):
        if after:
            original(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(f"serve.{place}", die)
    with pytest.raises(KeyboardInterrupt):
        build_index(folder, embedder, new)
    monkeypatch.setattr(f"serve.{place}", original)
    if not after or place == "building.write_words":
        assert read(folder, embedder) == before
    build_index(folder, embedder, new)
    build_index(tmp_path / "other", embedder, new)
    assert read(folder, embedder) == read(tmp_path / "other", embedder)
    left = [path.name for path in folder.iterdir() if path.is_dir()]
    assert left == [read_manifest(folder).data] or (after and place == "folder.write_atomically")


def test_a_full_disk_is_refused_and_the_same_again_goes_on(tmp_path, embedder, answers, monkeypatch):
    monkeypatch.setattr(building.os, "posix_fallocate", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(KinspanError, match="--output_dir"):
        build_index(tmp_path / "index", embedder, answers[:10])
    monkeypatch.undo()
    with lock_file(tmp_path / "index" / LOCK, ""), pytest.raises(KinspanError, match="--output_dir"):
        build_index(tmp_path / "index", embedder, answers[:10])
    build_index(tmp_path / "index", embedder, answers[:10])
    assert len(Index(tmp_path / "index")) == 10


def test_the_language_of_an_index_may_change(tmp_path, embedder, answers):
    texts = [answer._replace(text=f"{answer.text} Garantien") for answer in answers[:5]]
    for language, num_found in (("en", 0), ("de", 5), (None, 0)):
        build_index(tmp_path / "index", embedder, texts, language=language)
        index = Index(tmp_path / "index")
        assert len(find_by_words(index.words, "Garantie", 9, index.manifest.settings["language"])[0]) == num_found


def test_another_models_index_is_refused(tmp_path, other_bi_encoder, embedder, answers):
    build_index(tmp_path / "index", embedder, answers[:5])
    with pytest.raises(KinspanError, match=f"--model {other_bi_encoder}"):
        build_index(tmp_path / "index", Embedder(str(other_bi_encoder)), answers[:5])
    with pytest.raises(KinspanError, match=f"--model {other_bi_encoder}"):
        Searcher(tmp_path / "index", model=str(other_bi_encoder))


@pytest.mark.parametrize(("place", "precision"), [("index", "bf16"), (".", "fp32"), ("index/index.json/x", "fp32")])
def test_what_cannot_be_done_changes_nothing(tmp_path, embedder, answers, place, precision):
    folder = tmp_path / "index"
    build_index(folder, embedder, answers[:5])
    before = read_manifest(folder)
    with pytest.raises(KinspanError, match="--output_dir"):
        build_index(tmp_path / place, embedder, answers[:5], precision)
    assert read_manifest(folder) == before
    assert list(tmp_path.iterdir()) == [folder]


def test_every_damaged_or_missing_file_is_named(tmp_path, embedder, answers):
    folder = tmp_path / "index"
    build_index(folder, embedder, answers)
    expected = read(folder, embedder)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("lock", "progress.json")]
    assert len(files) >= 6
    for path in files:
        content = path.read_bytes()
        for damaged in (content[:-3], bytes([content[0] ^ 1]) + content[1:], None):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            named = folder if path.name == "index.json" and damaged is None else path
            with pytest.raises(KinspanError, match=str(named)):
                Index(folder)
        path.write_bytes(content)
    assert read(folder, embedder) == expected


def test_an_index_that_changes_while_it_is_opened_is_opened_again(tmp_path, embedder, answers, monkeypatch):
    folder = tmp_path / "index"
    build_index(folder, embedder, answers[:10])
    mapped, original = [], opening.map_texts

    def change_first(path):
        if not mapped:
            mapped.append(path)
            monkeypatch.setattr(opening, "map_texts", original)
            build_index(folder, embedder, answers[:40])
            assert not path.exists()
        return original(path)

    monkeypatch.setattr(opening, "map_texts", change_first)
    assert len(Index(folder)) == 40
