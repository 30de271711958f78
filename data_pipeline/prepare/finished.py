"""Whether an output folder already holds the corpus that is asked for."""

import json
from pathlib import Path

from data_pipeline.corpus import Corpus, Manifest
from data_pipeline.errors import KinspanError

from .readers import UNREADABLE

# what a corpus holds beside its manifest
CORPUS_PARTS = ("shards", "tokenizer", "rejected.jsonl", "request.json", "report.html")


def find_finished(folder: Path, request: dict, allow_damaged: bool) -> Manifest | None:
    """Return the manifest of a corpus that is already there, whole, and what this request would make; else None.

    Raises KinspanError where the folder holds the corpus of another request, or one that lacks the rest of a damaged
    file, unless ``allow_damaged``.
    """
    if not (folder / "manifest.json").exists():
        return None
    try:
        same = json.loads((folder / "request.json").read_text()) == request
    except (OSError, ValueError):
        same = False
    if not same:
        raise KinspanError(
            f"--output_dir {folder} already holds another corpus (other inputs, settings or tokenizer): "
            "choose another folder, or delete it first"
        )
    damaged = _find_damaged(folder / "rejected.jsonl")
    if damaged and not allow_damaged:
        raise KinspanError(
            f"--output_dir {folder} holds this corpus without the rest of {damaged}, which could not be read: choose "
            "another folder or delete it to read the file again, or give --allow_damaged to use the corpus as it is"
        )
    try:
        manifest = Corpus(folder).manifest
        if all((folder / s.file).stat().st_size == s.bytes for s in manifest.shards):
            return manifest
    except (KinspanError, OSError):
        pass  # it is this very corpus, but damaged, and is made again
    (folder / "partial").mkdir(exist_ok=True)  # marks the corpus as unfinished
    (folder / "manifest.json").unlink()
    return None


def _find_damaged(rejected: Path) -> str | None:
    """Name the first input that could not be read to its end, by ``rejected.jsonl``; None where there is none."""
    if rejected.exists():
        with rejected.open(encoding="utf-8") as file:
            for entry in map(json.loads, file):
                if entry["reason"].startswith(UNREADABLE):
                    return str(entry["file"])
    return None
