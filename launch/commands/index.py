"""Makes an index of documents or answers for kinspan search, and brings it up to date."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_pipeline.core.command_line import parse
from data_pipeline.core.default_model import default_model, name_installed
from data_pipeline.core.settings import ABOVE_0, REQUIRED, setting
from data_pipeline.prepare.readers import refuse_own_output
from finetune.data.registry import parse_columns
from finetune.evaluation.bm25 import BM25, name_words
from finetune.evaluation.config import LANGUAGE_HELP
from serve.answers import FORUM, read_answers
from serve.folder import expect_index_or_nothing, read_manifest

log = logging.getLogger(__name__)

DESCRIPTION = """Encodes documents or answers by a bi-encoder into a folder that kinspan search opens in a moment.

--documents takes any form that kinspan prepare --input takes: each paragraph is indexed, and of a forum each answer.
--answers takes a table (.jsonl, .tsv, .csv, .parquet) with a column text (or answer), and optionally id, question,
title and url; forum=DUMP or forum=questions:FILE.jsonl for accepted answers; the candidates of a data set, such as
insuranceqa=FOLDER; a folder in BEIR's form; or a .tsv file of ids and texts.

Run the same command again after the sources have changed, or to resume an interrupted one: the index holds what its
sources hold, and only new texts are encoded. With --output_dir alone, the command shows the size and settings of an
index."""

EPILOG = """examples:
  kinspan index --documents docs/ manual.pdf --output_dir index
  kinspan index --answers solved.jsonl new.jsonl --output_dir index
  kinspan index --model path/to/bi-encoder --answers insuranceqa=InsuranceQA --output_dir index"""


@dataclass
class IndexConfig:
    output_dir: str = setting(REQUIRED)
    """Folder of the index."""
    documents: list[str] = setting([])
    """The documents to index."""
    answers: list[str] = setting([])
    """The answers to index, in the forms above."""
    model: str | None = setting(None, needs="documents|answers", is_model=True)
    """The bi-encoder: a folder or a hub name of sentence-transformers, or an encoder without a head, whose token
    vectors are averaged. Without it: all-MiniLM-L6-v2, which is installed."""
    all_answers: bool = setting(False, needs="answers")
    """For forum=: index the answers that were not accepted too."""
    columns: str | None = setting(None, needs="answers")
    """Names of the table's columns, as text=passage,id=number."""
    max_length: int | None = setting(None, ABOVE_0, needs="documents|answers")
    """Texts are truncated to this many tokens. Without it: the model's maximum."""
    language: str | None = setting(None, needs="documents|answers", help=LANGUAGE_HELP)
    precision: Literal["fp32", "bf16"] = setting("fp32", needs="documents|answers")
    """Precision of the encoder; bf16 is faster and less exact. Vectors are stored as float16."""


def main() -> str:
    config = parse(IndexConfig, DESCRIPTION, EPILOG)
    folder = Path(config.output_dir)
    if config.documents or config.answers:
        expect_index_or_nothing(folder)  # before answers are read
        dumps = [source.removeprefix(f"{FORUM}=") for source in config.answers if source.startswith(f"{FORUM}=")]
        refuse_own_output([*config.documents, *dumps], folder)
        columns = parse_columns(config.columns)
        answers = read_answers(config.answers, config.documents, columns, config.all_answers)
        model = config.model or default_model()
        log.info("%d answers; loading PyTorch and %s", len(answers), name_installed(model))
        from finetune.ranking.embedder import Embedder
        from serve.building import build_index

        embedder = Embedder(model, config.max_length)
        manifest = build_index(folder, embedder, answers, config.precision, config.language)
    else:
        manifest = read_manifest(folder)
    size = sum(size for size, _ in manifest.files.values()) / 1e6
    vectors = f"vectors of {manifest.model['dimension']} numbers by {manifest.model['name']}"
    limit, language = manifest.settings["max_length"], manifest.settings["language"]
    searched = f"{vectors}, texts cut at {limit} tokens; {BM25} by {name_words(language)}"
    return f"{folder}: {manifest.rows:,} answers, {size:,.1f} MB; {searched}"
