"""Services in this process, each with a server of its own, and a searcher that is none or a tiny one."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serve.search import Answered, Hit
from serve.service.server import make_server, open_socket
from serve.service.waiting import ServiceSettings


class Client:
    """Asks one service, a connection for each request."""

    def __init__(self, port: int) -> None:
        self.port = port

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> SimpleNamespace:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        content = json.loads(text) if response.headers.get_content_type() == "application/json" else None
        return SimpleNamespace(status=response.status, headers=response.headers, text=text, json=content)

    def get(self, path: str, **headers: str) -> SimpleNamespace:
        return self.request("GET", path, **headers)

    def search(self, query: Any = "a river", **settings: Any) -> SimpleNamespace:
        return self.request("POST", "/search", json.dumps({"query": query, **settings}))


class StandIn:
    """Answers every question with itself, and keeps what it was asked.

    gate:  where it is set to an event, a search waits for it
    fails: questions that raise this
    """

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.gate: threading.Event | None = None
        self.fails: dict[str, Exception] = {}
        self.cross_encoder, self.language = None, "en"
        answers = [SimpleNamespace(question=question, title="") for question in ("one?", "two?", "", "one?")]
        self.index = StandInIndex(answers, "stand-in")

    def list_truncations(self) -> list[str]:
        return []

    def search(self, questions: list[str], k: int, rerank_k: int, first_stage: str) -> Answered:
        self.asked.append(list(questions))
        if self.gate:
            self.gate.wait(20)
        for question in questions:
            if question in self.fails:
                raise self.fails[question]
        ranked = [(f"a{n}", 1.0 - n) for n in range(k)]
        hits = [[Hit(name, f"about {q}", "", "", "", x, {first_stage: x}) for name, x in ranked] for q in questions]
        return Answered(hits, {"encode": 1.0, "total": 1.0})


class StandInIndex:
    def __init__(self, answers: list[Any], name: str) -> None:
        self._answers, self.folder = answers, Path(name)
        self.manifest = SimpleNamespace(model={"name": name})

    def __len__(self) -> int:
        return len(self._answers)

    def answer(self, row: int) -> Any:
        return self._answers[row]


def wait_for(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def running(service: ServiceSettings, searcher: Any) -> Iterator[SimpleNamespace]:
    """The service, answering in a thread: its ``server`` and a ``client``."""
    opened = open_socket("127.0.0.1", 0)
    port = opened.getsockname()[1]
    server = make_server(service, opened, searcher)
    thread = threading.Thread(target=server.run, args=[[opened]])
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield SimpleNamespace(server=server, client=Client(port), thread=thread)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture
def start(stand_in: StandIn) -> Iterator[Callable[..., SimpleNamespace]]:
    """``start(**settings)``: a service with the stand-in for a searcher."""
    with ExitStack() as services:
        yield lambda **given: services.enter_context(running(ServiceSettings("stand-in", **given), stand_in))
        if stand_in.gate:
            stand_in.gate.set()
