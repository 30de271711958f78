"""Requests to stop, and runs that were stopped."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.timeout(120)
WAIT = """
import os, sys, time
from pretrain.engine.stop import listen_for_stop
with listen_for_stop() as request:
    print("ready", flush=True)
    while not request.wanted():
        time.sleep(0.01)
    print(request.reason, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_asks_and_a_second_one_ends_at_once(number):
    """Also where stderr cannot be written."""
    with open("/dev/full", "w") as full:
        process = subprocess.Popen([sys.executable, "-c", WAIT], stdout=subprocess.PIPE, stderr=full, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == f"{number.name}\n"
    process.send_signal(signal.SIGTERM)  # as a launcher hands a Ctrl-C on
    time.sleep(2.2)
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(timeout=5) == 128 + number


SHELL = ["sh", "-c", '"$@"; exit $?', "wrapper"]
TORCH, DEEPSPEED = {"TORCHELASTIC_RUN_ID": "none"}, {"CROSS_SIZE": "1"}
START = "import subprocess, sys\nsubprocess.run([*{wrapper!r}, sys.executable, '-c', {program!r}])\n"


def start(program, variables):
    """A process of that program that has the launcher's variables, and what it says."""
    command, env = [sys.executable, "-c", program], {**os.environ, **variables}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


@pytest.mark.parametrize(
    ("variables", "wrapper"),
    [(TORCH, []), (TORCH, SHELL), (DEEPSPEED, []), (DEEPSPEED, SHELL), ({"ACCELERATE_MIXED_PRECISION": "no"}, [])],
    ids=["torch", "torch-wrapped", "deepspeed", "deepspeed-wrapped", "accelerate"],
)
def test_a_launcher_that_dies_is_noticed(variables, wrapper):
    """A Python process starts the rank, perhaps through a shell, and is killed."""
    launcher = start(START.format(wrapper=wrapper, program=WAIT), variables)
    assert launcher.stdout.readline() == "ready\n"
    *between, rank = psutil.Process(launcher.pid).children(recursive=True)
    assert bool(between) == bool(wrapper)
    try:
        launcher.kill()
        launcher.wait()
        assert launcher.stdout.readline() == "the launcher is gone\n"
    finally:
        rank.kill()


@pytest.mark.parametrize("variables", [TORCH, DEEPSPEED], ids=["torch", "deepspeed"])
def test_a_launcher_that_died_before_its_rank_looked_is_noticed(variables):
    """The process that started the rank ends while the rank is still importing."""
    late = f"import os, time\nwhile os.getppid() == {{parent}}:\n    time.sleep(0.01)\nprint(os.getpid())\n{WAIT}"
    program = f"import os, subprocess, sys\nlate = {late!r}.format(parent=os.getpid())\n"
    program += "subprocess.Popen([sys.executable, '-c', late])\nos._exit(0)\n"
    launcher = start(program, variables)
    rank = psutil.Process(int(launcher.stdout.readline()))
    try:
        assert [launcher.stdout.readline() for _ in range(2)] == ["ready\n", "the launcher is gone\n"]
    finally:
        rank.kill()
