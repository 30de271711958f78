"""Mines hard negatives for the training questions of a data set."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from textwrap import shorten

from data_pipeline.core.command_line import parse
from data_pipeline.core.default_model import default_model
from data_pipeline.core.settings import ABOVE_0, REQUIRED, Range, setting
from finetune.data.registry import expect_data

SHOWN = 5  # questions that are printed with their negatives
SHARE = Range("must be above 0 and at most 1", lambda number: 0 < number <= 1)

DESCRIPTION = """Mines hard negatives: for each training question, the candidates that a model ranks highest among
the right answers to all other training questions.

Candidates that score nearly as high as the right answer are skipped: many are unlabelled right answers. The
output folder gets train.jsonl, a data set for `kinspan finetune --train_data files=FOLDER`, and mined.json with the
settings and counts. Read the printed examples before you train."""

EPILOG = """examples:
  kinspan data mine --data files=questions --output_dir mined
  kinspan data mine --data files=questions --cross_encoder runs/as2/seed-1/best --depth 30 --output_dir mined
  kinspan finetune --loss contrastive --own_negatives 4 --data files=questions --train_data files=mined"""


@dataclass
class MineConfig:
    data: str = setting(REQUIRED)
    """The data set whose training questions get negatives, such as insuranceqa=FOLDER."""
    output_dir: str = setting(REQUIRED)
    """Folder for train.jsonl and mined.json."""
    model: str | None = setting(None, is_model=True)
    """The bi-encoder that retrieves candidates, a folder of sentence-transformers or a hub name. Without it:
    all-MiniLM-L6-v2, which is installed."""
    cross_encoder: str | None = setting(None, is_model=True)
    """A cross-encoder from kinspan finetune, which scores the --depth candidates again to choose the negatives."""
    negatives: int = setting(8, ABOVE_0)
    """Maximum number of negatives of each question."""
    depth: int = setting(100, ABOVE_0)
    """Number of candidates that the bi-encoder retrieves for each question."""
    positive_share: float = setting(0.95, SHARE)
    """Skip candidates that score above this fraction of the question's lowest-scoring right answer."""
    max_length: int | None = setting(None, ABOVE_0)
    """Maximum number of tokens of a text, or of a pair for a cross-encoder. Default: each model's own."""
    columns: str | None = setting(None)
    """For files= and hub=: names of the columns, as for kinspan finetune."""


def main() -> Iterator[str]:
    config = parse(MineConfig, DESCRIPTION, EPILOG)
    expect_data(config.data)
    from finetune.ranking.mining import TRAIN, MiningRules, mine_file  # torch takes seconds to import

    output = Path(config.output_dir)
    rules = MiningRules(config.negatives, config.depth, config.positive_share)
    model = config.model or default_model()
    data, mined = mine_file(
        config.data, output, model, config.cross_encoder, rules, max_length=config.max_length, columns=config.columns
    )
    slices = list(data.question_slices())
    for number in range(0, len(mined), max(1, len(mined) // SHOWN))[:SHOWN]:
        yield f"\n{shorten(data.questions[number], 200)}"
        yield f"  right        {shorten(data.answers[slices[number].start].as_py(), 200)}"
        for row, score in mined[number]:
            yield f"  wrong {score:.3f}  {shorten(data.answers[row].as_py(), 200)}"
    yield f"{sum(map(len, mined)):,} negatives of {len(mined):,} questions"
    yield f"{output / TRAIN}: train with --data {quote(config.data)} --train_data {quote(f'files={output}')}"
