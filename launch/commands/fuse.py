"""Learns to add up the scores of several rankers: BM25, a bi-encoder, a cross-encoder."""

from dataclasses import dataclass
from pathlib import Path

from data_pipeline.core.command_line import parse
from data_pipeline.core.settings import ABOVE_0, REQUIRED, setting
from finetune.data.registry import SPECS, expect_data

DESCRIPTION = """Learns the weights by which the scores of several rankers are best added up, and writes a ranker that
does so: kinspan rank, evaluate, search and serve take its folder like any other.

The weights are those of a logistic regression on the dev questions, which no part has been trained on; a few dozen are
enough. Parts and fusion are then measured on the test questions. Nothing is written where the fusion is not better
than each of its parts on dev."""

EPILOG = f"""examples:
  kinspan fuse --parts bm25 sentence-transformers/all-MiniLM-L6-v2 --data wikiqa=WikiQACorpus --output_dir fused
  kinspan fuse --parts bm25 releases/bi runs/wikiqa/seed-1/best --data files=questions --output_dir fused
  kinspan search --index index --cross_encoder fused "Does homeowners insurance cover a broken pipe?"

{SPECS}"""


@dataclass
class FuseConfig:
    parts: list[str] = setting(REQUIRED, is_model=True)
    """The rankers: bm25, and folders or hub names of bi-encoders, releases and other cross-encoders."""
    data: str = setting(REQUIRED)
    """The data set whose dev questions decide the weights, such as wikiqa=FOLDER."""
    output_dir: str = setting(REQUIRED)
    """Folder for the fusion, which the models of its parts are copied to."""
    columns: str | None = setting(None)
    """For files= and hub=: names of the columns, as question=query,answer=passage,label=relevant."""
    max_length: int | None = setting(None, ABOVE_0)
    """Most tokens of a question with a candidate, or of a text for a bi-encoder. Without it: each model's own."""


def main() -> str:
    config = parse(FuseConfig, DESCRIPTION, EPILOG)
    expect_data(config.data)
    from finetune.ranking.fuse import fuse_file  # after the flags: torch takes seconds to import

    return fuse_file(config.parts, config.data, Path(config.output_dir), config.columns, config.max_length)
