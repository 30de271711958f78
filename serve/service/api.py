"""The routes of the service."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from data_pipeline.errors import KinspanError

from ..questions import clean_question
from . import guard
from .contract import (
    About,
    Answers,
    Evaluation,
    Evaluations,
    Examples,
    Found,
    Health,
    Limits,
    Problem,
    Way,
    make_question,
)
from .evaluations import Opened
from .metrics import CONTENT_TYPE, Metrics
from .pages import add_pages
from .waiting import READY, NotNow, Result, SearchQueue

LEFT = 499  # nginx's status of a request whose caller closed the connection
MOST_OF_A_NAME = 60  # characters of what a caller called a field
NO_JSON = 'the body must be JSON such as {"query": "..."}, sent with the header Content-Type: application/json'
DESCRIPTION = "Finds the answers to a question in an index, by a bi-encoder, BM25, and a cross-encoder that re-ranks."
REFUSALS = {
    401: "The token is missing or another one.",
    413: "The request is too large.",
    422: "The question is empty, too long or no text, or a setting is out of its range.",
    429: "Too many questions are waiting; Retry-After says when to ask again.",
    503: "The service is loading or draining, or memory was short; Retry-After says when to ask again.",
    504: "The question was not answered in time.",
}


def make_app(
    queue: SearchQueue,
    about: Callable[[], dict[str, Any]],
    examples: Callable[[], Sequence[str]],
    limits: Limits,
    first_stage: str,
    can_rerank: bool,
    evaluations: Mapping[str, Opened],
    token: str | None = None,
    localhost_only: bool = False,
) -> ASGIApp:
    """The service as an ASGI application.

    about, examples: what the routes of these names answer; called once the index is open
    first_stage:     that is used where a question names none
    can_rerank:      whether there is a cross-encoder
    token:           that a caller has to bear; None where anyone may ask
    localhost_only:  whether requests that name another host are refused
    """
    metrics = Metrics()
    options: dict[str, Any] = {"version": find_version(), "docs_url": None, "redoc_url": None}
    if token:  # so that the page of the API asks for it; check_token is what refuses
        options["dependencies"] = [Depends(HTTPBearer(auto_error=False, description="The service's token."))]
    app = FastAPI(title="kinspan search", description=DESCRIPTION, **options)
    _add_errors(app)
    _add_search(app, queue, metrics, limits, first_stage, can_rerank)
    _add_about(app, queue, metrics, about, examples)
    _add_evaluations(app, evaluations)
    add_pages(app)
    guarded: ASGIApp = app
    if token:
        guarded = guard.check_token(guarded, token)
    elif localhost_only:
        guarded = guard.check_host(guarded)
    return guard.observe(guard.add_headers(guard.limit_body(guarded)), metrics.count)


def find_version() -> str:
    try:
        return version("kinspan")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0"


def _documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem, "description": REFUSALS[status]} for status in statuses}


def _add_errors(app: FastAPI) -> None:
    """Every refusal is ``{"detail": a sentence}``. What was sent is not repeated: JSON may not be able to hold it."""

    @app.exception_handler(RequestValidationError)
    async def refuse_input(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid" or first["loc"] == ("body",):
            return _refuse(422, NO_JSON)
        sent = ".".join(map(str, first["loc"][1:]))  # what follows "body" or "query": the caller may have named it
        place = "".join(filter(str.isprintable, sent))[:MOST_OF_A_NAME] or "the request"
        return _refuse(422, f"{place}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        status = 422 if error.status_code == 400 else error.status_code  # a body that cannot be parsed
        return _refuse(status, str(error.detail), error.headers)

    @app.exception_handler(NotNow)
    async def refuse_for_now(request: Request, error: NotNow) -> Response:
        return _refuse(429 if error.busy else 503, str(error), {"retry-after": str(error.after)})

    @app.exception_handler(KinspanError)
    async def refuse_search(request: Request, error: KinspanError) -> Response:
        return _refuse(503, str(error), {"retry-after": "1"})

    @app.exception_handler(Exception)
    async def admit_fault(request: Request, error: Exception) -> Response:
        return _refuse(500, "the service has a fault; its log has more")


def _refuse(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"detail": detail}, status, dict(headers or {}))


def _add_search(
    app: FastAPI, queue: SearchQueue, metrics: Metrics, limits: Limits, first_stage: str, can_rerank: bool
) -> None:
    Question = make_question(limits)

    async def search(question: Any, request: Request) -> Response:
        arrived = time.perf_counter()
        try:
            text = clean_question(question.query)
        except KinspanError as error:
            return _refuse(422, str(error))
        if question.rerank and not can_rerank:
            return _refuse(422, "rerank: this service has no cross-encoder")
        way = Way(question.first_stage or first_stage, can_rerank if question.rerank is None else question.rerank)
        asked = queue.ask(text, question.k, way)
        try:
            result = await _wait(asked, request.receive, limits.timeout)
        except ClientDisconnect:
            return _refuse(LEFT, "the caller has left")  # for the metrics and the log: nobody reads it
        if result is None:
            return _refuse(504, f"no answer within {limits.timeout:g} seconds: try again later, or without re-ranking")
        total = time.perf_counter() - arrived
        metrics.observe(total, result.timings, result.together)
        timings = {stage: round(milliseconds, 3) for stage, milliseconds in result.timings.items()}
        return JSONResponse(
            {"query": text, "hits": result.hits, "timings": timings, "total": round(1000 * total, 3)},
            headers={"cache-control": "no-store"},
        )

    options: dict[str, Any] = {"response_model": Found, "responses": _documented(401, 413, 422, 429, 503, 504)}
    options["tags"] = ["search"]

    @app.post("/search", summary="Find answers", **options)
    async def post_search(question: Question, request: Request) -> Response:  # type: ignore[valid-type]
        return await search(question, request)

    @app.get("/search", summary="Find answers, by a link", **options)
    async def get_search(question: Annotated[Question, Query()], request: Request) -> Response:  # type: ignore[valid-type]
        return await search(question, request)


async def _wait(asked: "Future[Result]", receive: Callable[[], Awaitable[Any]], seconds: float) -> Result | None:
    """The result; None where it has not come in time. Raises ClientDisconnect where the caller leaves before it."""
    answer, left = asyncio.wrap_future(asked), asyncio.ensure_future(_see_leave(receive))
    either: set[asyncio.Future[Any]] = {answer, left}
    try:
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        if left.done():
            raise ClientDisconnect
        return None
    finally:
        left.cancel()
        asked.cancel()  # The queue sees it at once; `answer` alone would tell it in the loop's next round.
        answer.cancel()


async def _see_leave(receive: Callable[[], Awaitable[Any]]) -> None:
    """Returns when the caller has left; what is left of a request before that has no meaning."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _add_about(
    app: FastAPI,
    queue: SearchQueue,
    metrics: Metrics,
    about: Callable[[], dict[str, Any]],
    examples: Callable[[], Sequence[str]],
) -> None:
    def expect_ready() -> None:
        if queue.searcher is None:
            raise NotNow(f"the service is {queue.state}: try again later", busy=False, after=2)

    @app.get("/examples", response_model=Examples, responses=_documented(401, 503), tags=["search"])
    async def list_examples() -> Response:
        expect_ready()
        return JSONResponse({"questions": list(examples())})

    @app.get("/about", response_model=About, responses=_documented(401, 503), tags=["service"])
    async def tell_about() -> Response:
        expect_ready()
        return JSONResponse(about())

    @app.get("/health", response_model=Health, responses={503: {"model": Health}}, tags=["service"])
    async def tell_health() -> Response:
        ready = queue.state == READY
        return JSONResponse({"status": queue.state}, 200 if ready else 503, {} if ready else {"retry-after": "2"})

    @app.get("/metrics", include_in_schema=False)
    async def tell_metrics() -> Response:
        metrics.waiting.set(queue.count_waiting())
        metrics.ready.set(queue.state == READY)
        return Response(metrics.write(), media_type=CONTENT_TYPE)


def _add_evaluations(app: FastAPI, evaluations: Mapping[str, Opened]) -> None:
    missing: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "There is none of that name."}}
    missing |= _documented(401)

    @app.get("/evaluations", response_model=Evaluations, responses=_documented(401), tags=["evaluations"])
    async def list_evaluations() -> Evaluations:
        return Evaluations(evaluations=[own.summary for own in evaluations.values()])

    @app.get("/evaluations/{name}", response_model=Evaluation, responses=missing, tags=["evaluations"])
    async def show_evaluation(name: str) -> Response:
        if name not in evaluations:
            return _refuse(404, "there is no evaluation of that name")
        return Response(evaluations[name].body, media_type="application/json")

    @app.get(
        "/evaluations/{name}/questions/{question:path}",
        response_model=Answers,
        responses=missing,
        tags=["evaluations"],
    )
    async def show_question(name: str, question: str) -> Any:
        found = evaluations[name].describe_question(question) if name in evaluations else None
        return found or _refuse(404, "there is no such question")
