"""Runs a study of answer sentence selection: several ways of fine-tuning, in one table beside a paper's figures."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import find_file
from data_pipeline.core.settings import ABOVE_0, REQUIRED, setting
from finetune.data.registry import expect_data
from finetune.training.config import SPEC
from pretrain.engine.stop import is_launched

DESCRIPTION = """Runs the rows of a study, a YAML file, each an experiment as of kinspan finetune with its seeds, and
prints them as one table: mean and standard deviation, BM25, each row tested against the first, and the paper's own
figures below ours. An HTML page shows curves, data and examples. A row may have a `pretrain:` block of settings of
kinspan pretrain: its model is then pre-trained first; or `stages:`, a list of `pretrain:` and `finetune:` blocks that
train one after another, before the row's own fine-tuning. The same command again resumes, and finished parts stay.

Each row and seed leaves a line of JSON in --results. A file with `groups:` of arms, starts and sets instead of rows
(benchmarks/evidence/recipe.yaml) leaves nothing else; --page fills the tables of its Markdown page from the lines,
without --data from those that are there.

Studies here: tanda-wikiqa-trecqa (tables 3 and 4), tanda-noise (table 5), tanda-asnq-labels (table 6), tanda-stability
(figure 4), di-liello-roberta, di-liello-electra and di-liello-asnq (table 1), as2 and as2-noise (what `make as2` and
`make as2-noise` run), transtqa and transtqa-scale-1 (a bi-encoder's transfer in steps; `make transtqa`)."""

EPILOG = """examples:
  kinspan study --study launch/recipes/tanda-noise.yaml --data wikiqa=WikiQACorpus --transfer asnq=ASNQ
  kinspan study --study launch/recipes/tanda-noise.yaml --data wikiqa=WikiQACorpus --transfer trecqa=trecqa \\
      --model releases/ssp --set seeds=2 epochs=2
  kinspan study --study launch/recipes/transtqa.yaml --data techqa_pool=technicalqa \\
      --where corpus=corpora/technical source=askubuntu_qa=technicalqa --output_dir runs/transtqa"""


@dataclass
class StudyConfig:
    """Flags of this entry."""

    study: str = setting(REQUIRED)
    """YAML file with title, source, settings of all rows, and rows."""
    data: list[str] = setting(
        [], help=f"Data sets, each of which gets a table: {SPEC}. Needed, unless --page is given."
    )
    transfer: str | None = setting(None)
    """The data set that rows of TANDA transfer from."""
    model: str | None = setting(None, is_model=True)
    """Where rows start that name no model. Without it: the study's, or else all-MiniLM-L6-v2, which is installed."""
    output_dir: str = setting("runs/study")
    """Folder that the runs and the results are written to."""
    set: list[str] = setting([])
    """NAME=VALUE: settings of kinspan finetune that replace the study's; those that a row sets itself cannot be
    replaced."""
    repeat_stages: bool = setting(False)
    """Run `pretrain:` and `stages:` once for each seed, with this seed. Without it they run once for all seeds, which
    then say nothing of how another pre-training would do: such rows have no star."""
    no_bm25: bool = setting(False)
    """Leave BM25 out of the tables."""
    json: bool = setting(False)
    """Print the tables as a line of JSON too, last."""
    where: list[str] = setting([])
    """NAME=VALUE: what $NAME in the stages of the study's file stands for, such as corpus=corpora/docs."""
    results: str | None = setting(None)
    """Folder of the lines of results. Without it: results in --output_dir."""
    page: str | None = setting(None)
    """Markdown page of a study with groups, whose tables are filled from the lines of results at the end."""
    hours: float | None = setting(None, ABOVE_0)
    """Stop after so many hours, as at a signal."""
    workers: int = setting(1, ABOVE_0)
    """Processes that share the rows; the others write to worker-N.txt."""
    local_rank: int = setting(-1)
    """Set by the deepspeed launcher."""


def overrides(settings: list[str]) -> dict[str, Any]:
    """``["seeds=2"]`` as a dictionary. Raises KinspanError for what is no setting."""
    from finetune.studies.study_file import SETTINGS

    out = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or name not in SETTINGS:
            raise KinspanError(f"--set {text}: write NAME=VALUE with a setting of kinspan finetune")
        try:
            out[name] = yaml.safe_load(value)
        except (ValueError, RecursionError, yaml.YAMLError) as error:
            raise KinspanError(f"--set {text}: the value cannot be read: {quote_error(error)}") from error
    return out


def read_names(given: list[str]) -> dict[str, str]:
    """``["corpus=corpora/docs"]`` as a dictionary. Raises KinspanError for what is no NAME=VALUE."""
    parted = [text.partition("=") for text in given]
    for text, (name, _, value) in zip(given, parted, strict=True):
        if not name.isidentifier() or not value:
            raise KinspanError(f"--where {text}: write NAME=VALUE")
    return {name: value for name, _, value in parted}


def find_unused_names(names: dict[str, str], text: str) -> list[str]:
    """Lines about names of ``--where`` that the text of a study's file does not have."""
    return [
        f"ignored, as the study's file has no ${name}: --where {name}=..."
        for name in names
        if not re.search(rf"\${name}\b", text)
    ]


@contextmanager
def start_workers(config: StudyConfig) -> Iterator[None]:
    """Runs the same command in more processes, which end when the block does."""
    if config.workers > 1 and is_launched():
        raise KinspanError("--workers is of one process: leave it out where a launcher starts ranks")
    if config.workers > (cores := len(os.sched_getaffinity(0))):
        raise KinspanError(f"--workers {config.workers}: there are {cores} cores here, and a worker takes one")
    workers = []
    for number in range(2, config.workers + 1):
        log = Path(config.output_dir) / f"worker-{number}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            command = [sys.executable, "-m", "launch.kinspan", "study", *sys.argv[1:], "--workers", "1"]
            workers.append(subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL))
    try:
        yield
    finally:
        for worker in workers:
            worker.terminate()  # all rows are done, or this process was stopped: a checkpoint is written
        for worker in workers:
            worker.wait()


