"""Runs a study of answer sentence selection: several ways of fine-tuning, in one table beside a paper's figures."""

from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import find_file
from data_pipeline.core.settings import REQUIRED, setting
from finetune.data.registry import expect_data
from finetune.training.config import SPEC
from launch.commands.transfer_matrix import read_names

DESCRIPTION = """Runs the rows of a study, a YAML file; each row is an experiment of kinspan finetune with several
seeds. Prints one table: mean and standard deviation, BM25, each row tested against the first, and the paper's figures.
A row may have `stages:`, a list of `pretrain:` and `finetune:` blocks with settings of these commands, to run before
its fine-tuning. Run the same command again to resume.

launch/recipes has those of the papers: tanda-*, di-liello-*, as2, as2-noise, transtqa and transtqa-scale-1."""

EPILOG = """examples:
  kinspan study --study launch/recipes/tanda-noise.yaml --data wikiqa=WikiQACorpus --transfer asnq=ASNQ
  kinspan study --study launch/recipes/tanda-noise.yaml --data wikiqa=WikiQACorpus --transfer trecqa=trecqa \\
      --model releases/ssp --set seeds=2
  kinspan study --study launch/recipes/transtqa.yaml --data techqa_pool=technicalqa \\
      --where corpus=corpora/technical source=askubuntu_qa=technicalqa --output_dir runs/transtqa"""


@dataclass
class StudyConfig:
    study: str = setting(REQUIRED)
    """YAML file with title, source, settings of all rows, and rows."""
    data: list[str] = setting(REQUIRED, help=f"Data sets, each of which gets a table: {SPEC}.")
    transfer: str | None = setting(None)
    """The data set that TANDA's rows are trained on first."""
    model: str | None = setting(None, is_model=True)
    """Base model of rows without one. Without it: the study's, or else all-MiniLM-L6-v2, which is installed."""
    output_dir: str = setting("runs/study")
    """Folder for the runs and the results."""
    set: list[str] = setting([])
    """NAME=VALUE: settings of kinspan finetune that replace the study's, but not a row's."""
    where: list[str] = setting([])
    """NAME=VALUE: the value of $NAME in the stages of the study's file, such as corpus=corpora/docs."""
    local_rank: int = setting(-1)
    """Set by the deepspeed launcher."""


def parse_overrides(settings: list[str]) -> dict[str, object]:
    """Parses ``["seeds=2"]``. Raises KinspanError for an unknown setting."""
    from finetune.study import SETTINGS

    named = read_names("set", settings)
    if unknown := named.keys() - SETTINGS:
        raise KinspanError(f"--set {min(unknown)}: not a setting of kinspan finetune")
    try:
        return {name: yaml.safe_load(value) for name, value in named.items()}
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise KinspanError(f"--set {' '.join(settings)}: a value cannot be read: {quote_error(error)}") from error


def main() -> str:
    config = parse(StudyConfig, DESCRIPTION, EPILOG)
    expect_data(*config.data, config.transfer)
    from finetune.study import StudyContext, format_study, read_study, run_study  # torch takes seconds to import
    from launch.commands._stages import prepare_pretraining

    path = find_file(config.study) or Path(config.study)
    study = read_study(path)
    if config.model:
        study = replace(study, settings={**study.settings, "model": config.model})
    names, content = read_names("where", config.where), path.read_text(encoding="utf-8")
    if missing := [name for name in names if f"${name}" not in content]:
        raise KinspanError(f"--where {missing[0]}: the study's file has no ${missing[0]}")
    output, overrides = Path(config.output_dir), parse_overrides(config.set)
    context = StudyContext(study, config.data, output, overrides, config.transfer, prepare_pretraining, names)
    return format_study(run_study(context))
