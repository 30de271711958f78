"""The service with a real, tiny index: its flags, its start and end, and answers under load."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path

import pytest

from benchmarks.search.load import Served, as_body, ask_alone, measure, press
from data_pipeline.errors import KinspanError
from launch import serve as entry
from serve.building import build_index
from serve.service.contract import Service
from serve.service.server import open_socket, read_token, serve
from tests.serve.service.conftest import running

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def index(tmp_path_factory, embedder, answers):
    folder = tmp_path_factory.mktemp("served") / "index"
    build_index(folder, embedder, answers)
    return folder


def test_answers_under_load_are_those_of_a_client_alone(index, cross_encoder):
    """The quick form of the slow test below."""
    questions = [f"what of the river and number {n}?" for n in range(12)]
    with running(Service(str(index), str(cross_encoder), max_length=32)) as own:
        for settings in ({"k": 5, "first_stage": "fusion"}, {"k": 20, "rerank": False}):
            expected, _ = ask_alone(own.client.port, questions, settings)
            assert all(len(hits) == settings["k"] for hits in expected.values())
            assert "cross_encoder" in expected[questions[0]][0]["scores"] or "rerank" in settings
            measured = press(own.client.port, expected, settings, clients=12, seconds=0.5)
            assert measured.statuses[200] >= 12
            assert (measured.errors, measured.other_answers) == (0, 0)
        text = own.client.get("/metrics").text.decode()
        alone = next(line for line in text.splitlines() if 'together_bucket{le="1.0"}' in line)
        assert f"together_count {float(alone.split()[1])}" not in text  # some were answered together
        about = own.client.get("/about").json
        assert about["answers"] == 60
        assert about["cross_encoder"]
        assert len(own.client.get("/examples").json["questions"]) == 30


def test_an_index_that_cannot_be_opened_ends_the_service(tmp_path, index, bi_encoder, other_bi_encoder, embedder):
    def expect(reason, folder, **more):
        opened = open_socket("127.0.0.1", 0)
        with pytest.raises(KinspanError, match=reason) as error:
            serve(Service(str(folder), **more), opened, lambda note: None)
        assert "\n" not in str(error.value)

    expect("is no index", tmp_path / "none")
    expect("is not the bi-encoder of", index, model=str(other_bi_encoder))
    expect("is a bi-encoder", index, cross_encoder=str(bi_encoder))
    not_read = ("lock", "progress.json")
    names = [str(path.relative_to(index)) for path in index.rglob("*") if path.is_file() and path.name not in not_read]
    for number, name in enumerate(sorted(names)):
        broken = shutil.copytree(index, tmp_path / f"broken-{number}")
        whole = (broken / name).read_bytes()
        half = len(whole) // 2
        flipped = bytes([whole[half] ^ 1]) + whole[half + 1 :]
        (broken / name).write_bytes(whole[:half] + (flipped if number % 2 else b""))
        expect(str(broken), broken)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--evaluation", "{}/none"], "there is no evaluation.json"),
        (["--examples", "{}/none"], "--examples .* cannot be read"),
        (["--examples", "{}/empty"], "no question in it"),
        (["--token_file", "{}/none"], "--token_file .* cannot be read"),
        (["--token_file", "{}/empty"], "16 characters"),
        (["--port", "65536"], "--port 65536"),
        (["--host", "no.such.host.invalid", "--allow_anonymous"], "cannot be listened on"),
        (["--max_k", "101"], "--max_k 101"),
        (["--timeout", "0"], "--timeout"),
    ],
)
def test_flags_that_cannot_be_are_refused(tmp_path, index, monkeypatch, flags, reason):
    (tmp_path / "empty").write_text("\n")
    own = [flag.format(tmp_path) for flag in flags]
    monkeypatch.setattr(
        "sys.argv", ["serve", "--index", str(index), *(["--port", "0"] if "--port" not in own else []), *own]
    )
    with pytest.raises(KinspanError, match=reason):
        entry.main()


def test_a_port_in_use_is_named():
    taken = open_socket("127.0.0.1", 0)
    taken.listen()
    with pytest.raises(KinspanError, match=r"cannot be listened on: .*in use; choose others"):
        open_socket("127.0.0.1", taken.getsockname()[1])
    taken.close()


def test_whoever_listens_to_all_needs_a_token_or_says_that_none_is_meant(monkeypatch, tmp_path):
    served = []
    monkeypatch.setattr(
        "serve.service.server.serve", lambda service, opened, say: (opened.close(), served.append(service.token))
    )
    (tmp_path / "token.txt").write_text("0123456789abcdef\n")
    everywhere = ["--host", "0.0.0.0"]
    for flags in (everywhere, [*everywhere, "--allow_anonymous"], [*everywhere, "--token_file"], []):
        token = [str(tmp_path / "token.txt")] if flags[-1:] == ["--token_file"] else []
        monkeypatch.setattr("sys.argv", ["serve", "--index", "none", "--port", "0", *flags, *token])
        if flags is everywhere:
            with pytest.raises(KinspanError, match=r"--host 0\.0\.0\.0: whoever .* --token_file .* --allow_anonymous"):
                entry.main()
        else:
            entry.main()
    assert served == [None, "0123456789abcdef", None]
    assert read_token(tmp_path / "token.txt") == "0123456789abcdef"


@pytest.mark.slow
def test_fifty_clients_for_two_minutes(index, cross_encoder):
    """And a service that was killed is back in less than ten seconds, with the same answers."""
    flags = ["--index", str(index), "--cross_encoder", str(cross_encoder), "--max_length", "32"]
    measured = measure(flags, {"k": 5, "first_stage": "fusion"}, clients=50, seconds=120)
    assert measured["errors"] == 0, measured
    assert measured["other_answers"] == 0
    assert measured["answers"] > 1000
    assert measured["same_after_kill"]
    assert measured["start_again_processor_seconds"] < 10  # on a machine that does nothing else, those of the clock
    assert measured["end_status"] == 0


@pytest.mark.slow
def test_sigterm_answers_those_who_wait_and_a_damaged_index_is_status_2(index, tmp_path):
    service = Served(["--index", str(index)])
    found = {}

    connected = threading.Barrier(21)

    def ask(number):
        connection = HTTPConnection("127.0.0.1", service.port, timeout=60)
        connection.request("GET", "/health")
        connection.getresponse().read()
        connected.wait(60)
        try:
            connection.request("POST", "/search", as_body(f"number {number}", {}), {"Content-Type": "application/json"})
            found[number] = connection.getresponse().status
        except ConnectionError:  # the service closed it before the question came
            found[number] = None

    threads = [threading.Thread(target=ask, args=[number]) for number in range(20)]
    for thread in threads:
        thread.start()
    connected.wait(60)
    status, seconds = service.end(signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert status == 0
    assert seconds < 20
    assert len(found) == 20
    assert set(found.values()) <= {200, None}
    broken = shutil.copytree(index, tmp_path / "broken")
    (broken / "index.json").write_text(json.dumps({"format": 1}))
    command = [sys.executable, str(ROOT / "launch/serve.py"), "--index", str(broken), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=300)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
