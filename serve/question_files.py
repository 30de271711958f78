"""Questions with ids in files, for runs that TREC tools measure."""

import logging
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from finetune.data.tables import FORMATS, Table, find_suffix, lacks_names, read_nameless_tsv, read_table
from finetune.evaluation.trec import QRELS, QUERIES, find_beir_file, is_trec_id, read_beir_qrels

from .answers import BEIR_ID, take_text
from .questions import MAX_QUESTION, clean_question

logger = logging.getLogger(__name__)

IDS, TEXTS = ("id", BEIR_ID, "question_id", "query_id", "qid"), ("question", "query", "text")


def read_questions(source: str) -> dict[str, str]:
    """Returns the questions by id, in the order of the file, as they are searched.

    source: a table (.tsv, .csv, .jsonl, .parquet) with columns of IDS and TEXTS; a .tsv file of ids and texts without
            column names; or a folder in BEIR's form

    Raises KinspanError, naming the line, for an id that a TREC file cannot hold or that stands for two questions, and
    for a question without text.
    """
    place = Path(source)
    path = find_beir_file(place, QUERIES) or place
    questions: dict[str, str] = {}
    table, of_id, of_text = _open(path)
    cut = 0
    for number, record in table.records([of_id, of_text]):
        where = f"{table.place} {number}"
        name, text = (take_text(record.get(column), column, where) for column in (of_id, of_text))
        if not is_trec_id(name):
            raise KinspanError(f"{where}: the id {name!r} is empty or has white space, which a TREC file cannot hold")
        try:
            text, cut = clean_question(text), cut + (len(text) > MAX_QUESTION)
        except KinspanError as error:
            raise KinspanError(f"{where}: {error}") from error
        if questions.setdefault(name, text) != text:
            raise KinspanError(f"{where}: the id {name!r} stands for another question before: give it another id")
    if not questions:
        raise KinspanError(f"{path}: no question in it")
    if cut:
        logger.info(f"{path}: {cut:,} questions have more than {MAX_QUESTION:,} characters, and are cut there")
    return questions


def keep_judged(folder: Path, questions: dict[str, str]) -> dict[str, str]:
    """Returns the questions that qrels/test.tsv of a folder in BEIR's form judges; all where it has none."""
    path = find_beir_file(folder, QRELS)
    if not path:
        logger.info(f"{folder} has no {QRELS}: all {len(questions):,} questions of {QUERIES} are asked")
        return questions
    judged = read_beir_qrels(path)
    if missing := [name for name in judged if name not in questions]:
        raise KinspanError(f"{path}: question {missing[0]} is not in {QUERIES} ({len(missing):,} such)")
    logger.info(f"{folder}: {len(judged):,} of {len(questions):,} questions, those of {path.name}")
    return {name: questions[name] for name in judged}


def _open(path: Path) -> tuple[Table, str, str]:
    """The table, and what it calls ids and texts."""
    if not path.is_file() or find_suffix(path) not in FORMATS:
        reason = "not a known format" if path.is_file() else "there is no such file"
        reason = f"no {QUERIES} in this folder" if path.is_dir() else reason
        raise KinspanError(f"{path}: {reason}; give a file ({', '.join(FORMATS)}) or a folder in BEIR's form")
    table = read_table(path)
    if lacks_names(path, table, (*IDS, *TEXTS)):
        table = read_nameless_tsv(path, ["id", "text"])
    found = [next((name for name in names if name in table.fields), "") for names in (IDS, TEXTS)]
    for name, names in zip(found, (IDS, TEXTS), strict=True):
        if table.fields and not name:
            raise KinspanError(f"{path}: no column {' or '.join(names)}; there are {', '.join(table.fields)}")
    return table, found[0], found[1]
