"""The corpus that is used where the user names none: the documentation of Python and of the pinned packages."""

import fcntl
import hashlib
import os
from pathlib import Path
from typing import Any

from data_pipeline.core.files import find_cache
from data_pipeline.tokenizers import fingerprint_tokenizer
from objectives import OBJECTIVES


def default_corpus_folder(tokenizer: Any) -> Path:
    """Returns its folder in the user's cache, named by the versions that it is read from and by the tokenizer."""
    from data_pipeline.prepare.readers.python_docs import format_versions  # what prepares needs an extra

    stamp = f"{format_versions()} {fingerprint_tokenizer(tokenizer)}"
    return find_cache() / f"python-docs-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}"


def default_corpus(tokenizer: Any) -> Path:
    """Returns the folder of that corpus, which is built at its first use, by one process while others wait."""
    from data_pipeline.prepare.pipeline import prepare
    from data_pipeline.prepare.readers import PYTHON_DOCS

    folder = default_corpus_folder(tokenizer)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "manifest.json").exists():
            workers = len(os.sched_getaffinity(0))
            prepare([PYTHON_DOCS], tokenizer.name_or_path, folder, OBJECTIVES, num_workers=workers)
    return folder
