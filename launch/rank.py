"""Ranks candidate answers that have no labels, with a ranker, a release or any other model that scores pairs."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from launch._cli import parse, run
from pretrain.runtime.settings import ABOVE_0, REQUIRED, setting

DESCRIPTION = """Ranks the candidate answers of each question by a model's scores.

The candidates need no labels. The output folder gets run.txt, lines of `question Q0 candidate rank score tag` as TREC
has them, and ranking.jsonl, in which each line is a question with its candidates and their scores, best first."""

EPILOG = """examples:
  python launch/rank.py --model runs/wikiqa/seed-1/best --data candidates.jsonl --output_dir ranked
  python launch/rank.py --model releases/docs --data found.tsv --output_dir ranked \\
      --columns question=query,answer=passage"""


@dataclass
class RankConfig:
    """Flags of this entry."""

    model: str = setting(REQUIRED, "The ranker: a folder or a hub name, as for launch/evaluate.py.")
    data: str = setting(
        REQUIRED,
        "The candidates, one in each row: a .jsonl, .csv, .tsv or .parquet file with the columns question and answer, "
        "and optionally question_id and answer_id. The first line of .csv and .tsv names the columns.",
    )
    output_dir: str = setting(REQUIRED, "Folder for run.txt and ranking.jsonl.")
    columns: str | None = setting(None, "Names of the columns, as question=query,answer=passage.")
    max_length: int | None = setting(
        None,
        "Most tokens of a question with a candidate. Without it: the model's own, that of its training.",
        within=ABOVE_0,
    )
    precision: Literal["fp32", "bf16"] = setting("fp32", "bf16 is faster, and rounds scores.")


def main() -> None:
    config = parse(RankConfig, DESCRIPTION, EPILOG)
    from finetune.rank import rank_file  # after the flags

    rank_file(
        config.model, Path(config.data), Path(config.output_dir), config.columns, config.max_length, config.precision
    )


if __name__ == "__main__":
    run(main)
