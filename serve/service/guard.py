"""Checks of every request before it reaches a route, and the headers that every answer carries."""

import asyncio
import hmac
import ipaddress
from typing import Annotated

from fastapi import Depends, HTTPException
from fastapi.params import Depends as Dependency
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 64 * 1024  # bytes: the longest question, each character escaped as JSON may
DISCARDED = 4 * 1024**2  # bytes of a body that is too large, read so that its sender sees the answer
BODY_SECONDS = 10.0  # in which a body must arrive
HEADERS = {
    "cache-control": "no-cache",  # a page and its scripts are of one version
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class SecurityHeaders:
    """Adds HEADERS to each answer, unless a route has set its own."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_completed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, send_completed)


class BodyLimit:
    """Answers 413 to a body of more than MAX_BODY bytes, which is not held, and 408 to one that does not arrive."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        declared, arrived, body = int(Headers(scope=scope).get("content-length", 0)), 0, b""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while max(declared, arrived) <= DISCARDED:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    arrived += len(message["body"])
                    body = b"" if arrived > MAX_BODY else body + message["body"]
                    if not message["more_body"]:
                        break
        except TimeoutError:
            return await refuse(408, "the request took too long to arrive")(scope, receive, send)
        if max(declared, arrived) > MAX_BODY:
            return await refuse(413, f"a request has at most {MAX_BODY:,} bytes")(scope, receive, send)
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> Message:
            return pending.pop() if pending else await receive()

        return await self.app(scope, receive_body, send)


def require_token(token: str) -> Dependency:
    """Returns a dependency that answers 401 to a request without the token."""
    scheme = HTTPBearer(auto_error=False, description="The service's token.")

    async def check(given: Annotated[HTTPAuthorizationCredentials | None, Depends(scheme)]) -> None:
        if not given or not hmac.compare_digest(given.credentials.encode(), token.encode()):
            raise HTTPException(401, "give the token: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})

    return Dependency(check)


def is_local(host: str) -> bool:
    """Returns whether this is a name or an address by which a machine means itself."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse(status: int, detail: str) -> JSONResponse:
    return JSONResponse({"detail": detail}, status)