def main() -> None:
    config = parse(StudyConfig, DESCRIPTION, EPILOG)
    if not config.data and not config.page:
        raise KinspanError("--data is needed, unless --page alone is to be made of the lines that are there")
    expect_data(*config.data, config.transfer)
    from finetune.studies.findings import Findings  # after the flags: torch takes seconds to import
    from finetune.studies.lines import ResultStore
    from finetune.studies.page import write_page
    from finetune.studies.study import LINES, run_study
    from finetune.studies.study_file import read_study
    from launch.commands._stages import prepare_blank, prepare_pretraining

    path, names = find_file(config.study) or Path(config.study), read_names(config.where)
    given, study = overrides(config.set), read_study(path)
    if config.page and study.matrix is None:
        raise KinspanError(f"--page {config.page}: {config.study} lists rows, whose page is report.html")
    if config.page and not Path(config.page).is_file():
        raise KinspanError(f"--page {config.page}: there is no such file; docs/as2.md says how one is written")
    if study.matrix is not None:
        for flag in ("model", "transfer", "no_bm25", "repeat_stages", "json"):
            if getattr(config, flag):
                raise KinspanError(f"--{flag} goes with a study of rows: {config.study} has groups, which say it all")
    if config.model:
        study = replace(study, settings={**study.settings, "model": config.model})
    if study.matrix is None:
        study = replace(study, bm25=not config.no_bm25, repeat_stages=config.repeat_stages)
    if study.matrix is None and not int(os.environ.get("RANK", "0")):
        for line in find_unused_names(names, path.read_text(encoding="utf-8")):
            print(line, flush=True)
    store = ResultStore(Path(config.results or Path(config.output_dir) / LINES).absolute())
    results: dict[str, Any] = {}
    try:
        if config.data:
            with start_workers(config):
                results = run_study(
                    study,
                    config.data,
                    Path(config.output_dir),
                    given,
                    config.transfer,
                    stages={"pretrain": prepare_pretraining, "blank": prepare_blank},
                    where=names,
                    store=store,
                    hours=config.hours,
                )
    finally:
        if config.page:
            write_page(Findings(study, store), Path(config.page))
            print(f"page: {config.page}")
    if config.json and not int(os.environ.get("RANK", "0")):
        print(json.dumps(results))
