"""Sets up messages: each module logs to ``logging.getLogger(__name__)``, and an entry decides where that goes."""

import logging
import os
import sys

from tqdm import tqdm

PACKAGES = ("data_pipeline", "objectives", "pretrain", "finetune", "serve", "launch", "benchmarks", "__main__")


class _Screen(logging.Handler):
    """Writes to stderr as it is now, above any progress bar; of several ranks only the first writes below errors."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or os.environ.get("RANK", "0") == "0":
            prefix = "warning: " if record.levelno == logging.WARNING else ""
            tqdm.write(prefix + self.format(record), file=sys.stderr)


def set_up_logging() -> None:
    """Shows this project's messages from INFO and other libraries' from WARNING on; called once, by the entry."""
    logging.basicConfig(handlers=[_Screen()], format="%(message)s", level=logging.WARNING)
    for package in PACKAGES:
        logging.getLogger(package).setLevel(logging.INFO)
