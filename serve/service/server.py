"""Runs the service as a process: opens the index, listens, and exits on a signal."""

import ipaddress
import logging
import os
import signal
import socket
from math import ceil
from pathlib import Path

import uvicorn

from data_pipeline.core.errors import KinspanError, quote_error

from ..index import Index
from ..search import Searcher
from .api import make_app
from .evaluations import open_evaluations
from .waiting import SearchQueue, ServiceSettings

logger = logging.getLogger(__name__)

MAX_EXAMPLES, MAX_EXAMPLE_CHARS = 30, 200  # number and length of the example questions
SAMPLED_ANSWERS = 600  # answers of the index that example questions are taken from
MAX_CONNECTIONS = 900  # below the usual limit of open files
MAX_HEAD = 16 * 1024  # bytes of a request line with its headers
MIN_TOKEN = 16  # characters
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def read_token(path: Path) -> str:
    """Returns the token in a file. Raises KinspanError if it is too short, or not a single word."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise KinspanError(f"--token_file {path} cannot be read: {quote_error(error)}") from error
    if len(token) < MIN_TOKEN or not token.isprintable() or " " in token:
        raise KinspanError(f"--token_file {path}: a token is one word of {MIN_TOKEN} characters or more")
    return token


def is_local(host: str) -> bool:
    """Returns whether this is localhost or a loopback address."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_socket(host: str, port: int) -> socket.socket:
    """Returns a socket bound to this address; port 0: any free port."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:
        raise KinspanError(f"--host {host} --port {port}: cannot listen there: {quote_error(error)}") from error
    return opened


def serve(settings: ServiceSettings, opened: socket.socket) -> None:
    """Serves until SIGTERM or SIGINT; then answers the waiting questions and exits with status 0."""
    logger.info("opening %s", settings.index)
    models = settings.cross_encoder, settings.model, settings.precision, settings.max_length
    server = make_server(settings, opened, Searcher(settings.index, *models, blend=settings.blend))
    for stop in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again once it has shut down
        signal.signal(stop, lambda *_: os._exit(0))
    server.run([opened])


def make_server(settings: ServiceSettings, opened: socket.socket, searcher: Searcher) -> uvicorn.Server:
    evaluations = open_evaluations(settings.evaluation)
    examples = list_examples(settings.examples, searcher.index)
    host, port = opened.getsockname()[:2]
    # Without a token, only local host names: against DNS rebinding, by which another site could read the answers
    hosts = ["*"] if settings.token or not is_local(host) else [*LOCAL_HOSTS, host]
    config = uvicorn.Config(
        make_app(settings, SearchQueue(searcher, settings), examples, evaluations, hosts),
        http="h11",
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEAD,
        timeout_graceful_shutdown=ceil(settings.timeout),
    )
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        opened.listen(config.backlog)  # before uvicorn does, so that whoever reads the next line can connect
    except OSError as error:  # a second server was bound meanwhile
        raise KinspanError(f"--port {port}: cannot listen there: {quote_error(error)}") from error
    logger.info("%s answers, ready: %s", f"{len(searcher.index):,}", address)
    return uvicorn.Server(config)


def list_examples(path: str | None, index: Index) -> list[str]:
    """Returns example questions: lines of a file, or questions and titles of answers from the whole index."""
    if path:
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, ValueError) as error:
            raise KinspanError(f"--examples {path} cannot be read: {quote_error(error)}") from error
    else:
        answers = map(index.answer, range(0, len(index), max(1, len(index) // SAMPLED_ANSWERS)))
        lines = [answer.question or answer.title for answer in answers]
    questions = [*dict.fromkeys(line.strip() for line in lines if 0 < len(line.strip()) <= MAX_EXAMPLE_CHARS)]
    if path and not questions:
        raise KinspanError(f"--examples {path} has no question")
    return questions[:: max(1, len(questions) // MAX_EXAMPLES)][:MAX_EXAMPLES]
