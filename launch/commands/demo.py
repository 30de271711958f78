"""Makes an index of Python's documentation, and serves it with a page to ask how to do something in Python."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_pipeline.core.command_line import parse
from data_pipeline.core.settings import setting
from launch.commands.serve import PORTS
from serve.demo import EXAMPLES, INDEX, prepare_demo

DESCRIPTION = """Answers questions about Python out of Python's own documentation, on a page at http://127.0.0.1:8000.

The first time, the documentation of the standard library is cut into passages and encoded by all-MiniLM-L6-v2, which
comes with the installation: minutes, and no network. The page /evaluate compares the ways to search on a hundred
questions. The same command again starts in seconds."""

EPILOG = """examples:
  kinspan demo
  kinspan demo --port 8080 --cross_encoder runs/quickstart/release"""


@dataclass
class DemoConfig:
    """Flags of this entry."""

    output_dir: str = setting("runs/demo")
    """Folder for the index and the evaluation."""
    port: int = setting(8000, PORTS)
    """Port of this machine to listen on; 0 takes a free one."""
    first_stage: Literal["bi_encoder", "bm25", "fusion"] = setting("bi_encoder")
    """What finds the candidates where a question does not say."""
    cross_encoder: str | None = setting(None, is_model=True)
    """What ranks the candidates again: a release, a ranker, or any other model that kinspan rank takes."""


def main() -> None:
    config = parse(DemoConfig, DESCRIPTION, EPILOG)
    from serve.service.contract import Service  # after the flags
    from serve.service.server import open_socket, serve

    folder = Path(config.output_dir)
    opened = open_socket("127.0.0.1", config.port)  # before the work: a port that is taken is said at once
    fingerprint = ""
    if config.cross_encoder:
        from pretrain.release.folder import fingerprint_model

        fingerprint = fingerprint_model(config.cross_encoder)
    evaluation = prepare_demo(folder, config.cross_encoder, fingerprint, lambda note: print(note, flush=True))
    service = Service(
        str(folder / INDEX),
        config.cross_encoder,
        first_stage=config.first_stage,
        examples=str(folder / EXAMPLES),
        evaluation=[str(evaluation)],
    )
    serve(service, opened, lambda note: print(note, flush=True))
