"""The service as a process: opening the index, listening, and ending when it is told to."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import uvicorn

from data_pipeline.core.errors import KinspanError, quote_error

from ..folder import read_manifest
from ..questions import clean_question
from .api import make_app
from .contract import Service
from .evaluations import open_evaluations
from .guard import is_local
from .waiting import SearchQueue

if TYPE_CHECKING:
    from ..search import Searcher

EXAMPLES, EXAMPLE_CHARS = 30, 200  # questions to pick from, and how long one of the index may be
LOOKED_AT = 20  # times as many answers are looked at for their questions
MAX_CONNECTIONS = 900  # below the usual limit of open files
MAX_HEAD = 16 * 1024  # bytes of a request's first lines
MIN_TOKEN = 16  # characters
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


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
    """Answers until SIGTERM or SIGINT; then whoever waits is answered, and the process ends with status 0.

    The address is listened on at once, and /health says "loading" until the index is open.

    Raises KinspanError where the index, a model, an evaluation or the examples cannot be read.
    """
    server, queue = make_server(service, opened, say)
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again once it has shut down
        signal.signal(number, lambda *_: os._exit(0))
    answer(server, queue, opened, say)
    sys.stdout.flush()
    os._exit(0)  # a thread may be loading still, and taking torch apart takes a second


def make_server(
    service: Service, opened: socket.socket, say: Callable[[str], Any]
) -> tuple[uvicorn.Server, SearchQueue]:
    """The server of ``serve``, before it starts, and its queue."""
    read_manifest(Path(service.index))  # what is no index is said before torch is imported
    evaluations = open_evaluations(service.evaluation)
    print(f"opening {service.index}", file=sys.stderr, flush=True)  # not by ``say``, whose first line has the address
    given = read_examples(Path(service.examples)) if service.examples else []
    host = opened.getsockname()[0]
    # Without a token, another site whose owner lets its name point here could read the answers in a visitor's browser
    hosts = ["*"] if service.token or not is_local(host) else [*LOCAL_HOSTS, host]
    examples: list[str] = []

    def load() -> "Searcher":
        searcher = open_searcher(service, say)
        examples.extend(given or pick_examples(searcher))
        return searcher

    queue = SearchQueue(load, service, say)
    config = uvicorn.Config(
        make_app(service, queue, examples, evaluations, hosts),
        http="h11",
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEAD,
        timeout_graceful_shutdown=ceil(service.timeout),
    )
    return uvicorn.Server(config), queue


def answer(server: uvicorn.Server, queue: SearchQueue, opened: socket.socket, say: Callable[[str], Any]) -> None:
    """Answers until the server is told to end. Raises what kept the index from being opened, or the queue from work."""
    host, port = opened.getsockname()[:2]

    def tell_ready(searcher: "Searcher") -> None:
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        say(f"{len(searcher.index):,} answers, ready: {address}")

    async def serve_and_search() -> None:
        searching = asyncio.create_task(queue.work(tell_ready))
        searching.add_done_callback(
            lambda _: setattr(server, "should_exit", True)
        )  # by itself it ends by an error alone
        await server.serve([opened])
        searching.cancel()
        with suppress(asyncio.CancelledError):
            await searching

    asyncio.run(serve_and_search())


def open_searcher(service: Service, say: Callable[[str], Any]) -> "Searcher":
    from ..search import Searcher  # torch takes seconds to import: /health answers meanwhile

    models = service.cross_encoder, service.model, service.precision, service.max_length
    return Searcher(service.index, *models, blend=service.blend, say=say)


def read_examples(path: Path) -> list[str]:
    """The questions of a file, one a line. Raises KinspanError where it cannot be read, or has none."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise KinspanError(f"--examples {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise KinspanError(f"--examples {path} is no UTF-8 text") from error
    questions = [clean_question(line) for line in lines if line.strip()]
    if not questions:
        raise KinspanError(f"--examples {path}: no question in it")
    return spread(questions, EXAMPLES)


def pick_examples(searcher: "Searcher") -> list[str]:
    """Questions that answers of the index came from, or their titles, spread over it; none where it has none."""
    index = searcher.index
    rows = range(index.manifest.rows)
    alive = (row for row in spread(rows, LOOKED_AT * EXAMPLES) if index.alive is None or index.alive[row])
    answers = map(index.answer, alive)
    questions = ((answer.question or answer.title).strip() for answer in answers)
    return spread([*dict.fromkeys(own for own in questions if 0 < len(own) <= EXAMPLE_CHARS)], EXAMPLES)


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most ``count`` of the items, evenly spaced."""
    if len(items) <= count:
        return list(items)
    return [items[number * len(items) // count] for number in range(count)]
