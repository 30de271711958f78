"""The service as a process: opening the index, listening, and ending when it is told to."""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import uvicorn

from data_pipeline.errors import KinspanError, quote_error

from ..folder import read_manifest
from ..questions import RERANKED, clean_question
from .api import find_version, make_app
from .connections import PatientProtocol
from .contract import Limits
from .evaluations import open_evaluations
from .guard import is_local
from .waiting import SearchQueue

if TYPE_CHECKING:
    from ..search import Searcher

EXAMPLES, EXAMPLE_CHARS = 30, 200  # questions to pick from, and how long one of the index may be
LOOKED_AT = 20  # times as many answers are looked at for their questions
MAX_CONNECTIONS = 900  # below the usual limit of open files
MIN_TOKEN = 16  # characters
LINGER = 1.0  # seconds of refusals after the last answer: whoever has connected by then is told, and not cut off


@dataclass(frozen=True)
class Service:
    """What is served, and how.

    index, cross_encoder, model, precision, max_length: as a Searcher takes them
    first_stage, rerank_k: as its search takes them, where a question does not say
    blend:       as a Searcher takes it
    examples:    file of questions to pick from, one a line; without it those of the index
    evaluations: folders of evaluations
    token:       that callers have to bear
    """

    index: str
    cross_encoder: str | None = None
    model: str | None = None
    precision: str = "fp32"
    max_length: int | None = None
    first_stage: str = "bi_encoder"
    rerank_k: int = RERANKED
    blend: bool = False
    examples: str | None = None
    evaluations: Sequence[str] = ()
    token: str | None = None
    limits: Limits = field(default_factory=Limits)


def read_token(path: Path) -> str:
    """The token of a file, which is its one line. Raises KinspanError where it is none, or too short."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise KinspanError(f"--token_file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise KinspanError(f"--token_file {path}: a token has letters, digits and signs of ASCII alone") from error
    if len(token) < MIN_TOKEN or not token.isprintable() or " " in token:
        raise KinspanError(f"--token_file {path}: a token is one word of {MIN_TOKEN} characters or more")
    return token


def open_socket(host: str, port: int) -> socket.socket:
    """A socket bound to this address; port 0 takes a free one. Raises KinspanError where it cannot be."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else quote_error(error)
        raise KinspanError(f"--host {host} --port {port} cannot be listened on: {reason}; choose others") from error
    return opened


def serve(service: Service, opened: socket.socket, say: Callable[[str], Any]) -> NoReturn:
    """Answers until SIGTERM or SIGINT; then those that wait are answered, others refused, and the process ends.

    The address is listened on at once, and /health says "loading" until the index is open.

    Raises KinspanError where the index, a model, an evaluation or the examples cannot be read.
    """
    server = make_server(service, opened, say)
    server.answer([opened])
    sys.stdout.flush()
    os._exit(0)  # nothing is left to do; a thread may be loading still, and taking torch apart takes a second


def make_server(service: Service, opened: socket.socket, say: Callable[[str], Any]) -> "Server":
    """The server of ``serve``, before it starts."""
    read_manifest(Path(service.index))  # what is no index is said before torch is imported
    evaluations = open_evaluations(service.evaluations)
    given = read_examples(Path(service.examples)) if service.examples else []
    host, port = opened.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    examples: list[str] = []

    def load() -> "Searcher":
        searcher = open_searcher(service, say)
        examples.extend(given or pick_examples(searcher))
        return searcher

    queue = SearchQueue(load, service.limits, service.rerank_k, say)
    app = make_app(
        queue,
        lambda: describe(service, queue),
        lambda: examples,
        service.limits,
        service.first_stage,
        bool(service.cross_encoder) and service.rerank_k > 0,
        evaluations,
        service.token,
        localhost_only=is_local(host),
    )
    return Server(app, queue, service.limits.timeout, lambda answers: say(f"{answers:,} answers, ready: {address}"))


class Server(uvicorn.Server):
    """A web server that answers whoever waits before it ends.

    seconds: that this may take
    ready:   told the number of answers when questions are answered
    """

    def __init__(self, app: Any, queue: SearchQueue, seconds: float, ready: Callable[[int], Any]) -> None:
        config = uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            lifespan="off",
            log_level="error",
            access_log=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=5,
        )
        super().__init__(config)
        self.queue, self._seconds, self._ready, self._leaving = queue, seconds, ready, False

    def answer(self, sockets: list[socket.socket]) -> None:
        """Answers until it is told to end. Raises what kept the index from being opened."""
        self.queue.start(self._begin)
        self.run(sockets)
        if self.queue.failure:
            raise self.queue.failure

    def _begin(self) -> None:
        if self.queue.searcher:
            self._ready(len(self.queue.searcher.index))
        else:
            self.leave()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._leaving:  # told twice: whoever waits has waited long enough
            os._exit(1)
        self._leaving = True
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        self.queue.drain(self._seconds)
        time.sleep(LINGER)
        self.leave()

    def leave(self) -> None:
        """Stops listening; ``answer`` returns when what is being written is sent."""
        self.should_exit = True


def open_searcher(service: Service, say: Callable[[str], Any]) -> "Searcher":
    from ..search import Searcher  # torch takes seconds to import: /health answers meanwhile

    models = service.cross_encoder, service.model, service.precision, service.max_length
    return Searcher(service.index, *models, blend=service.blend, say=say)


def describe(service: Service, queue: SearchQueue) -> dict[str, Any]:
    """What GET /about answers, once the index is open."""
    assert queue.searcher
    searcher, limits = queue.searcher, service.limits
    return {
        "index": searcher.index.folder.resolve().name,
        "answers": len(searcher.index),
        "bi_encoder": searcher.index.manifest.model["name"],
        "cross_encoder": searcher.cross_encoder.name if searcher.cross_encoder else None,
        "first_stage": service.first_stage,
        "rerank_k": service.rerank_k,
        "blend": service.blend,
        "limits": {
            "max_question": limits.max_question,
            "max_k": limits.max_k,
            "concurrency": limits.concurrency,
            "timeout": limits.timeout,
        },
        "version": find_version(),
    }


def read_examples(path: Path) -> list[str]:
    """The questions of a file, one a line. Raises KinspanError where it cannot be read, or has none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise KinspanError(f"--examples {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise KinspanError(f"--examples {path} is no UTF-8 text") from error
    questions = [clean_question(line) for line in lines if line.strip()]
    if not questions:
        raise KinspanError(f"--examples {path}: no question in it")
    return spread(questions, EXAMPLES)


def pick_examples(searcher: "Searcher") -> list[str]:
    """Questions that answers of the index came from, spread over it; none where it has none."""
    index = searcher.index
    rows = range(index.manifest.rows)
    alive = (row for row in spread(rows, LOOKED_AT * EXAMPLES) if index.alive is None or index.alive[row])
    questions = (index.answer(row).question.strip() for row in alive)
    return spread([*dict.fromkeys(own for own in questions if 0 < len(own) <= EXAMPLE_CHARS)], EXAMPLES)


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most so many of the items, evenly spaced."""
    if len(items) <= count:
        return list(items)
    return [items[number * len(items) // count] for number in range(count)]
