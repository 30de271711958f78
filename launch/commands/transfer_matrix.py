"""Measures how well models of many sources rank on many targets that they were not trained for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, REQUIRED, setting
from finetune.data.registry import SPECS, expect_data

DESCRIPTION = """Ranks every target's questions by every source's model, zero-shot, beside BM25 and TF-IDF: the
matrix of MultiCQA (Rücklé et al., 2020).

Writes a file for each cell into OUTPUT_DIR/results: the same command again measures what is new or has changed."""

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
    """Names of targets that are measured by P@1, beside InsuranceQA, which always is; the others by MAP."""
    split: Literal["test", "dev"] = setting("test")
    """Which questions of the targets."""
    max_length: int = setting(300, ABOVE_0)
    """Most tokens of a question and a candidate."""


def main() -> str:
    config = parse(MatrixConfig, DESCRIPTION, EPILOG)
    sources, targets = (read_names(flag, getattr(config, flag)) for flag in ("sources", "targets"))
    expect_data(*targets.values())
    from finetune.training import transfer  # after the flags: torch takes seconds to import

    if taken := [name for name in sources if name in transfer.BASELINES]:
        raise KinspanError(f"--sources {taken[0]}: a baseline has this name")
    cells = Path(config.output_dir) / "results"
    loaded = transfer.load_targets(targets, config.split, config.accuracy)
    rows = transfer.measure_matrix(sources, loaded, cells, config.max_length)
    return transfer.format_matrix(loaded, rows)


def read_names(flag: str, texts: list[str]) -> dict[str, str]:
    """Returns the values by name of a flag of NAME=VALUE. Raises KinspanError for no name, or one that stands twice."""
    named: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value or name in named:
            raise KinspanError(f"--{flag} {text}: write NAME=VALUE, each name once")
        named[name] = value
    return named
