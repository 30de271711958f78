"""The routes of the service, and its pages, to which nothing comes from elsewhere."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import fastapi_offline
from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from data_pipeline.core.errors import KinspanError

from ..questions import clean_question
from .contract import Problem, Question, SearchMode, SearchResponse, Service
from .evaluations import LoadedEvaluation
from .guard import complete_answers, limit_body, refuse, require_token
from .metrics import CONTENT_TYPE, Metrics
from .waiting import Overloaded, Result, SearchQueue

LEFT = 499  # nginx's status of a request whose caller closed the connection
DEFAULT_K = 3  # answers
LIMITS = ("max_question", "max_k", "concurrency", "timeout")  # of a Service, as /about tells them
MAX_NAME = 60  # characters of what a caller called a field
NO_JSON = 'the body must be JSON such as {"query": "..."}, sent with the header Content-Type: application/json'
PAGES = Path(__file__).resolve().parents[1] / "pages"
SWAGGER = Path(fastapi_offline.__file__).parent / "static"
# Swagger UI draws with styles and images of its own making
DOCS_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'; object-src 'none'"
)
DESCRIPTION = "Finds the answers to a question in an index, by a bi-encoder, BM25, and a cross-encoder that re-ranks."
REFUSALS = {
    401: "The token is missing or wrong.",
    404: "There is none of that name.",
    413: "The request is too large.",
    422: "The question is empty, too long or no text, or a setting is out of its range.",
    429: "Too many questions are waiting; Retry-After says when to ask again.",
    503: "The service is loading, or ran out of memory; Retry-After says when to ask again.",
    504: "The question was not answered in time.",
}


def make_app(
    service: Service,
    queue: SearchQueue,
    examples: Sequence[str],
    evaluations: Mapping[str, LoadedEvaluation],
    hosts: Sequence[str],
) -> ASGIApp:
    """The service as an ASGI application.

    examples: filled by the time the index is open
    hosts:    the names that a request may call this machine; "*": any
    """
    metrics = Metrics()
    options: dict[str, Any] = {"version": find_version(), "docs_url": None, "redoc_url": None}
    app = FastAPI(title="kinspan search", description=DESCRIPTION, **options)
    _add_errors(app)
    routes = APIRouter(dependencies=[require_token(service.token)] if service.token else [])
    _add_search(routes, service, queue, metrics)
    _add_about(routes, service, queue, metrics, examples)
    _add_evaluations(routes, evaluations)
    app.include_router(routes)

    @app.get("/health", responses={503: {"description": "The service is loading."}}, tags=["service"])
    async def tell_health() -> Response:
        """Whether questions are answered now: `{"status": "ready"}` or, with 503, `{"status": "loading"}`."""
        if queue.searcher is None:
            return JSONResponse({"status": "loading"}, 503, {"retry-after": "2"})
        return JSONResponse({"status": "ready"})

    _add_pages(app)
    return complete_answers(TrustedHostMiddleware(limit_body(app), hosts), metrics.count)


def find_version() -> str:
    try:
        return version("kinspan")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0"


def _document(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem, "description": REFUSALS[status]} for status in statuses}


def _add_errors(app: FastAPI) -> None:
    """Every refusal is ``{"detail": a sentence}``. What was sent is not repeated: JSON may not be able to hold it."""

    @app.exception_handler(RequestValidationError)
    async def refuse_input(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid" or first["loc"] == ("body",):
            return refuse(422, NO_JSON)
        sent = ".".join(map(str, first["loc"][1:]))  # what follows "body" or "query": the caller may have named it
        place = "".join(filter(str.isprintable, sent))[:MAX_NAME] or "the request"
        return refuse(422, f"{place}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def refuse_request(request: Request, error: HTTPException) -> Response:
        status = 422 if error.status_code == 400 else error.status_code  # a body that cannot be parsed
        return JSONResponse({"detail": str(error.detail)}, status, error.headers)

    @app.exception_handler(KinspanError)
    async def refuse_search(request: Request, error: KinspanError) -> Response:
        return refuse(503, str(error), retry_after="1")

    @app.exception_handler(Exception)
    async def admit_fault(request: Request, error: Exception) -> Response:
        return refuse(500, "the service has a fault; its log has more")


def _add_search(routes: APIRouter, service: Service, queue: SearchQueue, metrics: Metrics) -> None:
    async def search(question: Question, request: Request) -> Response:
        arrived = time.perf_counter()
        text, k, mode = read_question(question, service)
        result = await wait_for_answer(queue.ask(text, k, mode), request.receive, service.timeout)
        total = time.perf_counter() - arrived
        metrics.observe(total, result.timings, result.together)
        timings = {stage: round(milliseconds, 3) for stage, milliseconds in result.timings.items()}
        found = {"query": text, "hits": result.hits, "timings": timings, "total": round(1000 * total, 3)}
        return JSONResponse(found, headers={"cache-control": "no-store"})

    options: dict[str, Any] = {"response_model": SearchResponse, "tags": ["search"]}
    options["responses"] = _document(401, 413, 422, 429, 503, 504)

    @routes.post("/search", summary="Find answers", **options)
    async def post_search(question: Question, request: Request) -> Response:
        return await search(question, request)

    @routes.get("/search", summary="Find answers, by a link", **options)
    async def get_search(question: Annotated[Question, Query()], request: Request) -> Response:
        return await search(question, request)


def read_question(question: Question, service: Service) -> tuple[str, int, SearchMode]:
    """The question's text, the number of answers, and the mode. Raises HTTPException for what is beyond the limits."""
    k = question.k or min(DEFAULT_K, service.max_k)
    if len(question.query) > service.max_question:
        raise HTTPException(422, f"query: at most {service.max_question} characters")
    if k > service.max_k:
        raise HTTPException(422, f"k: at most {service.max_k}")
    if question.rerank and not service.can_rerank:
        raise HTTPException(422, "rerank: this service has no cross-encoder")
    try:
        text = clean_question(question.query)
    except KinspanError as error:
        raise HTTPException(422, str(error)) from error
    rerank = service.can_rerank if question.rerank is None else question.rerank
    return text, k, SearchMode(question.first_stage or service.first_stage, rerank)


