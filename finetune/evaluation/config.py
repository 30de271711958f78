"""The settings of ``kinspan evaluate``, and which of them go together."""

from dataclasses import dataclass, fields
from typing import Literal

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, get_default, setting

LANGUAGE_HELP = (
    "Language of the Snowball stems that BM25 compares, such as de or german; none: whole words. Without it: guessed "
    "from the texts. Of Chinese, Japanese, Korean and Thai, it always compares pairs of characters."
)


@dataclass
class FileFlags:
    GROUP = "TREC files"

    run: list[str] = setting([])
    """TREC run files; the first is the baseline."""
    qrels: str | None = setting(None)
    """The judgements: a TREC qrels file, or a folder or file in BEIR's form."""


@dataclass
class DataFlags:
    GROUP = "models and a data set"

    model: list[str] = setting([], is_model=True)
    """Model folders or hub names; the first is the baseline."""
    data: str | None = setting(None)
    """The data set, such as wikiqa=FOLDER; all are listed below."""
    columns: str | None = setting(None)
    """For files= and hub=: names of the columns, as question=query,answer=passage,label=relevant."""
    split: Literal["train", "dev", "test"] = setting("test")
    """The split of --data."""
    eval_filter: Literal["raw", "no-all-negative", "clean"] = setting("clean")
    """Which questions of --data are used: all (raw), those with an answer (no-all-negative), or those that have both
    answers and non-answers (clean)."""
    max_length: int | None = setting(None, ABOVE_0)
    """Maximum number of tokens of a question with a candidate, or of a text for a bi-encoder. Default: each
    model's own."""
    precision: Literal["fp32", "bf16"] = setting("fp32")
    """bf16 is faster, but rounds scores."""
    language: str | None = setting(None, help=LANGUAGE_HELP)
    output_dir: str | None = setting(None)
    """Folder for the predictions and the metrics of every question."""
    documents: list[str] = setting([])
    """Documents, as kinspan prepare --input takes them, whose paragraphs are searched for the right answers of --data.
    That may then be files=FILE without labels: with the columns question and answer, and perhaps document."""
    depth: int = setting(50, ABOVE_0, needs="documents")
    """Number of paragraphs that each search finds."""


@dataclass
class EvaluateConfig(DataFlags, FileFlags):
    metrics: list[str] = setting([])
    """Metrics by any name that ir_measures knows: nDCG@20, MRR@10, R@100, AP(rel=2), Success@5, Judged@10.
    Without it: MAP, MRR, P@1 and nDCG@10."""
    json: bool = setting(False)
    """Also print the figures as JSON, in the last line."""


_OF_MODELS = ("data", "columns", "split", "max_length", "precision", "language")
# For each flag that selects a mode: the flags that go with it; the first of them is required.
MODES = {
    "run": ("qrels", "metrics"),
    "documents": (*_OF_MODELS, "model", "depth"),
    "model": (*_OF_MODELS, "eval_filter", "metrics", "output_dir"),
}


def check(config: EvaluateConfig) -> str:
    """Returns the mode of these flags. Raises KinspanError for flags that do not go together."""
    given = [flag.name for flag in fields(config) if getattr(config, flag.name) != get_default(flag)]
    mode = next((mode for mode in MODES if mode in given), None)
    if mode is None:
        choices = " or ".join(f"--{mode} with --{needed}" for mode, (needed, *_) in MODES.items())
        raise KinspanError(f"nothing to evaluate: give {choices}; see --help")
    for name in given:
        if name not in (mode, "json", *MODES[mode]):
            raise KinspanError(f"--{name} does not go with --{mode}; see --help")
    if MODES[mode][0] not in given:
        raise KinspanError(f"--{mode} needs --{MODES[mode][0]}; see --help")
    for flag in ("run", "model"):
        if len(set(names := getattr(config, flag))) < len(names):
            raise KinspanError(f"--{flag} {' '.join(names)}: give each once")
    return mode
