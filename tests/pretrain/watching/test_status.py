"""The state of a run is told from the files of its folder, as they are left by a run that goes on, ends or dies."""

import json
import os
import random
import socket
import subprocess
import sys
import time
from contextlib import nullcontext

import psutil
import pytest

from data_pipeline.core.errors import KinspanError
from launch.commands.status import main
from pretrain.engine.history import describe_history, estimate_speed, note, write_heartbeat
from pretrain.watching.status import LOADING, SILENCE, format_status, read_status
from tests.launch.mutations import damaged

HERE = {"process": os.getpid(), "host": socket.gethostname(), "place": "step 20, forward", "every": 10.0}


@pytest.fixture
def folder(tmp_path):
    """Of a run of 100 steps that has not begun."""
    facts = {"total_steps": 100, "model": {"name": "MiniLM"}, "settings": {"objective": "ssp"}}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    return tmp_path


def log(folder, step, **figures):
    line = {"step": step, "split": "train", "loss": 1.0, "tokens": 10 * step, "skipped_steps": 0, **figures}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def start(folder, step=0, **values):
    note(folder, "started", step, ranks=2, **{**HERE, **values})


def beat(folder, **values):
    from pretrain.engine.history import name_system

    write_heartbeat(folder, {**HERE, "system": name_system(), "seconds_there": 1.0, **values})


def exit_status(folder, monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["status.py", str(folder), *flags])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_run_that_is_on(folder, monkeypatch, capsys):
    start(folder)
    log(folder, 20, tokens_per_second=1234.0)
    beat(folder)
    assert exit_status(folder, monkeypatch) == 3
    out = capsys.readouterr().out
    assert f"running: process {os.getpid()} on {socket.gethostname()} is alive" in out
    assert "step 20 of 100 (20%)" in out
    assert "1,234 tokens/s" in out
    assert "step 20, forward, for " in out


