"""Encodes answers into an index that kinspan search searches, adds to it, and removes from it."""

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
LOADING = "loading PyTorch and %s"  # before the imports, which take seconds

DESCRIPTION = """Encodes answers once, by a bi-encoder, into a folder that kinspan search opens in a moment.

Answers: documents=PLACE for the paragraphs of documents in any form that kinspan prepare --input takes, and for all
answers of a forum; a table (.jsonl, .tsv, .csv, .parquet) with a column text (or answer), and optionally id, question,
title and url; forum=DUMP for the accepted answers of a StackExchange dump or of forum=questions:FILE.jsonl, and
with --all_answers for every answer; the folder of a corpus of questions, likewise; a data set such as
insuranceqa=FOLDER or files=FOLDER, whose candidates are the answers; a folder in BEIR's form, whose corpus.jsonl has
the answers; or a .tsv file of ids and texts without column names. Only the texts are searched: an answer's question,
title and id are shown with it.

The same command again continues an index that was cut short. --add and --remove change one, without encoding anything
twice: an answer whose id is there replaces the older one. Whenever the process is killed, the index is as it was before
or as it was to be. With --output_dir alone, the command says what an index holds."""

EPILOG = """examples:
  kinspan index --answers solved.jsonl --output_dir index
  kinspan index --answers documents=docs/ --output_dir index
  kinspan index --model path/to/bi-encoder --answers insuranceqa=InsuranceQA --output_dir index
  kinspan index --output_dir index --add new.jsonl
  kinspan index --output_dir index --remove 17 42"""


@dataclass
class IndexConfig:
    """Flags of this entry."""

    output_dir: str = setting(REQUIRED)
    """Folder of the index."""
    answers: str | None = setting(None)
    """The answers of a new index, see above."""
    model: str | None = setting(None, needs="answers|add", is_model=True)
    """The bi-encoder: a folder or a hub name of sentence-transformers, or an encoder without a head, whose mean over
    the tokens is taken. Without it: all-MiniLM-L6-v2, which is installed with this package, or for --add that of the
    index."""
    add: str | None = setting(None)
    """Answers to add to an index that is there, in any form that --answers takes."""
    remove: list[str] = setting([])
    """Ids of answers to remove; FILE.txt stands for the ids in it, one in a line."""
    all_answers: bool = setting(False, needs="answers|add")
    """Of a forum, index the answers that were not accepted too. Other sources: all their answers, always."""
    columns: str | None = setting(None, needs="answers|add")
    """How the table calls its columns, as text=passage,id=number."""
    max_length: int | None = setting(None, ABOVE_0, needs="answers|add")
    """Most tokens of an answer, which is cut there. Without it: the model's own."""
    precision: Literal["fp32", "bf16"] = setting("fp32")
    """Of the encoder. bf16 is faster, and rounds; vectors are kept in float16."""
    approximate: bool = setting(False)
    """Also build an approximate index, which searches use unless told otherwise. Worth it from some hundred thousand
    answers; needs the extra serve."""


def main() -> str:
    config = parse(IndexConfig, DESCRIPTION, EPILOG)
    folder = Path(config.output_dir)
    if config.answers and (config.add or config.remove):
        raise KinspanError("--answers builds a new index: give --add and --remove in commands of their own")
    if config.answers:
        expect_index_or_nothing(folder)  # before the work
        manifest = _build(config, folder, _read(config.answers, config))
    else:
        manifest = read_manifest(folder)
        if config.precision != "fp32" and config.precision != manifest.settings["precision"]:
            raise KinspanError(f"--precision {config.precision}: the index was built in another")
        if config.approximate and not manifest.settings["approximate"]:
            raise KinspanError("--approximate: the index was built without; build a new one with --answers")
    ids = _list_ids(config.remove)
    if config.add:
        from serve.building import add_answers, find_removable
        from serve.index import Index

        find_removable(Index(folder), ids)  # a wrong id is refused before the work
        answers = _read(config.add, config)
        manifest = add_answers(folder, _load_embedder(config, folder, manifest), answers)
        added = {answer.id for answer in answers}
        ids = [name for name in ids if name not in added]  # these were replaced
    if ids:  # last, so that the same command goes on if the addition is interrupted
        from serve.building import remove_answers

        manifest = remove_answers(folder, ids)
    model, how = manifest.model, "exact and approximate" if manifest.settings["approximate"] else "exact"
    return (
        f"{folder}: {manifest.rows:,} answers, {manifest.bytes / 1e6:,.1f} MB; vectors of {model['dimension']} "
        f"numbers by {model['name']}, texts cut at {manifest.settings['max_length']} tokens; {how} search"
    )


def _read(source: str, config: IndexConfig) -> list[Answer]:
    name, _, place = source.partition("=")
    if name in (DOCUMENTS, FORUM):
        refuse_own_output([place], Path(config.output_dir))
    answers = read_answers(source, parse_columns(config.columns) or {}, config.all_answers)
    log.info("%s: %d answers", source, len(answers))
    return answers


def _build(config: IndexConfig, folder: Path, answers: list[Answer]) -> Manifest:
    model = config.model or default_model()
    log.info(LOADING, name_installed(model))
    from finetune.ranking.embedder import Embedder
    from serve.building import build_index
    from serve.nearest import expect_usearch

    if config.approximate:
        expect_usearch()  # before the work
    return build_index(folder, Embedder(model, config.max_length), answers, config.precision, config.approximate)


def _load_embedder(config: IndexConfig, folder: Path, manifest: Manifest) -> "Embedder":
    """Loads the bi-encoder of an index. Raises KinspanError if ``--model`` is another one."""
    log.info(LOADING, name_installed(config.model or manifest.model["name"]))
    from finetune.ranking.embedder import Embedder
    from serve.building import check_model, find_model

    model = config.model or find_model(manifest, folder)
    check_model(manifest, model, folder)
    return Embedder(model, config.max_length or manifest.settings["max_length"])


def _list_ids(given: list[str]) -> list[str]:
    ids: list[str] = []
    for name in given:
        is_list = name.endswith(".txt") and Path(name).is_file()
        ids += filter(None, (line.strip() for _, line in read_lines(Path(name)))) if is_list else [name]
    return ids
