"""Serves the search of an index over HTTP, with a page to try it."""

from dataclasses import dataclass, fields
from pathlib import Path

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import Range, setting
from serve.questions import SearcherFlags

DESCRIPTION = """Answers questions over HTTP from an index that kinspan index wrote.

POST /search takes {"query": "..."} and returns the best answers; / is a page to ask questions on, /openapi.json
describes the API, /health answers once the index is open, and /metrics is for Prometheus. Questions that wait at the
same time share a model call. On SIGTERM or Ctrl-C it answers the waiting questions, refuses new ones, and exits.

It accepts connections from this machine only, unless --host is given."""

EPILOG = """examples:
  kinspan serve --index index
  kinspan serve --index index --cross_encoder releases/docs --first_stage fusion --port 8080
  kinspan serve --index index --host 0.0.0.0 --token_file token.txt
  curl -s localhost:8000/search -H 'Content-Type: application/json' -d '{"query": "The printer does not print"}'"""

PORTS = Range("must be from 0 to 65535", lambda number: 0 <= number < 2**16)


@dataclass
class ServeConfig(SearcherFlags):
    host: str = setting("127.0.0.1")
    """Address to listen on; 0.0.0.0: all addresses of this machine."""
    port: int = setting(8000, PORTS)
    """Port to listen on; 0: any free port."""
    token_file: str | None = setting(None)
    """File with the token that callers must send, as Authorization: Bearer TOKEN. The pages ask for it."""
    allow_anonymous: bool = setting(False)
    """Allow callers from other machines without a token."""
    examples: str | None = setting(None)
    """File of example questions for the page, one on each line. Without it: questions or titles from the index."""
    evaluation: list[str] = setting([])
    """Folders of evaluations for the page /evaluate, see docs/search.md."""


def main() -> None:
    config = parse(ServeConfig, DESCRIPTION, EPILOG)
    from serve.service.server import is_local, open_socket, read_token, serve  # torch takes seconds to import
    from serve.service.waiting import ServiceSettings

    token = read_token(Path(config.token_file)) if config.token_file else None
    if not token and not config.allow_anonymous and not is_local(config.host):
        raise KinspanError(f"--host {config.host}: others could read all answers: give --token_file")
    names = [field.name for field in fields(ServiceSettings) if hasattr(config, field.name)]
    settings = ServiceSettings(token=token, **{name: getattr(config, name) for name in names})
    serve(settings, open_socket(config.host, config.port))
