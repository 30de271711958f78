"""The pages, their files, and the page of the API; nothing comes from elsewhere."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import fastapi_offline
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

PAGES = Path(__file__).resolve().parents[1] / "pages"
SWAGGER = Path(fastapi_offline.__file__).parent / "static"
# Swagger UI draws with styles and images of its own making
DOCS_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'; object-src 'none'"
)


def add_pages(app: FastAPI) -> None:
    """Serves the pages *ask* and *evaluate*, the API's page, and the files that they need."""
    app.add_route("/", _send("index.html"))
    app.add_route("/evaluate", _send("evaluate.html"))
    app.add_route("/docs", _send("docs.html", {"content-security-policy": DOCS_POLICY}))
    app.mount("/static", StaticFiles(directory=PAGES / "static"))
    app.mount("/swagger", StaticFiles(directory=SWAGGER))


def _send(name: str, headers: dict[str, str] | None = None) -> Callable[[Request], Awaitable[Response]]:
    async def send_page(request: Request) -> Response:
        return FileResponse(PAGES / name, headers=headers)

    return send_page
