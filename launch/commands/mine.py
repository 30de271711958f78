"""Mines hard negatives for the training questions of a data set."""

from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from data_pipeline.core.command_line import parse, shorten
from finetune.data.registry import expect_data
from finetune.ranking.config import MineConfig

SHOWN = 5  # questions that are printed with their negatives

DESCRIPTION = """Mines hard negatives: for each training question, the candidates that a model ranks highest among
the right answers to all other training questions.

Candidates that score nearly as high as the right answer are skipped: many are unlabelled right answers. The
output folder gets train.jsonl, a data set for `kinspan finetune --train_data files=FOLDER`, and mined.json with the
settings and counts. Read the printed examples before you train."""

EPILOG = """examples:
  kinspan data mine --data files=questions --output_dir mined
  kinspan data mine --data files=questions --cross_encoder runs/as2/seed-1/best --depth 30 --output_dir mined
  kinspan finetune --loss contrastive --own_negatives 4 --data files=questions --train_data files=mined"""


def main() -> Iterator[str]:
    config = parse(MineConfig, DESCRIPTION, EPILOG)
    expect_data(config.data)
    from finetune.ranking.mining import TRAIN, mine_file  # torch takes seconds to import

    output = Path(config.output_dir)
    data, mined = mine_file(config)
    slices = list(data.question_slices())
    for number in range(0, len(mined), max(1, len(mined) // SHOWN))[:SHOWN]:
        yield f"\n{shorten(data.questions[number], 200)}"
        yield f"  right        {shorten(data.answers[slices[number].start].as_py(), 200)}"
        for row, score in mined[number]:
            yield f"  wrong {score:.3f}  {shorten(data.answers[row].as_py(), 200)}"
    yield f"{sum(map(len, mined)):,} negatives of {len(mined):,} questions"
    yield f"{output / TRAIN}: train with --data {quote(config.data)} --train_data {quote(f'files={output}')}"
