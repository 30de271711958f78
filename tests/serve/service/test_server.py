"""The service with a real, tiny index: its flags, its start and end, and answers under load."""

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from data_pipeline.core.errors import KinspanError
from launch.commands import serve as entry
from launch.kinspan import show
from serve.search import Searcher
from serve.service.server import make_server, open_socket, read_token
from serve.service.waiting import ServiceSettings
from tests.launch.entries import program_of
from tests.serve.service.conftest import Client, running

QUESTIONS = [f"what of the river and number {n}?" for n in range(12)]


def ask_alone(client, **settings):
    """The hits of each question, asked one at a time."""
    return {question: client.search(question, **settings).json["hits"] for question in QUESTIONS}


def press(client, expected, clients, **settings):
    """Every client asks every question, each in an order of its own, and all have the answers that are expected.

    Other questions in the same batch may change how sums are rounded, and so which of two equal scores comes first.
    """

    def work(number):
        for question in QUESTIONS[number % 12 :] + QUESTIONS[: number % 12]:
            found = client.search(question, **settings)
            assert found.status == 200, found.text
            scores = {hit["id"]: hit["score"] for hit in found.json["hits"]}
            alone = {hit["id"]: hit["score"] for hit in expected[question]}
            assert list(scores.values()) == pytest.approx(list(alone.values()), abs=1e-5)
            assert all(score == pytest.approx(alone[name], abs=1e-5) for name, score in scores.items() if name in alone)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(work, range(clients)))


def test_answers_under_load_are_those_of_a_client_alone(index, cross_encoder):
    service = ServiceSettings(str(index), str(cross_encoder), max_length=32)
    with running(service, Searcher(index, str(cross_encoder), max_length=32)) as started:
        for settings in ({"k": 5, "first_stage": "fusion"}, {"k": 20, "rerank": False}):
            expected = ask_alone(started.client, **settings)
            assert all(len(hits) == settings["k"] for hits in expected.values())
            assert ("cross_encoder" in expected[QUESTIONS[0]][0]["scores"]) == ("rerank" not in settings)
            press(started.client, expected, clients=12, **settings)
        about = started.client.get("/about").json
        assert about["answers"] == 60
        assert about["cross_encoder"]
        assert len(started.client.get("/examples").json["questions"]) == 30


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        *[(["--index", "{}/none"], "{}/none"), (["--model", "{}/other"], "--model")],
        *[(["--cross_encoder", "{}/other"], "--cross_encoder"), (["--evaluation", "{}/none"], "--evaluation")],
        *[(["--examples", "{}/none"], "--examples"), (["--examples", "{}/empty"], "--examples")],
        *[(["--token_file", "{}/none"], "--token_file"), (["--token_file", "{}/empty"], "--token_file")],
        *[(["--port", "65536"], "--port 65536"), (["--host", "no.such.host.invalid", "--allow_anonymous"], "--host")],
    ],
)
def test_flags_that_cannot_be_are_refused(tmp_path, index, other_bi_encoder, monkeypatch, flags, named):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "other").symlink_to(other_bi_encoder)
    given = [flag.format(tmp_path) for flag in flags]
    monkeypatch.setattr("sys.argv", ["serve", "--index", str(index), "--port", "0", *given])
    with pytest.raises(KinspanError, match=named.format(tmp_path)):
        show(entry.main())


def test_whoever_listens_to_all_needs_a_token_or_says_that_none_is_meant(monkeypatch, tmp_path):
    served = []
    monkeypatch.setattr(
        "serve.service.server.serve", lambda service, opened: (opened.close(), served.append(service.token))
    )
    (tmp_path / "token.txt").write_text("0123456789abcdef\n")
    everywhere = ["--host", "0.0.0.0"]
    for flags in (everywhere, [*everywhere, "--allow_anonymous"], [*everywhere, "--token_file"], []):
        token = [str(tmp_path / "token.txt")] if flags[-1:] == ["--token_file"] else []
        monkeypatch.setattr("sys.argv", ["serve", "--index", "none", "--port", "0", *flags, *token])
        if flags is everywhere:
            with pytest.raises(KinspanError, match="--token_file"):
                show(entry.main())
        else:
            show(entry.main())
    assert served == [None, "0123456789abcdef", None]
    assert read_token(tmp_path / "token.txt") == "0123456789abcdef"
    for text in ("0123456789abcde\n", "0123456789 abcdef\n"):
        (tmp_path / "token.txt").write_text(text)
        with pytest.raises(KinspanError, match="--token_file"):
            read_token(tmp_path / "token.txt")


def test_a_service_that_says_ready_can_be_reached_at_once(stand_in):
    with open_socket("127.0.0.1", 0) as opened, open_socket("127.0.0.1", opened.getsockname()[1]) as second:
        make_server(ServiceSettings("stand-in"), opened, stand_in)
        socket.create_connection(opened.getsockname(), 5).close()
        with pytest.raises(KinspanError, match="--port"):  # a second service that was started meanwhile
            make_server(ServiceSettings("stand-in"), second, stand_in)


def start(request, *flags):
    """A process of ``kinspan serve`` that is ready, and a client of it."""
    command = [sys.executable, *map(str, program_of("serve")), *map(str, flags), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    request.addfinalizer(process.kill)
    while "ready: http" not in (said := process.stderr.readline()):
        assert said
    return process, Client(int(said.rsplit(":", 1)[1]))


@pytest.mark.slow
def test_fifty_clients_and_a_service_that_was_killed_has_the_same_answers(index, cross_encoder, request):
    flags = ["--index", index, "--cross_encoder", cross_encoder, "--max_length", "32"]
    process, client = start(request, *flags)
    expected = ask_alone(client, k=5, first_stage="fusion")
    press(client, expected, clients=50, k=5, first_stage="fusion")
    process.kill()
    process.wait(60)
    process, client = start(request, *flags)
    press(client, expected, clients=1, k=5, first_stage="fusion")
    process.terminate()
    assert process.wait(60) == 0
