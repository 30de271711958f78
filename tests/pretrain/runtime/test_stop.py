"""Requests to stop, and runs that were stopped."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from pretrain.runtime.stop import STATUS, find_launchers, is_orphaned, listen_for_stop

pytestmark = pytest.mark.timeout(120)
WAIT = """
import os, sys, time
from pretrain.stop import stop_request
with stop_request() as request:
    print("ready", flush=True)
    while not request.wanted():
        time.sleep(0.01)
    print(request.reason, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_asks_and_a_second_one_ends_at_once(number):
    process = subprocess.Popen([sys.executable, "-c", WAIT], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == f"{number.name}\n"
    process.send_signal(signal.SIGTERM)  # as a launcher hands a Ctrl-C on
    time.sleep(2.2)
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(timeout=5) == 128 + number


def test_handlers_are_given_back():
    before = signal.getsignal(signal.SIGTERM)
    with listen_for_stop() as request:
        assert signal.getsignal(signal.SIGTERM) != before
        assert not request.wanted()
    assert signal.getsignal(signal.SIGTERM) is before


def test_hours_end():
    with listen_for_stop(max_hours=1e-9) as request:
        assert request.wanted()
        assert request.reason == "--max_hours 1e-09 are over"


SHELL = ["sh", "-c", '"$@"; exit $?', "wrapper"]


@pytest.mark.parametrize("wrapper", [[], SHELL], ids=["bare", "wrapped"])
def test_a_launcher_that_dies_is_noticed(wrapper, tmp_path):
    """A process named like DeepSpeed's launcher starts the rank, perhaps through a shell, and is killed."""
    launcher = tmp_path / "deepspeed"
    launcher.write_text(f"import subprocess, sys\nsubprocess.run([*{wrapper!r}, sys.executable, '-c', {WAIT!r}])\n")
    process = subprocess.Popen([sys.executable, str(launcher)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    *between, rank = psutil.Process(process.pid).children(recursive=True)
    assert bool(between) == bool(wrapper)
    try:
        assert [p.pid for p in find_launchers(rank)] == [process.pid]
        process.kill()
        process.wait()
        assert process.stdout.readline() == "the launcher is gone\n"
    finally:
        rank.kill()


@pytest.mark.parametrize("variables", [{"CROSS_SIZE": "1"}, {"CROSS_SIZE": "2"}, {"TORCHELASTIC_RUN_ID": "none"}])
def test_a_launcher_that_died_before_its_rank_looked_is_noticed(variables):
    process = subprocess.Popen(
        [sys.executable, "-c", WAIT], stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )
    try:
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "the launcher is gone\n"]
    finally:
        process.kill()


FLAGS = ["--world_info=e30=", "--master_addr=127.0.0.1"]


@pytest.mark.parametrize(
    ("flags", "gone"),
    [
        (["--enable_each_rank_log=None"], True),  # of `deepspeed` on one machine, which is not there
        (["--enable_each_rank_log=None", "--node_rank=0"], False),  # of `deepspeed` on another machine
        ([], False),  # of a batch system
    ],
)
def test_a_launcher_of_ranks_alone_is_missed_only_by_deepspeed_on_this_machine(flags, gone, monkeypatch):
    monkeypatch.setenv("CROSS_SIZE", "1")
    chain = [SimpleNamespace(cmdline=lambda: ["python", "-u", "-m", "deepspeed.launcher.launch", *FLAGS, *flags])]
    assert is_orphaned(chain) is gone
    assert not is_orphaned([*chain, SimpleNamespace(cmdline=lambda: ["python", "/bin/deepspeed"])])


def test_by_hand_there_is_no_launcher():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert find_launchers(psutil.Process(child.pid)) == []
    child.communicate(b"\n")


def test_status_is_that_of_a_temporary_failure():
    assert STATUS == os.EX_TEMPFAIL
