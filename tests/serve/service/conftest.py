"""Services in this process, each with a server of its own, and a searcher that is none or a tiny one."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any

import pytest

from serve.questions import BI_ENCODER
from serve.search import Answered, Hit
from serve.service.server import make_server, open_socket
from serve.service.waiting import ServiceSettings


class Client:
    """Asks one service, a connection for each request."""

    def __init__(self, port: int) -> None:
        self.port = port

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> SimpleNamespace:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        names = {"Content-Type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        connection.request(method, path, body, names)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        is_json = response.headers.get_content_type() == "application/json"
        return SimpleNamespace(
            status=response.status, headers=response.headers, text=text, json=json.loads(text) if is_json else None
        )

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
        self.cross_encoder = None
        manifest = SimpleNamespace(rows=4, model={"name": "stand-in"})
        answers = [SimpleNamespace(question=question, title="") for question in ("one?", "two?", "", "one?")]
        self.index = _StandInIndex(answers, manifest)

    def list_truncations(self) -> list[str]:
        return []

    def search(self, questions: list[str], k: int, rerank_k: int, first_stage: str) -> Answered:
        self.asked.append(list(questions))
        if self.gate:
            self.gate.wait(20)
        for question in questions:
            if question in self.fails:
                raise self.fails[question]
        hits = [
            [Hit(f"a{n}", f"about {question}", "", "", "", 1.0 - n, {BI_ENCODER: 1.0 - n}) for n in range(k)]
            for question in questions
        ]
        return Answered(hits, {"encode": 1.0, "total": 1.0})


class _StandInIndex:
    def __init__(self, answers: list[Any], manifest: Any) -> None:
        self._answers, self.manifest = answers, manifest
        self.folder = SimpleNamespace(resolve=lambda: SimpleNamespace(name="stand-in"))

    def __len__(self) -> int:
        return len(self._answers)

    def answer(self, row: int) -> Any:
        return self._answers[row]


@contextmanager
def running(service: ServiceSettings, searcher: Any) -> Iterator[SimpleNamespace]:
    """The service, answering in a thread: its ``server`` and a ``client``."""
    opened = open_socket("127.0.0.1", 0)
    port = opened.getsockname()[1]
    server = make_server(service, opened, searcher)
    thread = threading.Thread(target=server.run, args=[[opened]])
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield SimpleNamespace(server=server, client=Client(port), thread=thread)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


Start = Callable[..., SimpleNamespace]


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture
def start(stand_in: StandIn) -> Iterator[Start]:
    """``start(**settings)``: a service with the stand-in for a searcher."""
    opened = []

    def begin(**settings: Any) -> SimpleNamespace:
        context = running(ServiceSettings("stand-in", **settings), stand_in)
        opened.append(context)
        return context.__enter__()

    yield begin
    if stand_in.gate:
        stand_in.gate.set()
    for context in opened:
        context.__exit__(None, None, None)


@pytest.fixture(scope="session")
def run_service() -> Callable[[ServiceSettings, Any], AbstractContextManager[SimpleNamespace]]:
    """``with run_service(service, searcher) as started:``, for fixtures of a wider scope than ``start``."""
    return running
