"""A file is on the disk before it has its name, so that a loss of power leaves it whole or as it was; and locks."""

import errno
import os
from unittest.mock import Mock

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import lock_file, write_atomically


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, waited_for = tmp_path / "latest", []

    def note(handle):
        waited_for.append((os.readlink(f"/proc/self/fd/{handle}"), path.exists()))

    monkeypatch.setattr(os, "fsync", note)
    write_atomically(path, "step-00000004")
    assert waited_for == [(f"{path}.{os.getpid()}.tmp", False), (str(tmp_path), True)]
    assert path.read_text() == "step-00000004"


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / f"latest.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_atomically(tmp_path / "latest", "step-00000004")
    assert caught.value.filename == str(tmp_path / "latest")
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "latest", [3])
    assert not list(tmp_path.iterdir())


def test_a_lock_keeps_others_out(tmp_path, capsys):
    with lock_file(tmp_path / "lock", "in use"), pytest.raises(KinspanError, match=r"^in use$"):  # noqa: SIM117
        with lock_file(tmp_path / "lock", "in use"):
            pytest.fail("two are in")
    with lock_file(tmp_path / "lock", "in use"):
        pass
    assert capsys.readouterr().err == ""


def test_a_storage_without_locks_is_told_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    for _ in range(2):
        with lock_file(tmp_path / "lock", "in use"):
            pass
    assert [record.levelname for record in caplog.records] == ["WARNING"]
