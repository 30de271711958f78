"""Whether a run is complete: read from its folder alone, before torch, a model or a corpus is loaded."""

import json
import re
from dataclasses import fields
from pathlib import Path
from shlex import quote

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import find_file, read_object
from data_pipeline.remote.address import is_remote
from data_pipeline.sources import list_paths, parse_sources
from pretrain.engine.schedule import OPEN_ENDED

from .config import LENGTHS, PretrainConfig, as_dict

SUMMARY = "summary.json"
LISTS = ("corpus", "adapters")
# A run is recognised by their content, and not by their names
READ = (*LISTS, "model", "generator", "deepspeed_config")


def find_finished(config: PretrainConfig) -> Path | None:
    """The summary of the run that these settings describe; None where it is not complete, or a look at its folder does
    not tell: a file that the run has read may have changed since.

    Raises KinspanError where the settings differ from those of the complete run in its length alone.
    """
    folder = Path(config.output_dir)
    summary = folder / SUMMARY
    try:
        found = read_object(summary, "")
        theirs, steps = dict(found["config"]), int(found["steps"])
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
        raise KinspanError(f"--output_dir {folder} holds a run that is complete after {steps} steps: {advise(folder)}")
    sources = parse_sources(config.corpus)
    objectives = [config.objective, *(source.objective or "" for source in sources)]
    has_own_objective = any(re.search(":[^0-9]", name) for name in objectives)  # whose code may have changed
    read = [*list_paths(sources), *ours["adapters"], *(ours[name] for name in READ if name not in LISTS)]
    return None if has_own_objective or any(_is_newer(name, summary) for name in read) else summary


def advise(folder: Path) -> str:
    """How to train a run's model for longer."""
    run, release = quote(str(folder)), quote(f"{folder}/release")
    return (
        "its length cannot change, because the learning rate falls to zero at its end (a run with --lr_schedule wsd "
        f"can be continued). To train on, release it (kinspan release --run_dir {run} --output_dir "
        f"{release}), and start another run from there (--model {release}, and another --output_dir)"
    )


def _is_newer(name: str | None, summary: Path) -> bool:
    """Whether a file of this name, or in the folder of this name, was written after the summary, or cannot be looked
    at."""
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
