"""Whether a run is complete: read from its folder alone, before torch, a model or a corpus is loaded."""

import json
import re
from dataclasses import fields
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import find_file, read_object
from data_pipeline.sources import is_remote, list_paths, parse_sources
from pretrain.engine.schedule import OPEN_ENDED

from .config import LENGTHS, PretrainConfig, as_dict

SUMMARY = "summary.json"
LISTS = ("corpus", "adapters")
READ = (*LISTS, "model", "generator", "deepspeed_config")  # files: a run is recognised by their content, not names


def find_finished(config: PretrainConfig) -> Path | None:
    """Returns the summary of the run that these settings describe; None where it is not complete, or a look at its
    folder does not tell: a file that the run has read may have changed since.

    Raises KinspanError where the settings differ from those of the complete run in its length alone.
    """
    folder = Path(config.output_dir)
    summary = folder / SUMMARY
    try:
        finished = read_object(summary, "")
        theirs, steps = dict(finished["config"]), int(finished["steps"])
    except (KinspanError, LookupError, TypeError, ValueError):
        return None
    ours = json.loads(json.dumps(as_dict(config)))
    compared = {*(f.name for f in fields(config) if not f.metadata["may_change"]), *READ}
    differing = {name for name in compared if theirs.get(name) != ours[name]}
    if not (folder / f"checkpoints/step-{steps:08d}/manifest.json").is_file() or differing - {*LENGTHS, "warmup_steps"}:
        return None
    if differing and (config.lr_schedule in OPEN_ENDED or not differing & set(LENGTHS)):
        return None  # it goes on, or setting it up says what keeps it from that
    if differing:
        length = next(name for name in LENGTHS if name in differing)
        raise KinspanError(
            f"--{length}: {folder} holds this run, whose rate fell to zero after {steps} steps: release it, and train "
            "that further with another --output_dir"
        )
    sources = parse_sources(config.corpus)
    objectives = [config.objective, *(source.objective or "" for source in sources)]
    has_user_code = any(re.search(":[^0-9]", name) for name in objectives)  # which may have changed
    read = [*list_paths(sources), *ours["adapters"], *(ours[name] for name in READ if name not in LISTS)]
    return None if has_user_code or any(_is_newer(name, summary) for name in read) else summary


def _is_newer(name: str | None, summary: Path) -> bool:
    """Returns whether a file of this name, or in this folder, was written after the summary, or cannot be seen."""
    if name and is_remote(name):
        return True
    place = find_file(name) if name and not Path(name).is_dir() else name and Path(name)
    if not place:
        return False
    try:
        files = [place, *place.iterdir()] if place.is_dir() else [place]
        return any(file.stat().st_mtime > summary.stat().st_mtime for file in files)
    except OSError:
        return True
