"""A rank that dies, stalls or falls silent is named; one that merely takes its time is not."""

import subprocess
import sys

import pytest
from torch.distributed import HashStore

from pretrain.engine import ranks, watch
from pretrain.engine.run_folder import open_folder
from pretrain.engine.watch import SETTING_UP, SILENCE, Watch, watch_ranks


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def three(clock, tmp_path):
    store = HashStore()  # in one process
    return [Watch(tmp_path, rank, 3, 100.0, store) for rank in range(3)]


def look(watches, clock, seconds=1.0):
    """What rank 0 says after all have looked once more."""
    clock[0] += seconds
    for other in reversed(watches):
        other.talk()
    for other in watches[1:]:
        assert other.look() is None
    return watches[0].look()


def test_ranks_that_come_further_are_left_alone_and_so_are_untimed_places(three, clock):
    for number in range(10):
        for rank in three:
            rank.enter(f"step {number}")
        assert look(three, clock, 50) is None
    three[0].enter("the release", untimed=True)
    assert [look(three, clock, 50) for _ in range(10)] == [None] * 10
    three[0].enter("step 11")
    assert [look(three, clock, 50) for _ in range(2)] == [None] * 2
    assert "every" not in look(three, clock, 60)  # rank 0 has one mark more


def test_a_silent_rank_is_named_wherever_it_is(three, clock):
    three[2].beat.host = three[2].beat.machine = "elsewhere"  # where its process cannot be seen
    three[2].enter("step 3")
    assert look(three, clock) is None
    assert look(three[:2], clock, 0.6 * SILENCE) is None
    verdict = look(three[:2], clock, 0.6 * SILENCE)
    assert "rank 2" in verdict
    assert f"on elsewhere) has given no sign of life for 60 s, as seen from {three[0].beat.host}" in verdict
    assert "step 3" in verdict


@pytest.fixture
def dead_process():
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    return child.pid


def test_a_dead_process_is_noticed_at_once(three, clock, dead_process):
    three[1].beat.process = dead_process
    three[1].enter(SETTING_UP)
    assert look(three, clock) is None  # it may have refused, as the others are about to
    three[1].enter("step 1")
    assert "rank 1" in look(three, clock)


def test_a_machine_that_is_lost_while_the_others_leave_is_named(three, clock, dead_process):
    """They wait for it without end. A process that has ended is in order then, and so is one that takes its time."""
    for rank in three:
        rank.enter("step 9, waiting for the device")
    assert look(three, clock) is None
    three[0].leave()
    three[1].leave()
    assert [look(three, clock, 50) for _ in range(10)] == [None] * 10
    three[2].beat.process = dead_process
    assert look(three, clock) is None
    clock[0] += SILENCE + 1
    assert "rank 0" in three[1].look()
    assert "has given no sign of life" in three[0].look()


def test_a_network_that_fails_while_all_ranks_live_has_the_status_of_a_loss(tmp_path, monkeypatch):
    """And leaves a folder to start again in, also from the set-up, before which it holds no run."""
    for name in ("SILENCE", "FAREWELL"):
        monkeypatch.setattr(watch, name, 0.0)
    monkeypatch.setattr(watch.os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended, watch_ranks(tmp_path, 0, 1, 100.0):
        raise ranks.CommunicationFailure("gloo")
    assert ended.value.code == watch.STATUS
    assert (tmp_path / "stacks/rank-0.txt").exists()
    assert open_folder(tmp_path) == tmp_path
