"""What every request passes before it reaches a route: limits of its body, its host, its token; and what every answer
carries. Each function wraps an ASGI application and returns one."""

import asyncio
import hmac
import ipaddress
from collections.abc import Callable
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 64 * 1024  # bytes: the longest question, each character escaped as JSON may
DISCARDED = 4 * 1024**2  # bytes of a body that is too large, read so that its sender gets to see the answer
BODY_SECONDS = 10.0  # in which a body must be there
PUBLIC = ("/", "/evaluate", "/health", "/docs", "/openapi.json")  # without a token: pages hold no answers
PUBLIC_FOLDERS = ("/static/", "/docs/")
HEADERS = {
    "cache-control": "no-cache",  # a page and its scripts are of one version
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def add_headers(app: ASGIApp) -> ASGIApp:
    """Tells browsers to run nothing but the service's own files; a route may have said so in its own way."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message["headers"]}
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in there]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        await app(scope, receive, send_with_headers)

    return guarded


def observe(app: ASGIApp, say: Callable[[str, int], Any]) -> ASGIApp:
    """Tells path and status of each answer."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_say(message: Message) -> None:
            if message["type"] == "http.response.start":
                say(scope["path"], message["status"])
            await send(message)

        await app(scope, receive, send_and_say if scope["type"] == "http" else send)

    return guarded


def limit_body(app: ASGIApp) -> ASGIApp:
    """Answers 413 to a body of more than MAX_BODY bytes, which are never held, and 408 to one that does not come."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read_body(receive, _declared_length(scope))
        except TimeoutError:
            return await _refuse(408, "the request took too long to arrive")(scope, receive, send)
        except _TooLarge:
            return await _refuse(413, f"a request has {MAX_BODY:,} bytes at most")(scope, receive, send)
        except _Gone:
            return None
        first = True

        async def receive_whole() -> Message:
            nonlocal first
            if first:
                first = False
                return {"type": "http.request", "body": body, "more_body": False}
            return await receive()

        await app(scope, receive_whole, send)

    return guarded


class _TooLarge(Exception):
    pass


class _Gone(Exception):
    pass


def _declared_length(scope: Scope) -> int:
    """0 where none is declared, as of a body in chunks; the server has refused what is no number."""
    return next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)


async def _read_body(receive: Receive, declared: int) -> bytes:
    """Raises _TooLarge, having read on for a while, and _Gone where the client has left."""
    read, held = 0, bytearray()
    if declared > DISCARDED:
        raise _TooLarge
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        chunk = message.get("body", b"")
        read += len(chunk)
        if max(read, declared) <= MAX_BODY:
            held += chunk
        if not message.get("more_body", False) or read > DISCARDED:
            break
    if max(read, declared) > MAX_BODY:
        raise _TooLarge
    return bytes(held)


def check_host(app: ASGIApp) -> ASGIApp:
    """Answers only to the names of this machine itself.

    For a service on localhost without a token: a page elsewhere, whose name its owner lets point here, could otherwise
    read the answers in a visitor's browser.
    """

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_local(_host_of(scope)):
            message = "this service answers to localhost alone: open it there, or start it with --token_file"
            return await _refuse(421, message)(scope, receive, send)
        await app(scope, receive, send)

    return guarded


def _host_of(scope: Scope) -> str:
    """The host that a request names, without its port."""
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def is_local(host: str) -> bool:
    """Whether this is a name or an address by which a machine means itself."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_token(app: ASGIApp, token: str) -> ASGIApp:
    """Answers 401 where a request does not bear the token; pages, their files and /health need none."""
    wanted = f"Bearer {token}".encode()

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_public(scope["path"]):
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(given, wanted):
                refused = _refuse(401, "this service needs its token: Authorization: Bearer TOKEN")
                refused.headers["www-authenticate"] = "Bearer"
                return await refused(scope, receive, send)
        await app(scope, receive, send)

    return guarded


def is_public(path: str) -> bool:
    return path in PUBLIC or path.startswith(PUBLIC_FOLDERS)


def _refuse(status: int, detail: str) -> JSONResponse:
    return JSONResponse({"detail": detail}, status)
