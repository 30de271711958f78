"""A lock that a killed compilation left is removed; one that is held is not."""

import os
import time

import pytest

from pretrain.compile_lock import GRACE, is_dead, no_dead_locks


@pytest.fixture
def lock(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    path = tmp_path / "some_extension" / "lock"
    path.parent.mkdir()
    path.touch()
    return path


def age(path, seconds):
    os.utime(path, (time.time() - seconds,) * 2)


def wait_until(what, seconds=10.0):
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.02)
    return what()


def test_an_old_lock_that_nobody_holds_is_removed(lock, capsys):
    age(lock, 2 * GRACE)
    with no_dead_locks():
        assert wait_until(lambda: not lock.exists())
    assert str(lock) in capsys.readouterr().out


def test_a_held_lock_stays_and_so_does_a_new_one(lock):
    assert not is_dead(lock)  # new
    age(lock, 2 * GRACE)
    with lock.open():
        assert not is_dead(lock)
    assert is_dead(lock)


def test_a_lock_released_meanwhile_is_no_error(lock):
    lock.unlink()
    assert not is_dead(lock)
