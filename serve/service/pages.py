"""The pages, their files, and the page of the API; nothing comes from elsewhere."""

from pathlib import Path

import fastapi_offline
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

PAGES = Path(__file__).resolve().parents[1] / "pages"
# Swagger UI draws with styles and images of its own making
DOCS_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'; object-src 'none'"
)
SWAGGER = Path(fastapi_offline.__file__).parent / "static"
SWAGGER_FILES = ("swagger-ui.css", "swagger-ui-bundle.js", "favicon.png")


def add_pages(app: FastAPI) -> None:
    """Serves the pages *ask* and *evaluate*, the API's page, and the files that they need."""

    @app.get("/", include_in_schema=False)
    def show_ask() -> Response:
        return _send_page("index.html")

    @app.get("/evaluate", include_in_schema=False)
    def show_evaluate() -> Response:
        return _send_page("evaluate.html")

    @app.get("/docs", include_in_schema=False)
    def show_docs() -> Response:
        page = _send_page("docs.html")
        page.headers["content-security-policy"] = DOCS_POLICY
        return page

    @app.get("/docs/{name}", include_in_schema=False)
    def send_swagger(name: str) -> Response:
        if name not in SWAGGER_FILES:
            raise HTTPException(404)
        return FileResponse(SWAGGER / name)

    app.mount("/static", StaticFiles(directory=PAGES / "static"))


def _send_page(name: str) -> Response:
    return FileResponse(PAGES / name)
