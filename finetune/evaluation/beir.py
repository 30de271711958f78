"""Folders in the form of BEIR (Thakur et al., 2021): texts, questions and judgements of a retrieval benchmark.

corpus.jsonl:   ``{"_id": ..., "title": ..., "text": ...}``, where the title may be empty or missing
queries.jsonl:  ``{"_id": ..., "text": ...}``, the questions of all splits
qrels/test.tsv: a line of column names, ``query-id corpus-id score``, and judgements, of the questions that are measured
"""

import re
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from finetune.data.dataset import find_files
from finetune.data.tables import read_quoted_tsv

CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels/test.tsv"
COLUMNS = ("query-id", "corpus-id", "score")


def find_beir_file(folder: Path, name: str) -> Path | None:
    """Returns this file of a folder, compressed or not; None where it has none."""
    return next(iter(find_files(folder, [name])), None)


def read_beir_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Returns the relevance by question and candidate, in the order of the file, whose fields may be quoted.

    Raises KinspanError, naming the line, for a score that is not an integer, and for a pair with two scores. Some files
    repeat lines: they count once.
    """
    table = read_quoted_tsv(path)
    if len(table.fields) != len(COLUMNS) or table.fields[-1] != COLUMNS[-1]:
        raise KinspanError(f"{path} line 1: not the column names of BEIR's judgements: {' '.join(COLUMNS)}")
    judged: dict[str, dict[str, int]] = {}
    for number, record in table.records(table.fields):
        question, candidate, given = (record[name] for name in table.fields)
        if not re.fullmatch(r"[+-]?\d{1,9}", given):
            raise KinspanError(f"{table.place} {number}: the score {given!r} is not an integer")
        score = int(given)
        if judged.setdefault(question, {}).setdefault(candidate, score) != score:
            raise KinspanError(f"{table.place} {number}: candidate {candidate} of question {question} has two scores")
    if not judged:
        raise KinspanError(f"{path}: no judgements in it")
    return judged
