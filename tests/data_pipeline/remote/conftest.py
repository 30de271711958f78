"""Stores on this machine: a plain HTTP server, and moto's S3 over HTTP. Both can be told to answer wrongly."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from werkzeug.serving import WSGIRequestHandler, make_server

from data_pipeline.core.settings import CacheSettings
from data_pipeline.remote import store as store_module

BUCKET = "corpora"
S3_VARIABLES = {"AWS_ACCESS_KEY_ID": "user", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


class Faults:
    """A WSGI application before another one: it counts the files that are asked for, and answers wrongly as planned.

    asked:   how often each file was asked for, by its last name
    planned: faults of the next answers of a file, each for one answer; "always" holds one for all answers
    """

    def __init__(self, app: Callable) -> None:
        self.app, self.url = app, ""
        self.reset()

    def reset(self) -> None:
        self.asked: Counter[str] = Counter()
        self.planned: dict[str, deque[str]] = {}
        self.always: dict[str, str] = {}

    def __call__(self, environ: dict[str, Any], start_response: Callable) -> Any:
        name = environ["PATH_INFO"].rpartition("/")[2]
        if environ["REQUEST_METHOD"] != "GET":
            return self.app(environ, start_response)
        self.asked[name] += 1
        planned = self.planned.get(name)
        fault = planned.popleft() if planned else self.always.get(name)
        if fault in ("500 Internal Server Error", "503 Slow Down", "403 Forbidden"):
            start_response(fault, [("Content-Length", "0")])
            return [b""]
        begun: list[Any] = []
        body = b"".join(self.app(environ, lambda status, headers, *rest: begun.extend((status, list(headers)))))
        status, headers = begun
        if fault == "short":  # a whole answer, of half of the file
            body = body[: len(body) // 2]
            headers = [(k, v) for k, v in headers if k.lower() != "content-length"]
            headers.append(("Content-Length", str(len(body))))
        elif fault == "corrupt":
            body = body[: len(body) // 2] + bytes([body[len(body) // 2] ^ 1]) + body[len(body) // 2 + 1 :]
        start_response(status, headers)
        return _send(body, fault)


def _send(body: bytes, fault: str | None) -> Iterator[bytes]:
    if fault == "truncate":  # the connection ends early
        yield body[: len(body) // 2]
    elif fault == "stall":
        yield body[: len(body) // 2]
        time.sleep(3)
        yield body[len(body) // 2 :]
    elif fault == "slow":
        step = max(1, len(body) // 20)
        for start in range(0, len(body), step):
            time.sleep(0.05)
            yield body[start : start + step]
    else:
        yield body


class QuietHandler(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


@contextmanager
def serve(app: Callable) -> Iterator[Faults]:
    """Serves the application on a port of its own, in a thread, as long as the block lasts."""
    faults = Faults(app)
    server = make_server("127.0.0.1", 0, faults, threaded=True, request_handler=QuietHandler)
    faults.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield faults
    server.shutdown()


@pytest.fixture(scope="session")
def http_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Faults, Path]]:
    root = tmp_path_factory.mktemp("http")

    def app(environ: dict[str, Any], start_response: Callable) -> list[bytes]:
        path = root / environ["PATH_INFO"].lstrip("/")
        content = path.read_bytes() if path.is_file() else b""
        start_response("200 OK" if path.is_file() else "404 Not Found", [("Content-Length", str(len(content)))])
        return [content]

    with serve(app) as faults:
        yield faults, root


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Faults]:
    moto = pytest.importorskip("moto.server")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in S3_VARIABLES.items():
            patch.setenv(name, value)
        with serve(moto.DomainDispatcherApplication(moto.create_backend_app)) as faults:
            patch.setenv("AWS_ENDPOINT_URL", faults.url)
            boto3.client("s3").create_bucket(Bucket=BUCKET)
            yield faults


_numbers = iter(range(1_000_000))


@pytest.fixture
def http(http_server: tuple[Faults, Path]) -> SimpleNamespace:
    """A store that a test can fill, as ``s3`` and ``local`` are: ``url = http.put(folder)``."""
    faults, root = http_server
    faults.reset()

    def put(folder: Path) -> str:
        name = f"{folder.name}-{next(_numbers)}"
        (root / name).symlink_to(folder)
        return f"{faults.url}/{name}"

    return SimpleNamespace(faults=faults, put=put)


@pytest.fixture
def s3(s3_server: Faults) -> SimpleNamespace:
    s3_server.reset()
    client = boto3.client("s3")

    def put(folder: Path) -> str:
        name = f"{folder.name}-{next(_numbers)}"
        for path in (p for p in folder.rglob("*") if p.is_file()):
            client.upload_file(str(path), BUCKET, f"{name}/{path.relative_to(folder)}")
        s3_server.reset()
        return f"s3://{BUCKET}/{name}"

    return SimpleNamespace(faults=s3_server, put=put)


@pytest.fixture
def local() -> SimpleNamespace:
    return SimpleNamespace(put=lambda folder: f"file://{folder}")


@pytest.fixture(params=["http", "s3"])
def served(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Each of the servers in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def cache(tmp_path: Path) -> CacheSettings:
    return CacheSettings(str(tmp_path / "cache"), 1.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow one another at once, and a store is given up soon."""
    monkeypatch.setattr(store_module, "WAITS", (0.01, 0.01, 0.01))
    monkeypatch.setattr(store_module, "STALL_SECONDS", 0.4)
