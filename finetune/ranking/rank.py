"""Ranks candidates that have no labels."""

import logging
from pathlib import Path

from data_pipeline.core.default_model import name_installed
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import make_folder
from data_pipeline.tokenizers import shorten_name
from finetune.data.collect import collect_answers
from finetune.data.registry import parse_columns
from finetune.data.tables import read_candidates, read_table
from finetune.evaluation.trec import write_ranking

log = logging.getLogger(__name__)


def rank_file(
    model: str, path: Path, output: Path, columns: str | None, max_length: int | None, precision: str
) -> None:
    """Ranks the candidates of a table by a model's scores, and writes ``run.txt`` and ``ranking.jsonl``."""
    if not path.is_file():
        raise KinspanError(f"--data {path}: there is no such file")
    table = read_table(path)
    rows = read_candidates(table, parse_columns(columns) or {}, labelled=False)
    data, notes = collect_answers(path.name, "candidates", table.place, rows)
    make_folder(output)  # before the work, to see whether it can be made
    for note in [*notes, f"{path}: {data.num_questions:,} questions, {data.num_pairs:,} candidates"]:
        log.info(note)
    from .model import score_answers  # torch takes seconds to import

    scores = score_answers(model, data, max_length, precision=precision)
    write_ranking(output, data, scores, shorten_name(name_installed(model)))
