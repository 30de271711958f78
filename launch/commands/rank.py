"""Ranks candidate answers without labels, or re-ranks a TREC run, with any model."""

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError
from finetune.ranking.config import RankConfig

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


def main() -> str:
    config = parse(RankConfig, DESCRIPTION, EPILOG)
    if bool(config.data) == bool(config.run):
        raise KinspanError("give --data, or --run with --queries and --collection")
    if config.data:
        from finetune.ranking.measure import rank_file  # torch takes seconds to import

        rank_file(config)
        return f"{config.output_dir} has run.txt and ranking.jsonl"
    if not (config.run and config.queries and config.collection):
        raise KinspanError("--run needs --queries and --collection, the texts of its ids")
    from serve.search import rerank_run

    rerank_run(config)
    return f"{config.output_dir} has run.txt"
