"""Measures how well models of many sources rank on many targets, zero-shot."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_pipeline.core.command_line import parse
from data_pipeline.core.default_model import resolve_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, REQUIRED, setting
from finetune.data.registry import SPECS, expect_data

DESCRIPTION = """Ranks every target's questions by every source's model, zero-shot, beside BM25 and TF-IDF: the
matrix of MultiCQA (Rücklé et al., 2020).

OUTPUT_DIR/results has a file for each cell; the same command again measures only new or changed ones."""

EPILOG = f"""example:
  kinspan evaluate transfer --sources beer=releases/beer physics=releases/physics \\
      --targets wikiqa=wikiqa=data/WikiQACorpus cooking=files=data/las-cooking --accuracy cooking --output_dir matrix

A target is NAME=SPEC, where SPEC is one of the following:
{SPECS}"""


@dataclass
class MatrixConfig:
    sources: list[str] = setting(REQUIRED)
    """Models, each NAME=FOLDER."""
    targets: list[str] = setting(REQUIRED)
    """Test sets, each NAME=SPEC, such as wikiqa=wikiqa=data/WikiQACorpus."""
    output_dir: str = setting(REQUIRED)
    """Folder for the cells."""
    accuracy: list[str] = setting([])
    """Names of targets to measure by P@1; InsuranceQA always is, all others are measured by MAP."""
    split: Literal["test", "dev"] = setting("test")
    """Split of the targets' questions."""
    max_length: int | None = setting(None, ABOVE_0)
    """Maximum number of tokens of a question with a candidate. Without it: as in the training of each model."""


def main() -> str:
    config = parse(MatrixConfig, DESCRIPTION, EPILOG)
    sources, targets = (read_names(flag, getattr(config, flag)) for flag in ("sources", "targets"))
    expect_data(*targets.values())
    from finetune.training import transfer  # torch takes seconds to import

    if taken := [name for name in sources if name in transfer.BASELINES]:
        raise KinspanError(f"--sources {taken[0]}: a baseline has this name")
    cells = Path(config.output_dir) / "results"
    loaded = transfer.load_targets(targets, config.split, config.accuracy)
    models = {name: resolve_model(model) for name, model in sources.items()}
    return transfer.format_matrix(loaded, transfer.measure_matrix(models, loaded, cells, config.max_length))


def read_names(flag: str, texts: list[str]) -> dict[str, str]:
    """Parses NAME=VALUE of a flag. Raises KinspanError for a missing or repeated name."""
    named: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value or name in named:
            raise KinspanError(f"--{flag} {text}: write NAME=VALUE, each name once")
        named[name] = value
    return named
