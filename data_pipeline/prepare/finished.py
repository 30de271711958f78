"""Whether an output folder already holds the corpus that is asked for."""

import json
from pathlib import Path

from data_pipeline.corpus import Corpus, Manifest
from data_pipeline.errors import KinspanError

from .readers import SKIPPED, UNREADABLE
from .rejection import Allowed, ReadTally, refuse_rejected

# what a corpus holds beside its manifest
CORPUS_PARTS = ("shards", "tokenizer", "rejected.jsonl", "request.json", "report.html")


def find_finished(folder: Path, request: dict, allowed: Allowed) -> Manifest | None:
    """Return the manifest of a corpus that is already there, whole, and what this request would make; else None.

    Raises KinspanError where the folder holds the corpus of another request, or one that lacks text which is not
    allowed to be missing: the rest of a damaged file, a file of an archive, or too many rejected records.
    """
    if not (folder / "manifest.json").exists():
        return None
    try:
        made = json.loads((folder / "request.json").read_text())
        read = made.pop("read", ReadTally().to_json())
        same = made == request
    except (OSError, ValueError, AttributeError):
        same = False
    if not same:
        raise KinspanError(
            f"--output_dir {folder} already holds another corpus (other inputs, settings or tokenizer): "
            "choose another folder, or delete it first"
        )
    refuse_rejected(
        ReadTally.from_json(read), allowed.rejected, f"--output_dir {folder} holds this corpus, but --input"
    )
    for kind, is_allowed, flag, what in (
        (UNREADABLE, allowed.damaged, "--allow_damaged", "the rest of "),
        (SKIPPED, allowed.skipped, "--allow_skipped", ""),
    ):
        missing = None if is_allowed else _find_rejected(folder / "rejected.jsonl", kind)
        if missing:
            raise KinspanError(
                f"--output_dir {folder} holds this corpus without {what}{missing}, which could not be read: choose "
                f"another folder or delete it to read the file again, or give {flag} to use the corpus as it is"
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


def _find_rejected(rejected: Path, kind: str) -> str | None:
    """Name the first input whose reason in ``rejected.jsonl`` begins so; None where there is none."""
    if rejected.exists():
        with rejected.open(encoding="utf-8") as file:
            for entry in map(json.loads, file):
                if entry["reason"].startswith(kind):
                    return str(entry["file"])
    return None
