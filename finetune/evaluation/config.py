"""The settings of ``kinspan evaluate``, and which of them go together."""

from dataclasses import dataclass, fields
from typing import Literal

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, cache_dir, cache_gb, default_of, setting

FILES, MODELS, CONTAMINATION = "TREC files", "models on a data set", "contamination of a corpus by a data set"


@dataclass
class EvaluateConfig:
    """Settings of ``kinspan evaluate``; each is a flag, or a line of a ``--config`` file."""

    USAGES = ("--run ... --qrels ...", "--model ... --data ...", "--contamination ... --data ... [--model ...]")
    GROUPS = (FILES, MODELS, CONTAMINATION)

    run: list[str] = setting([], "TREC run files, of which the first is the baseline.", FILES)
    qrels: str | None = setting(None, "The judgements: a TREC qrels file, or a folder or file in BEIR's form.", FILES)
    per_question: str | None = setting(None, "CSV file for the metrics of every question.", FILES)
    contamination: str | None = setting(
        None, "Corpus folder or address: which sentences of --data stand in it?", CONTAMINATION
    )
    model: list[str] = setting(
        [], "Model folders or hub names, of which the first is the baseline.", MODELS, is_model=True
    )
    data: str | None = setting(
        None, "The data set, such as wikiqa=FOLDER; all are listed below. --contamination needs it too.", MODELS
    )
    columns: str | None = setting(
        None, "For files= and hub=: names of the columns, as question=query,answer=passage,label=relevant.", MODELS
    )
    split: Literal["train", "dev", "test"] = setting("test", "Which part of --data.", MODELS)
    eval_filter: Literal["raw", "no-all-negative", "clean"] = setting(
        "clean",
        "Which questions of --data are used: all (raw), those with an answer (no-all-negative), or those that have "
        "both answers and non-answers (clean).",
        MODELS,
        old_name="filter",
    )
    metrics: list[str] = setting(
        [],
        "What to measure, by any name that ir_measures knows: nDCG@20, MRR@10, R@100, AP(rel=2), Success@5, Judged@10. "
        "Without it: MAP, MRR, P@1 and nDCG@10.",
    )
    max_length: int | None = setting(
        None,
        "Most tokens of a question with a candidate, or of a text for a bi-encoder. Without it: each model's own, that "
        "of its training.",
        MODELS,
        within=ABOVE_0,
    )
    precision: Literal["fp32", "bf16"] = setting("fp32", "bf16 is faster, and rounds scores.", MODELS)
    no_bm25: bool = setting(False, "Leave BM25 out.", MODELS)
    output_dir: str | None = setting(None, "Folder for the predictions and the page.", MODELS, old_name="output")
    cache_dir: str | None = cache_dir(CONTAMINATION)
    cache_gb: float = cache_gb(CONTAMINATION)
    json: bool = setting(False, "Print the figures as a line of JSON too, last.")


CACHE = ("cache_dir", "cache_gb")
# What is done, by the flag that asks for it: the flags that go with it, of which the first must be given.
MODES = {
    "run": ("qrels", "per_question", "metrics"),
    "contamination": ("data", "columns", "split", "eval_filter", "max_length", "precision", "model", *CACHE),
    "model": ("data", "columns", "split", "eval_filter", "max_length", "precision", "no_bm25", "metrics", "output_dir"),
}


def check(config: EvaluateConfig) -> str:
    """The mode of these flags. Raises KinspanError for flags that do not go together."""
    given = [setting.name for setting in fields(config) if getattr(config, setting.name) != default_of(setting)]
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
        names = getattr(config, flag)
        for name in names:
            if names.count(name) > 1:
                raise KinspanError(f"--{flag} {name} is given twice")
    return mode