def test_a_killed_run_has_died(folder, monkeypatch, capsys):
    """Here its process is gone; from another machine, its heartbeat is old."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    start(folder, process=gone.pid)
    beat(folder, process=gone.pid)
    assert exit_status(folder, monkeypatch) == 70
    assert "is gone; the same command again goes on" in capsys.readouterr().out
    beat(folder, system="another", host="node-7")
    start(folder, host="node-7")
    assert read_status(folder).state == "running"
    now = time.time()
    monkeypatch.setattr("pretrain.watching.status.time.time", lambda: now + SILENCE + 5)
    assert read_status(folder).state == "died"


@pytest.mark.parametrize(
    ("kind", "values", "state", "status"),
    [
        ("stopped", {"why": "SIGTERM"}, "stopped", 75),
        ("failed", {"why": "no loss was finite"}, "ended by an error", 2),
        ("ended by the watchdog", {"why": "rank 3 has died"}, "died", 70),
    ],
)
def test_a_run_that_has_ended(kind, values, state, status, folder, monkeypatch, capsys):
    """Although a heartbeat of the same process may still be fresh."""
    start(folder)
    beat(folder)
    note(folder, kind, 20, **values)
    assert exit_status(folder, monkeypatch) == status
    assert f"{state}: {values['why']}" in capsys.readouterr().out


@pytest.mark.parametrize("logged", [100, 90])
def test_a_complete_run(logged, folder, monkeypatch):
    """Although the disk may have been full for the last lines of its log."""
    start(folder)
    log(folder, logged)
    note(folder, "finished", 100)
    (folder / "summary.json").write_text("{}")
    beat(folder)
    assert exit_status(folder, monkeypatch, "--watch") == 0


def beat_at(folder, moment):
    """A heartbeat of this process, of another time than now."""
    beat(folder)
    found = json.loads((folder / "heartbeat.json").read_text())
    (folder / "heartbeat.json").write_text(json.dumps({**found, "time": moment}))


def test_a_process_that_was_given_an_old_number_is_not_the_run(folder):
    start(folder)
    beat_at(folder, psutil.Process().create_time() - 100)
    assert read_status(folder).state == "died"


def test_a_heartbeat_after_the_end_is_of_another_run_in_the_same_process(folder):
    start(folder)
    note(folder, "stopped", 20, why="SIGTERM")
    beat_at(folder, time.time() + 15)  # the last one of a run may come after its end
    assert read_status(folder).state == "stopped"
    beat_at(folder, time.time() + 25)
    assert read_status(folder).state == "starting"


def test_a_lock_of_another_machine_counts_for_as_long_as_loading_takes(folder):
    note(folder, "stopped", 20, why="SIGTERM")
    (folder / "lock").write_text("process 1 on node-9\n")
    assert read_status(folder).state == "starting"
    os.utime(folder / "lock", 2 * (time.time() - LOADING - 5,))
    assert read_status(folder).state == "stopped"


def test_a_run_that_is_started_again_is_loading(folder, monkeypatch):
    start(folder, process=1)
    note(folder, "stopped", 20, why="SIGTERM")
    assert read_status(folder).state == "stopped"
    (folder / "lock").write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
    assert read_status(folder).state == "starting"  # before its first heartbeat
    (folder / "lock").unlink()
    beat(folder)
    assert read_status(folder).state == "starting"  # before its first step


def test_checkpoint_skips_and_restarts(folder, monkeypatch, capsys):
    start(folder)
    start(folder, 20)
    note(folder, "rewound", 10, leapt_at=30, left_out=[2, 3])
    log(folder, 30, skipped_steps=4)
    (folder / "checkpoints/step-00000030").mkdir(parents=True)
    (folder / "checkpoints/step-00000030/manifest.json").write_text("{}")
    (folder / "checkpoints/step-00000040.ab12.tmp").mkdir()
    assert exit_status(folder, monkeypatch, "--json") == 70
    values = json.loads(capsys.readouterr().out)
    assert (values["starts"], values["rewinds"], values["skipped_steps"], values["checkpoint_step"]) == (2, 1, 4, 30)
    assert "2 (1 restart(s)), 1 rewind(s)" in format_status(read_status(folder))


def test_speed_counts_from_the_last_start_or_rewind():
    history = [{"kind": "started", "step": 0, "time": 0.0}, {"kind": "started", "step": 50, "time": 1000.0}]
    assert estimate_speed(history, 70, 1010.0) == 2.0
    assert estimate_speed(history, 50, 1010.0) is None
    history.append({"kind": "rewound", "step": 60, "time": 1020.0})
    assert estimate_speed(history, 70, 1025.0) == 2.0


def test_an_event_of_odd_values_is_shown_by_its_name():
    odd = {"kind": "leapt", "step": 5, "time": 0.0, "loss": 1.0, "before": 10**400}
    assert describe_history([odd]) == [("1970-01-01 00:00:00", "5", "leapt")]


def test_the_history_tells_what_no_run_could_write():
    history = [{"kind": "started", "step": step, "time": 0.0, "ranks": 1} for step in (0, 50)]
    assert "killed" in describe_history(history)[1][2]
    history.insert(1, {"kind": "stopped", "step": 60, "time": 0.0, "why": "SIGTERM"})
    assert not any("killed" in text for _, _, text in describe_history(history))


def test_damaged_files_are_no_traceback(folder):
    (folder / "history.jsonl").write_bytes(b'{"kind": 1}\n[]\n\xff\n{"time": 1, "kind": "started", "ste')
    (folder / "heartbeat.json").write_bytes(b'{"time": ')
    (folder / "metrics.jsonl").write_bytes(b"\xff\n")
    (folder / "lock").write_bytes(b"\xff")
    assert read_status(folder).state == "not begun"


def test_a_folder_of_damaged_files_gives_a_state_or_one_line(folder):
    """Each file with bytes that are changed, cut off or doubled, and values of other kinds: never another exception."""
    start(folder)
    log(folder, 20, tokens_per_second=1234.0, skipped_steps=2, split="validation")
    log(folder, 20, tokens_per_second=1234.0)
    beat(folder)
    (folder / "lock").write_text(f"process 1 on {socket.gethostname()}\n")
    whole = {path: path.read_bytes() for path in folder.iterdir()}
    generator = random.Random(1)
    refused = 0
    for path, content in whole.items():
        for _ in range(150):
            path.write_bytes(damaged(generator, content))
            try:
                format_status(read_status(folder))
            except KinspanError:
                refused += path.name == "run.json"
        path.write_bytes(content)
    assert 0 < refused < 150


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("history.jsonl", b'"host"', b'"hose"'),
        ("heartbeat.json", b'"place"', b'"plane"'),
        ("heartbeat.json", b'"seconds_there": 1.0', b'"seconds_there": NaN'),
        ("run.json", b"100", b"Infinity"),
        ("run.json", b"100", b"1" + 400 * b"0"),
        ("metrics.jsonl", b'"step": 20', b'"step": 1' + 400 * b"0"),
        ("metrics.jsonl", b'"loss": 1.0', b'"loss": 1' + 400 * b"0"),
        ("metrics.jsonl", b'"loss"', b'"lo\xed\xa0\x80s"'),
        ("history.jsonl", b'"step": 0', b'"step": -1' + 400 * b"0"),
    ],
)
def test_a_damaged_value_is_no_traceback(file, old, new, folder):
    start(folder)
    log(folder, 20)
    beat(folder)
    content = (folder / file).read_bytes()
    assert old in content
    (folder / file).write_bytes(content.replace(old, new))
    refused = pytest.raises(KinspanError, match="this is not a run")
    with refused if file == "run.json" else nullcontext():
        format_status(read_status(folder))


def test_what_is_no_run_is_refused(tmp_path, folder):
    with pytest.raises(KinspanError, match=r"nowhere: there is no run \(no run.json\)"):
        read_status(tmp_path / "nowhere")
    (folder / "run.json").write_text('{"seed": 1}')
    with pytest.raises(KinspanError, match=r"this is not a run of kinspan pretrain"):
        read_status(folder)
    (tmp_path / "run.json").unlink()
    (tmp_path / "lock").write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
    with pytest.raises(KinspanError, match="has locked the folder and is loading; there is nothing to show yet"):
        read_status(tmp_path)