async def wait_for_answer(
    asked: Coroutine[Any, Any, Result], receive: Callable[[], Awaitable[Any]], seconds: float
) -> Result:
    """The result. Raises HTTPException where it takes longer, or the caller leaves before it."""

    async def see_leave() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    answer, left = asyncio.create_task(asked), asyncio.create_task(see_leave())
    try:
        await asyncio.wait({answer, left}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        if left.done():
            raise HTTPException(LEFT, "the caller has left")  # for the metrics: nobody reads it
        raise HTTPException(504, f"no answer within {seconds:g} seconds: try again later, or without re-ranking")
    finally:
        left.cancel()
        answer.cancel()
        await asyncio.wait({answer})  # so that the queue has dropped the question before its caller is told


def _add_about(
    routes: APIRouter, service: Service, queue: SearchQueue, metrics: Metrics, examples: Sequence[str]
) -> None:
    def expect_searcher() -> Any:
        if queue.searcher is None:
            raise Overloaded(503, "the service is loading", after=2)
        return queue.searcher

    @routes.get("/examples", responses=_document(401, 503), tags=["search"])
    async def list_examples() -> Response:
        """Questions to pick from, as `{"questions": [...]}`."""
        expect_searcher()
        return JSONResponse({"questions": list(examples)})

    @routes.get("/about", responses=_document(401, 503), tags=["service"])
    async def tell_about() -> Response:
        """The index, its models, the settings used when a request names none, and the limits."""
        searcher = expect_searcher()
        about = {
            "index": searcher.index.folder.resolve().name,
            "answers": len(searcher.index),
            "bi_encoder": searcher.index.manifest.model["name"],
            "cross_encoder": searcher.cross_encoder.name if service.can_rerank else None,
            "first_stage": service.first_stage,
            "rerank_k": service.rerank_k,
            "blend": service.blend,
            "limits": {name: getattr(service, name) for name in LIMITS},
            "version": find_version(),
        }
        return JSONResponse(about)

    @routes.get("/metrics", include_in_schema=False)
    async def tell_metrics() -> Response:
        return Response(metrics.write(queue.count_waiting(), queue.searcher is not None), media_type=CONTENT_TYPE)


def _add_evaluations(routes: APIRouter, evaluations: Mapping[str, LoadedEvaluation]) -> None:
    options: dict[str, Any] = {"responses": _document(401, 404), "tags": ["evaluations"]}

    @routes.get("/evaluations", responses=_document(401), tags=["evaluations"])
    async def list_evaluations() -> Response:
        """Names, models, metrics and numbers of questions."""
        return JSONResponse({"evaluations": [own.summary for own in evaluations.values()]})

    @routes.get("/evaluations/{name}", **options)
    async def show_evaluation(name: str) -> Response:
        """The questions too, with the rank of each model's first right answer; null where it found none."""
        if name not in evaluations:
            raise HTTPException(404, "there is no evaluation of that name")
        return Response(evaluations[name].body, media_type="application/json")

    @routes.get("/evaluations/{name}/questions/{question:path}", **options)
    async def show_question(name: str, question: str) -> Response:
        """The right answers to a question, and the best answers of each model."""
        if name not in evaluations or question not in evaluations[name].questions:
            raise HTTPException(404, "there is no such question")
        return JSONResponse(evaluations[name].describe_question(question))


def _add_pages(app: FastAPI) -> None:
    for path, page, policy in (
        ("/", "index.html", None),
        ("/evaluate", "evaluate.html", None),
        ("/docs", "docs.html", {"content-security-policy": DOCS_POLICY}),
    ):
        app.add_route(path, _send_page(page, policy))
    app.mount("/static", StaticFiles(directory=PAGES / "static"))
    app.mount("/swagger", StaticFiles(directory=SWAGGER))


def _send_page(name: str, headers: dict[str, str] | None) -> Callable[[Request], Awaitable[Response]]:
    async def send(request: Request) -> Response:
        return FileResponse(PAGES / name, headers=headers)

    return send
