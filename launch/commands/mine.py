"""Mines hard negatives for the training questions of a data set."""

from dataclasses import dataclass
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, NOT_BELOW_0, REQUIRED, Range, setting
from finetune.data.registry import expect_data
from launch._cli import parse

SHARE = Range("must be above 0 and at most 1", lambda number: 0 < number <= 1)

DESCRIPTION = """Mines hard negatives: for each training question the candidates that a model ranks first and that are
no answers of it, out of the right answers of all training questions.

What scores nearly as high as the right answer is left out, since much of it is right too and nobody labelled it. The
output folder gets train.jsonl, a data set for `kinspan finetune --train_data files=FOLDER`, and mined.json, what was
done. Read what is printed before you train on it."""

EPILOG = """examples:
  kinspan data mine --data insuranceqa=insuranceqa --model runs/first/seed-1/best --output_dir mined
  kinspan data mine --data files=questions --cross_encoder runs/as2/seed-1/best --depth 30 --output_dir mined
  kinspan finetune --loss contrastive --own_negatives 4 --data files=questions --train_data files=mined"""


@dataclass
class MineConfig:
    """Flags of this entry."""

    data: str = setting(REQUIRED, "The data set whose training questions are mined for, such as insuranceqa=FOLDER.")
    output_dir: str = setting(REQUIRED, "Folder for train.jsonl and mined.json.")
    model: str | None = setting(
        None,
        "The bi-encoder that looks for negatives, a folder of sentence-transformers or a hub name. Without it: "
        "all-MiniLM-L6-v2, which is installed.",
        is_model=True,
    )
    cross_encoder: str | None = setting(
        None,
        "A cross-encoder, such as kinspan finetune trains: it scores the --depth candidates that the bi-encoder "
        "ranks first, and negatives are chosen by its scores, as probabilities.",
        is_model=True,
    )
    negatives: int = setting(8, "Most negatives of each question.", within=ABOVE_0)
    depth: int = setting(100, "With --cross_encoder: so many candidates are scored by it.", within=ABOVE_0)
    skip: int = setting(0, "Leave out so many of the candidates that rank first.", within=NOT_BELOW_0)
    positive_share: float = setting(
        0.95,
        "Leave out candidates that score above this share of the lowest score of the question's right answers: many of "
        "them are right too.",
        within=SHARE,
    )
    max_length: int = setting(128, "Most tokens of a text, or of a pair for a cross-encoder.", within=ABOVE_0)
    show: int = setting(5, "Print so many questions with their negatives, to be read.", within=NOT_BELOW_0)
    columns: str | None = setting(None, "For files= and hub=: names of the columns, as for kinspan finetune.")


def main() -> None:
    config = parse(MineConfig, DESCRIPTION, EPILOG)
    if config.depth != MineConfig.depth and not config.cross_encoder:
        raise KinspanError(f"--depth {config.depth} goes with --cross_encoder alone: without it all candidates count")
    expect_data(config.data)
    from finetune.mining import MiningRules, mine_file  # after the flags: torch takes seconds to import
    from pretrain.modeling.default_model import default_model

    mine_file(
        config.data,
        Path(config.output_dir),
        config.model or default_model(),
        config.cross_encoder,
        MiningRules(config.negatives, config.depth, config.skip, config.positive_share),
        max_length=config.max_length,
        show=config.show,
        columns=config.columns,
    )
