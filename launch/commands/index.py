"""Encodes answers into an index for kinspan search, adds answers to it, and removes some."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from data_pipeline.core.command_line import parse
from data_pipeline.core.default_model import default_model, name_installed
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import ABOVE_0, REQUIRED, setting
from data_pipeline.prepare.readers import refuse_own_output
from finetune.data.registry import parse_columns
from finetune.data.tables import read_lines
from serve.answers import DOCUMENTS, FORUM, Answer, read_answers
from serve.folder import Manifest, expect_index_or_nothing, read_manifest

if TYPE_CHECKING:
    from finetune.ranking.embedder import Embedder

log = logging.getLogger(__name__)

DESCRIPTION = """Encodes answers once, by a bi-encoder, into a folder that kinspan search opens in a moment.

Answers: documents=PLACE for the paragraphs of documents in any form that kinspan prepare --input takes, and for all
answers of a forum; a table (.jsonl, .tsv, .csv, .parquet) with a column text (or answer), and optionally id, question,
title and url; forum=DUMP or forum=questions:FILE.jsonl for accepted answers; the candidates of a data set, such as
insuranceqa=FOLDER; a folder in BEIR's form; or a .tsv file of ids and texts.

Run the same command again to resume an interrupted one. --add and --remove change an index; an added answer replaces
one with the same id. With --output_dir alone, the command shows the size and settings of an index."""

EPILOG = """examples:
  kinspan index --answers documents=docs/ --output_dir index
  kinspan index --answers solved.jsonl --output_dir index
  kinspan index --model path/to/bi-encoder --answers insuranceqa=InsuranceQA --output_dir index
  kinspan index --output_dir index --add new.jsonl
  kinspan index --output_dir index --remove 17 42"""


@dataclass
class IndexConfig:
    output_dir: str = setting(REQUIRED)
    """Folder of the index."""
    answers: str | None = setting(None)
    """The answers to index, in one of the forms above."""
    model: str | None = setting(None, needs="answers|add", is_model=True)
    """The bi-encoder: a folder or a hub name of sentence-transformers, or an encoder without a head, for the mean over
    its tokens. Without it: all-MiniLM-L6-v2, which is installed, or for --add that of the index."""
    add: str | None = setting(None)
    """Answers to add to an existing index, in any form that --answers takes."""
    remove: list[str] = setting([])
    """Ids of answers to remove, or FILE.txt with an id on each line."""
    all_answers: bool = setting(False, needs="answers|add")
    """For forum=: index the answers that were not accepted too."""
    columns: str | None = setting(None, needs="answers|add")
    """Names of the table's columns, as text=passage,id=number."""
    max_length: int | None = setting(None, ABOVE_0, needs="answers|add")
    """Answers are truncated to this many tokens. Without it: the model's maximum."""
    precision: Literal["fp32", "bf16"] = setting("fp32")
    """Precision of the encoder; bf16 is faster and less exact. Vectors are stored as float16."""
    approximate: bool = setting(False)
    """Also build an approximate index, which searches use unless --exact. Worth it from some hundred thousand answers;
    needs the extra serve."""


def main() -> str:
    config = parse(IndexConfig, DESCRIPTION, EPILOG)
    folder = Path(config.output_dir)
    if config.answers and (config.add or config.remove):
        raise KinspanError("--answers builds a new index: give --add and --remove in commands of their own")
    if config.answers:
        expect_index_or_nothing(folder)  # before answers are read
        answers = _read(config.answers, config)
        embedder = _load(config.model or default_model(), config.max_length)
        from serve.building import build_index

        manifest = build_index(folder, embedder, answers, config.precision, config.approximate)
    else:
        manifest = _change(config, folder, read_manifest(folder))
    size = sum(size for size, _ in manifest.files.values()) / 1e6
    vectors = f"vectors of {manifest.model['dimension']} numbers by {manifest.model['name']}"
    cut, how = manifest.settings["max_length"], "approximate" if manifest.settings["approximate"] else "exact"
    return f"{folder}: {manifest.rows:,} answers, {size:,.1f} MB; {vectors}, texts cut at {cut} tokens; {how} search"


def _change(config: IndexConfig, folder: Path, manifest: Manifest) -> Manifest:
    """Adds and removes the answers that the flags name."""
    for name in ("precision", "approximate"):
        if (value := getattr(config, name)) not in ("fp32", False, dict(manifest.settings.items())[name]):
            raise KinspanError(f"--{name} {value}: the index was built without it; build a new one with --answers")
    ids: list[str] = []
    for name in config.remove:
        is_list = name.endswith(".txt") and Path(name).is_file()
        ids += filter(None, (line.strip() for _, line in read_lines(Path(name)))) if is_list else [name]
    if not (config.add or ids):
        return manifest
    from serve.building import add_answers, find_model, find_removable, remove_answers
    from serve.index import Index

    find_removable(Index(folder), ids)  # raises for a wrong id before answers are encoded
    if config.add:
        answers = _read(config.add, config)
        model = find_model(manifest, folder, config.model)
        manifest = add_answers(folder, _load(model, config.max_length or manifest.settings["max_length"]), answers)
        added = {answer.id for answer in answers}
        ids = [name for name in ids if name not in added]  # the added answers have replaced those
    # last, so that the same command resumes an interrupted addition
    return remove_answers(folder, ids) if ids else manifest


def _read(source: str, config: IndexConfig) -> list[Answer]:
    name, _, place = source.partition("=")
    if name in (DOCUMENTS, FORUM):
        refuse_own_output([place], Path(config.output_dir))
    answers = read_answers(source, parse_columns(config.columns) or {}, config.all_answers)
    log.info("%s: %d answers", source, len(answers))
    return answers


def _load(model: str, max_length: int | None) -> "Embedder":
    log.info("loading PyTorch and %s", name_installed(model))
    from finetune.ranking.embedder import Embedder

    return Embedder(model, max_length)
