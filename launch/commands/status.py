"""Shows the state of a run of kinspan pretrain, from the files in its output folder."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.core.command_line import parse
from data_pipeline.core.settings import REQUIRED, setting
from pretrain.status import EXIT_STATUS, format_status, read_status

DESCRIPTION = """Shows the state, progress, speed, time left, last checkpoint, skipped updates and last validation of a
run of kinspan pretrain. It only reads the log, the checkpoints and the lock in the run's output folder.

exit status: 0 complete, 3 running, 75 not running (the same command resumes it), 2 there is no run"""

EPILOG = """examples:
  kinspan show run runs/docs
  kinspan show run runs/docs --json"""


@dataclass
class StatusConfig:
    POSITIONAL = "run_dir"

    run_dir: str = setting(REQUIRED)
    """The run's output folder; the flag's name may be omitted."""
    json: bool = setting(False)
    """Print one JSON object."""


def main() -> Iterator[str]:
    config = parse(StatusConfig, DESCRIPTION, EPILOG)
    status = read_status(Path(config.run_dir))
    yield json.dumps(status) if config.json else format_status(status)
    sys.exit(EXIT_STATUS[status["state"]])
