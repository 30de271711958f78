"""Runs a study of answer sentence selection: several ways of fine-tuning, in one table beside a paper's figures."""

import json
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

import yaml

from data_pipeline.errors import KinspanError, one_line
from finetune.training.config import SPEC
from launch._cli import parse, run

DESCRIPTION = """Runs the rows of a study, a YAML file, each an experiment as of launch/finetune.py with its seeds, and
prints them as one table: mean and standard deviation, BM25, each row tested against the first, and the paper's own
figures below ours. With an HTML page of curves, data and examples. The same command again resumes.

Studies here: tanda-wikiqa-trecqa (tables 3 and 4), tanda-noise (table 5), tanda-asnq-labels (table 6), tanda-stability
(figure 4), di-liello-roberta and di-liello-electra (table 1), as2 (what `make as2` runs)."""

EPILOG = """examples:
  python launch/study.py --study launch/recipes/tanda-noise.yaml --data wikiqa=WikiQACorpus --transfer asnq=ASNQ
  python launch/study.py --study launch/recipes/tanda-noise.yaml --data wikiqa=WikiQACorpus --transfer trecqa=trecqa \\
      --model releases/ssp --set seeds=2 epochs=2"""


@dataclass
class StudyConfig:
    """Flags of this entry."""

    study: str = field(metadata={"help": "YAML file: title, source, settings of all rows, rows."})
    data: list[str] = field(metadata={"help": f"Data sets, a table each: {SPEC}."})
    transfer: str | None = field(default=None, metadata={"help": "What rows of TANDA transfer from."})
    model: str | None = field(
        default=None,
        metadata={"help": "Where rows that name no model start; default: the study's, or all-MiniLM-L6-v2."},
    )
    output_dir: str = field(default="runs/study", metadata={"help": "Where the runs and the results go."})
    set: list[str] = field(
        default_factory=list,
        metadata={
            "help": "NAME=VALUE, settings over the study's, as of launch/finetune.py; not those that its rows set."
        },
    )


def overrides(settings: list[str]) -> dict[str, Any]:
    """``["seeds=2"]`` as a dictionary. Raises KinspanError for what is no setting."""
    from finetune.training.study_file import SETTINGS

    out = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name not in SETTINGS:
            raise KinspanError(f"--set {setting}: write NAME=VALUE with a setting of launch/finetune.py")
        try:
            out[name] = yaml.safe_load(value)
        except (ValueError, RecursionError, yaml.YAMLError) as error:
            raise KinspanError(f"--set {setting}: the value cannot be read: {one_line(error)}") from error
    return out


def main() -> None:
    config = parse(StudyConfig, DESCRIPTION, EPILOG)
    from finetune.training.study_file import read_study

    from finetune.training.study import run_study  # after the flags: torch takes seconds to import

    given, study = overrides(config.set), read_study(Path(config.study))
    if config.model:
        study = replace(study, settings={**study.settings, "model": config.model})
    results = run_study(study, config.data, Path(config.output_dir), given, config.transfer)
    if not int(os.environ.get("RANK", "0")):
        print(json.dumps(results))


if __name__ == "__main__":
    run(main)
