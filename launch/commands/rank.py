"""Ranks candidate answers without labels, or re-ranks a TREC run, with any model."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, REQUIRED, setting

log = logging.getLogger(__name__)

DESCRIPTION = """Ranks the candidate answers of each question by a model's scores.

The output folder gets run.txt, a TREC run with lines of `question Q0 candidate rank score tag`, and ranking.jsonl, a
line for each question with its candidates and their scores, best first.

--run re-ranks the first --depth candidates of each question of a TREC run, whose texts are in --queries and
--collection; the others follow in their order. The output folder gets run.txt."""

EPILOG = """examples:
  kinspan rank --model runs/ranker/seed-1/best --data candidates.jsonl --output_dir ranked
  kinspan rank --model releases/docs --data found.tsv --output_dir ranked \\
      --columns question=query,answer=passage
  kinspan rank --model releases/docs --run run.txt --queries queries.tsv --collection collection.tsv \\
      --output_dir ranked"""


@dataclass
class RankConfig:
    model: str = setting(REQUIRED, is_model=True)
    """The ranker: a folder or a hub name, as for kinspan evaluate."""
    output_dir: str = setting(REQUIRED)
    """Folder for run.txt and ranking.jsonl."""
    data: str | None = setting(None)
    """The candidates, one in each row: a .jsonl, .csv, .tsv or .parquet file with the columns question and answer, and
    optionally question_id and answer_id. The first line of .csv and .tsv names the columns."""
    run: str | None = setting(None)
    """Instead of --data: a TREC run to re-rank."""
    queries: str | None = setting(None, needs="run")
    """With --run: the questions, as kinspan search --questions takes them."""
    collection: str | None = setting(None, needs="run")
    """With --run: the candidates' texts, an index, or anything that kinspan index --answers takes."""
    depth: int = setting(100, ABOVE_0, needs="run")
    """With --run: number of candidates of each question to re-rank."""
    columns: str | None = setting(None, needs="data")
    """Names of the columns, as question=query,answer=passage."""
    max_length: int | None = setting(None, ABOVE_0)
    """Maximum number of tokens of a question with a candidate. Without it: as in the model's training."""
    precision: Literal["fp32", "bf16"] = setting("fp32")
    """bf16 is faster, and its scores are less exact."""


def main() -> str:
    config = parse(RankConfig, DESCRIPTION, EPILOG)
    output = Path(config.output_dir)
    if bool(config.data) == bool(config.run):
        raise KinspanError("give --data, or --run with --queries and --collection")
    if config.data:
        from finetune.ranking.measure import rank_file  # torch takes seconds to import

        rank_file(config.model, Path(config.data), output, config.columns, config.max_length, config.precision)
        return f"{output} has run.txt and ranking.jsonl"
    if not (config.run and config.queries and config.collection):
        raise KinspanError("--run needs --queries and --collection, the texts of its ids")
    from serve.search import rerank_run

    cut = config.depth, config.max_length, config.precision
    rerank_run(config.model, Path(config.run), config.queries, config.collection, output, *cut)
    return f"{output} has run.txt"
