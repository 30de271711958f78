"""The settings of ``kinspan rank`` and ``kinspan data mine``; without torch."""

from dataclasses import dataclass
from typing import Literal

from data_pipeline.core.settings import ABOVE_0, REQUIRED, Range, setting

SHARE = Range("must be above 0 and at most 1", lambda number: 0 < number <= 1)


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
