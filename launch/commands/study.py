"""Runs a study of answer sentence selection: several ways of fine-tuning, in one table beside a paper's figures."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from data_pipeline.errors import KinspanError, quote_error
from data_pipeline.files import find_file
from finetune.training.config import SPEC
from launch._cli import parse, run
from pretrain.runtime.settings import REQUIRED, setting

DESCRIPTION = """Runs the rows of a study, a YAML file, each an experiment as of launch/finetune.py with its seeds, and
prints them as one table: mean and standard deviation, BM25, each row tested against the first, and the paper's own
figures below ours. An HTML page shows curves, data and examples. A row may have a `pretrain:` block of settings of
launch/pretrain.py: its model is then pre-trained first; or `stages:`, a list of `pretrain:` and `finetune:` blocks that
train one after another, before the row's own fine-tuning. The same command again resumes, and finished parts stay.

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

    study: str = setting(REQUIRED, "YAML file with title, source, settings of all rows, and rows.")
    data: list[str] = setting(REQUIRED, f"Data sets, each of which gets a table: {SPEC}.")
    transfer: str | None = setting(None, "The data set that rows of TANDA transfer from.")
    model: str | None = setting(
        None,
        "Where rows start that name no model. Without it: the study's, or else all-MiniLM-L6-v2, which is installed.",
    )
    output_dir: str = setting("runs/study", "Folder that the runs and the results are written to.")
    set: list[str] = setting(
        [],
        "NAME=VALUE: settings of launch/finetune.py that replace the study's; those that a row sets itself cannot be "
        "replaced.",
    )
    repeat_stages: bool = setting(
        False,
        "Run `pretrain:` and `stages:` once for each seed, with this seed. Without it they run once for all seeds, "
        "which then say nothing of how another pre-training would do: such rows have no star.",
    )
    no_bm25: bool = setting(False, "Leave BM25 out of the tables.")
    json: bool = setting(False, "Print the tables as a line of JSON too, last.")
    where: list[str] = setting(
        [],
        "NAME=VALUE: what $NAME in the stages of the study's file stands for, such as corpus=corpora/docs.",
    )
    local_rank: int = setting(-1, "Set by the deepspeed launcher.")


def overrides(settings: list[str]) -> dict[str, Any]:
    """``["seeds=2"]`` as a dictionary. Raises KinspanError for what is no setting."""
    from finetune.studies.study_file import SETTINGS

    out = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or name not in SETTINGS:
            raise KinspanError(f"--set {text}: write NAME=VALUE with a setting of launch/finetune.py")
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


def main() -> None:
    config = parse(StudyConfig, DESCRIPTION, EPILOG)
    from finetune.studies.study import run_study  # after the flags: torch takes seconds to import
    from finetune.studies.study_file import read_study
    from launch.commands._stages import prepare_pretraining

    given, study = overrides(config.set), read_study(find_file(config.study) or Path(config.study))
    if config.model:
        study = replace(study, settings={**study.settings, "model": config.model})
    study = replace(study, bm25=not config.no_bm25, repeat_stages=config.repeat_stages)
    runners = {"pretrain": prepare_pretraining}
    results = run_study(
        study,
        config.data,
        Path(config.output_dir),
        given,
        config.transfer,
        stages=runners,
        where=read_names(config.where),
    )
    if config.json and not int(os.environ.get("RANK", "0")):
        print(json.dumps(results))


if __name__ == "__main__":
    run(main)
