"""Defines the routes of the service and its pages, and checks of every request."""

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.params import Depends as Dependency
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CollectorRegistry
from prometheus_fastapi_instrumentator import Instrumentator
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from data_pipeline.core.errors import KinspanError

from ..questions import MAX_QUESTION, clean_question
from .evaluations import LoadedEvaluation
from .waiting import MarkedHit, Result, SearchMode, SearchQueue, ServiceSettings

MAX_NAME = 60  # characters of a field's name, which the caller chose, in an error
NO_JSON = 'the body must be JSON such as {"query": "..."}, sent with the header Content-Type: application/json'
PAGES = Path(__file__).resolve().parents[1] / "pages"
DESCRIPTION = "Finds the answers to a question in an index, by a bi-encoder, BM25, and a cross-encoder that re-ranks."
CLIENT_CLOSED_REQUEST = 499
MAX_K = 20  # maximum number of answers to a question
MAX_BODY = 64 * 1024  # bytes: enough for the longest question with each character escaped in JSON
MAX_DISCARDED = 4 * 1024**2  # bytes of a too large body that are read, so that its sender receives the error
HEADERS = {
    "cache-control": "no-cache",  # so that a page and its scripts have the same version
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Question(BaseModel):
    """A question to the index."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(min_length=1, max_length=MAX_QUESTION, description="The question, in words.")
    k: int = Field(3, ge=1, le=MAX_K, strict=True, description="Number of answers.")
    rerank: bool | None = Field(None, description="Whether the cross-encoder re-ranks. Without it: if there is one.")
    first_stage: Literal["bi_encoder", "bm25", "fusion"] | None = Field(
        None, description="How candidates are found. Without it: the service's first stage, see /about."
    )


class SearchResponse(BaseModel):
    """The answers to a question, best first."""

    query: str = Field(description="The cleaned question: on one line, without control characters.")
    hits: list[MarkedHit]
    timings: dict[str, float] = Field(description="Milliseconds of each stage, and of the wait in the queue.")
    total: float = Field(description="Milliseconds from the question's arrival to its answer.")


def make_app(
    settings: ServiceSettings,
    queue: SearchQueue,
    examples: Sequence[str],
    evaluations: Mapping[str, LoadedEvaluation],
    hosts: Sequence[str],
) -> FastAPI:
    """Returns the service as an ASGI application. ``hosts``: host names that a request may use; "*": any"""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(queue.work())
        yield
        worker.cancel()

    app = FastAPI(title="kinspan search", description=DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False  # /metrics would keep each address that is redirected
    _add_errors(app)
    guards = [require_token(settings.token)] if settings.token else []
    routes = APIRouter(dependencies=guards)
    _add_search(routes, settings, queue)
    _add_about(routes, settings, queue, examples)
    _add_evaluations(routes, evaluations)
    app.include_router(routes)

    @app.get("/health", tags=["service"])
    async def get_health() -> Response:
        """Answers once the index is open."""
        return JSONResponse({"status": "ready"})

    for path, page in (("/", "index.html"), ("/evaluate", "evaluate.html")):
        app.add_route(path, partial(_send_page, page))
    app.mount("/static", StaticFiles(directory=PAGES / "static"))
    metrics = Instrumentator(registry=CollectorRegistry()).instrument(app)
    metrics.expose(app, include_in_schema=False, dependencies=guards)
    app.add_middleware(BodyLimit)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    app.add_middleware(BaseHTTPMiddleware, dispatch=_add_headers)
    return app


def _add_errors(app: FastAPI) -> None:
    """Makes every error ``{"detail": a sentence}``, without the rejected value, which may not be valid in JSON."""

    @app.exception_handler(RequestValidationError)
    async def refuse_input(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid" or first["loc"] == ("body",):
            return refuse(422, NO_JSON)
        name = ".".join(map(str, first["loc"][1:]))  # the path after "body", which the caller may have chosen
        field = "".join(filter(str.isprintable, name))[:MAX_NAME] or "the request"
        return refuse(422, f"{field}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def refuse_request(request: Request, error: HTTPException) -> Response:
        status = 422 if error.status_code == 400 else error.status_code  # a body that cannot be parsed
        return JSONResponse({"detail": str(error.detail)}, status, error.headers)

    @app.exception_handler(KinspanError)
    async def refuse_search(request: Request, error: KinspanError) -> Response:
        return refuse(503, str(error))

    @app.exception_handler(Exception)
    async def report_fault(request: Request, error: Exception) -> Response:
        return refuse(500, "the service has a fault; its log has more")


def _add_search(routes: APIRouter, settings: ServiceSettings, queue: SearchQueue) -> None:
    @routes.post("/search", response_model=SearchResponse, tags=["search"])
    async def search(question: Question, request: Request) -> Response:
        """Returns the best answers to a question."""
        arrived = time.perf_counter()
        if question.rerank and not settings.can_rerank:
            raise HTTPException(422, "rerank: this service has no cross-encoder")
        try:
            text = clean_question(question.query)
        except KinspanError as error:
            raise HTTPException(422, str(error)) from error
        rerank = settings.can_rerank if question.rerank is None else question.rerank
        mode = SearchMode(question.first_stage or settings.first_stage, rerank)
        hits, milliseconds = await _answer_caller(request, queue.ask(text, question.k, mode))
        timings = {stage: round(value, 3) for stage, value in milliseconds.items()}
        total = round(1000 * (time.perf_counter() - arrived), 3)
        content = {"query": text, "hits": [vars(hit) for hit in hits], "timings": timings, "total": total}
        return JSONResponse(content, headers={"cache-control": "no-store"})


async def _answer_caller(request: Request, asked: Coroutine[Any, Any, Result]) -> Result:
    """Waits for the result. Cancels the question if its caller hangs up."""
    answer, left = asyncio.ensure_future(asked), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait([answer, left], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise HTTPException(CLIENT_CLOSED_REQUEST, "the caller has left")
        return answer.result()
    finally:
        answer.cancel()
        left.cancel()


def _add_about(routes: APIRouter, settings: ServiceSettings, queue: SearchQueue, examples: Sequence[str]) -> None:
    @routes.get("/examples", tags=["search"])
    async def list_examples() -> Response:
        """Lists example questions, as `{"questions": [...]}`."""
        return JSONResponse({"questions": list(examples)})

    @routes.get("/about", tags=["service"])
    async def get_about() -> Response:
        """Returns the index's name, its models, the default settings and the limits."""
        searcher = queue.searcher
        about = {
            "index": searcher.index.folder.resolve().name,
            "answers": len(searcher.index),
            "bi_encoder": searcher.index.manifest.model["name"],
            "cross_encoder": searcher.cross_encoder.name if searcher.cross_encoder and settings.can_rerank else None,
            "first_stage": settings.first_stage,
            "rerank_k": settings.rerank_k,
            "blend": settings.blend,
            "limits": {"max_question": MAX_QUESTION, "max_k": MAX_K},
        }
        return JSONResponse(about)


def _add_evaluations(routes: APIRouter, evaluations: Mapping[str, LoadedEvaluation]) -> None:
    @routes.get("/evaluations", tags=["evaluations"])
    async def list_evaluations() -> Response:
        """Lists the evaluations with their models, metrics and numbers of questions."""
        return JSONResponse({"evaluations": [evaluation.summary for evaluation in evaluations.values()]})

    @routes.get("/evaluations/{name}", tags=["evaluations"])
    async def show_evaluation(name: str) -> Response:
        """Returns an evaluation with its questions and the rank of each model's first right answer, or null."""
        if name not in evaluations:
            raise HTTPException(404, "there is no evaluation of that name")
        return Response(evaluations[name].body, media_type="application/json")

    @routes.get("/evaluations/{name}/questions/{question:path}", tags=["evaluations"])
    async def show_question(name: str, question: str) -> Response:
        """Returns the right answers to a question, and the best answers of each model."""
        if name not in evaluations or question not in evaluations[name].questions:
            raise HTTPException(404, "there is no such question")
        return JSONResponse(evaluations[name].show_question(question))


async def _send_page(name: str, request: Request) -> Response:
    return FileResponse(PAGES / name)


async def _add_headers(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Adds HEADERS to each answer, unless a route has set its own."""
    response = await call_next(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


class BodyLimit:
    """Answers 413 to a body of more than MAX_BODY bytes, without keeping it in memory."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if scope["method"] not in ("GET", "HEAD", "POST"):  # each would have a line of its own in /metrics
            return await refuse(405, "no such method")(scope, receive, send)
        declared, arrived, body = int(Headers(scope=scope).get("content-length", 0)), 0, b""
        while max(declared, arrived) <= MAX_DISCARDED:
            message = await receive()
            if message["type"] == "http.disconnect":
                return await refuse(CLIENT_CLOSED_REQUEST, "the caller has left")(scope, receive, send)
            arrived += len(message["body"])
            body = b"" if arrived > MAX_BODY else body + message["body"]
            if not message["more_body"]:
                break
        if max(declared, arrived) > MAX_BODY:
            return await refuse(413, f"the request is longer than {MAX_BODY:,} bytes")(scope, receive, send)
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


def refuse(status: int, detail: str) -> JSONResponse:
    return JSONResponse({"detail": detail}, status)
