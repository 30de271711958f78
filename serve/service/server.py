"""The service as a process: opening the index, listening, and ending when it is told to."""

import ipaddress
import logging
import os
import signal
import socket
from math import ceil
from pathlib import Path

import uvicorn

from data_pipeline.core.errors import KinspanError, quote_error

from ..folder import read_manifest
from ..index import Index
from ..search import Searcher
from .api import make_app
from .evaluations import open_evaluations
from .waiting import SearchQueue, Service

logger = logging.getLogger(__name__)

EXAMPLES, EXAMPLE_CHARS = 30, 200  # questions to pick from, and their most characters
LOOKED_AT = 600  # answers
MAX_CONNECTIONS = 900  # below the usual limit of open files
MAX_HEAD = 16 * 1024  # bytes of a request's first lines
MIN_TOKEN = 16  # characters
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def read_token(path: Path) -> str:
    """Returns the single word in a file. Raises KinspanError if it is none, or too short."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise KinspanError(f"--token_file {path} cannot be read: {quote_error(error)}") from error
    if len(token) < MIN_TOKEN or not token.isprintable() or " " in token:
        raise KinspanError(f"--token_file {path}: a token is one word of {MIN_TOKEN} characters or more")
    return token


def is_local(host: str) -> bool:
    """Returns whether this is a name or an address by which a machine means itself."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_socket(host: str, port: int) -> socket.socket:
    """Returns a socket bound to this address; port 0 takes a free one."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:
        raise KinspanError(f"--host {host} --port {port} cannot be listened on: {quote_error(error)}") from error
    return opened


def serve(service: Service, opened: socket.socket) -> None:
    """Answers until SIGTERM or SIGINT; then whoever waits is answered, and the process ends with status 0.

    Raises KinspanError if the index, a model, an evaluation or the examples cannot be read.
    """
    read_manifest(Path(service.index))  # before the models are loaded
    logger.info("opening %s", service.index)
    models = service.cross_encoder, service.model, service.precision, service.max_length
    server = make_server(service, opened, Searcher(service.index, *models, blend=service.blend))
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again once it has shut down
        signal.signal(number, lambda *_: os._exit(0))
    server.run([opened])


def make_server(service: Service, opened: socket.socket, searcher: Searcher) -> uvicorn.Server:
    """Returns the server of ``serve``, before it starts."""
    evaluations = open_evaluations(service.evaluation)
    examples = list_examples(service.examples, searcher.index)
    host, port = opened.getsockname()[:2]
    # Without a token, another site whose owner lets its name point here could read the answers in a visitor's browser
    hosts = ["*"] if service.token or not is_local(host) else [*LOCAL_HOSTS, host]
    queue = SearchQueue(searcher, service)
    config = uvicorn.Config(
        make_app(service, queue, examples, evaluations, hosts),
        http="h11",
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEAD,
        timeout_graceful_shutdown=ceil(service.timeout),
    )
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    logger.info("%s answers, ready: %s", f"{len(searcher.index):,}", address)
    return uvicorn.Server(config)


def list_examples(path: str | None, index: Index) -> list[str]:
    """Returns questions of a file, one a line, or else questions and titles of answers, spread over all."""
    if path:
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, ValueError) as error:
            raise KinspanError(f"--examples {path} cannot be read: {quote_error(error)}") from error
    else:
        answers = map(index.answer, range(0, len(index), max(1, len(index) // LOOKED_AT)))
        lines = [answer.question or answer.title for answer in answers]
    questions = [*dict.fromkeys(line.strip() for line in lines if 0 < len(line.strip()) <= EXAMPLE_CHARS)]
    if path and not questions:
        raise KinspanError(f"--examples {path}: no question in it")
    return questions[:: max(1, len(questions) // EXAMPLES)][:EXAMPLES]
