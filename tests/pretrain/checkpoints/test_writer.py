import errno
import json
import os
import threading
from pathlib import Path

import pytest

from data_pipeline.core.errors import KinspanError
from pretrain.checkpoints import manifest, writer
from pretrain.checkpoints.manifest import make_entry, write_manifest
from pretrain.checkpoints.reader import find_newest, find_resumable
from pretrain.checkpoints.writer import Writer
from tests.chaos.faults import HARMS


def write(folder, step, text="weights"):
    path = folder / f"step-{step:08d}"
    (path / "engine").mkdir(parents=True)
    (path / "engine" / "rank0.pt").write_text(text * 10)
    (path / "state.json").write_text("{}")
    files = [p for p in path.rglob("*") if p.is_file()]
    write_manifest(path, {p.relative_to(path).as_posix(): make_entry(p) for p in files})
    return path


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
@pytest.mark.parametrize("name", ["engine/rank0.pt", "state.json", "manifest.json"])
def test_a_harmed_checkpoint_is_skipped_by_name_and_an_older_one_taken(harm, name, tmp_path):
    older, newer = write(tmp_path, 5), write(tmp_path, 10)
    assert find_newest(tmp_path) == (newer, [])
    harm(newer / name)
    found, skipped = find_newest(tmp_path)
    assert found == older
    assert len(skipped) == 1
    assert "step-00000010" in skipped[0]
    assert name in skipped[0] or name == "manifest.json"


def test_every_file_and_folder_is_on_the_disk_before_the_manifest_is_there(tmp_path, monkeypatch):
    waited_for = set()

    def note(handle):
        if not list(tmp_path.rglob("manifest.json")):
            waited_for.add(Path(os.readlink(f"/proc/self/fd/{handle}")).relative_to(tmp_path).as_posix())

    monkeypatch.setattr(os, "fsync", note)
    name = write(tmp_path, 4).name
    files = ("engine/rank0.pt", "state.json", f"manifest.json.{os.getpid()}.tmp")
    assert waited_for == {name, f"{name}/engine", *(f"{name}/{file}" for file in files)}


@pytest.mark.parametrize(
    ("there", "written", "keep", "every", "removed"),
    [
        ([100, 200, 300, 400], 400, 2, 1000, [100, 200]),
        ([200, 250, 300, 400], 250, 1, 1000, [200, 300, 400]),  # later checkpoints are damaged
        ([100, 200, 300, 400, 500], 500, 1, 200, [100, 300]),
    ],
)
def test_old_and_damaged_checkpoints_go_and_some_stay(there, written, keep, every, removed, tmp_path):
    for step in there:
        write(tmp_path, step)
    stale = writer._find_stale(tmp_path, written, keep=keep, stays=lambda step: step % every == 0)
    assert sorted(path.name for path in stale) == [f"step-{step:08d}" for step in removed]


def test_a_manifest_from_elsewhere_leads_nowhere_else(tmp_path):
    (tmp_path / "secret").write_text("weights" * 10)
    path = write(tmp_path, 1)
    listed = json.loads((path / "manifest.json").read_text())
    listed["files"]["../secret"] = listed["files"]["engine/rank0.pt"]
    (path / "manifest.json").write_text(json.dumps(listed))
    assert "outside" in manifest.find_damage(path)


def test_a_file_that_no_manifest_names_is_ignored_unless_deepspeed_would_read_it(tmp_path):
    path = write(tmp_path, 1)
    for stray in (".DS_Store", "engine/.nfs0001", "engine/._rank0_optim_states.pt", "notes.txt"):
        (path / stray).write_text("of somebody else")
    assert find_newest(tmp_path) == (path, [])
    (path / "engine/rank1_optim_states.pt").write_text("of somebody else")
    assert find_newest(tmp_path)[0] is None


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_storage_that_fails_is_no_damage(number, tmp_path, monkeypatch):
    """An older checkpoint in its place would cost steps, and the newer one would be removed."""
    write(tmp_path, 5), write(tmp_path, 10)

    def fail(path):
        raise OSError(number, "it fails", str(path))

    monkeypatch.setattr(manifest, "hash_file", fail)
    with pytest.raises(OSError, match="step-00000010"):
        find_newest(tmp_path)
    with pytest.raises(KinspanError, match="step-00000010"):
        find_resumable(tmp_path)


def test_files_that_another_machine_wrote_elsewhere_make_no_checkpoint(tmp_path):
    older = write(tmp_path, 5)
    writer = Writer(tmp_path, rank=0, keep=1)
    partial = write(tmp_path, 10).rename(tmp_path / "step-00000010.x.tmp")
    files = {"state.json": make_entry(partial / "state.json")}
    files |= {"engine/rank1.pt": make_entry(partial / "engine/rank0.pt")}
    assert "engine/rank1.pt of another rank is not in" in writer._seal(partial, files, 10)
    assert find_newest(tmp_path) == (older, [])


def test_a_wait_for_the_disk_is_no_stall(tmp_path, monkeypatch):
    places, waiting = [], Writer(tmp_path, rank=0, keep=1)
    monkeypatch.setattr(writer, "note_place", lambda place, untimed=False: places.append(untimed))
    waiting.thread = threading.Thread(target=lambda: None)
    waiting.thread.start()
    assert waiting.finish() is None
    assert places == [True]
