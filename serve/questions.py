"""Defines the flags of a search, and reads questions; torch is not imported, which takes seconds."""

import logging
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_pipeline.core.errors import KinspanError, prefix_errors
from data_pipeline.core.settings import ABOVE_0, NOT_BELOW_0, REQUIRED, setting
from data_pipeline.matching import fold_characters
from data_pipeline.prepare.document import QUESTION_IDS
from finetune.data.tables import read_texts
from finetune.evaluation.trec import QRELS, QUERIES, find_beir_file, is_trec_id, read_beir_qrels

logger = logging.getLogger(__name__)

BI_ENCODER, BM25, FUSION, CROSS_ENCODER, BLEND = "bi_encoder", "bm25", "fusion", "cross_encoder", "blend"
CANDIDATES = 100  # number of candidates from the first stage
RERANKED = 30  # number of candidates that the cross-encoder re-ranks
MAX_QUESTION = 4000  # characters; longer questions are truncated
BEIR_ID = "_id"
TEXTS = ("question", "query", "text")


@dataclass
class SearcherFlags:
    """Flags of kinspan search and kinspan serve."""

    index: str = setting(REQUIRED)
    """Folder of an index, written by kinspan index."""
    cross_encoder: str | None = setting(None, is_model=True)
    """The re-ranker: a release, a ranker, or any other model that kinspan rank takes."""
    rerank_k: int = setting(RERANKED, NOT_BELOW_0, needs="cross_encoder")
    """Number of candidates that the cross-encoder re-ranks."""
    blend: bool = setting(False, needs="cross_encoder")
    """Rank the re-ranked candidates by the sum of their reciprocal ranks in the first stage and by the cross-encoder:
    better if it was trained on little data."""
    first_stage: Literal["bi_encoder", "bm25", "fusion"] = setting("bi_encoder")
    """How candidates are found; fusion sums the reciprocal ranks of the other two."""
    model: str | None = setting(None, is_model=True)
    """The bi-encoder of the index, if its folder has moved."""
    max_length: int | None = setting(None, ABOVE_0, needs="cross_encoder")
    """Maximum number of tokens of a question with an answer, for the cross-encoder. Without it: its own."""
    precision: Literal["fp32", "bf16"] = setting("fp32", needs="cross_encoder")
    """Precision of the cross-encoder; bf16 is faster if the processor supports it, and its scores are less exact."""


def clean_question(question: str) -> str:
    """Returns the question on one line, without characters that are not seen, truncated to MAX_QUESTION characters."""
    text = fold_characters(question[: 2 * MAX_QUESTION]).encode("utf-8", "replace").decode()
    text = " ".join("".join(" " if unicodedata.category(c) == "Cc" else c for c in text).split())[:MAX_QUESTION]
    if not text:
        raise KinspanError("the question is empty")
    return text


def read_questions(source: str) -> dict[str, str]:
    """Returns the cleaned questions by id, in the order of the file.

    source: a table with columns of QUESTION_IDS and TEXTS; a .tsv file of ids and texts; or a folder in BEIR's form
    """
    path = find_beir_file(Path(source), QUERIES) or Path(source)
    if path.is_dir():
        raise KinspanError(f"{path}: this folder has no {QUERIES}")
    table = read_texts(path, (*QUESTION_IDS, *TEXTS))
    known = QUESTION_IDS, TEXTS
    id_column, text_column = (next((name for name in names if name in table.fields), "") for names in known)
    if table.fields and not (id_column and text_column):
        raise KinspanError(f"{path}: columns {', '.join(table.fields)}: an id or a question is missing")
    questions: dict[str, str] = {}
    for number, record in table.records([id_column, text_column]):
        place = f"{table.place} {number}"
        name, text = (take_text(record.get(column), column, place) for column in (id_column, text_column))
        if not is_trec_id(name):
            raise KinspanError(f"{place}: the id {name!r} is empty or has white space, which a TREC file cannot hold")
        if len(text) > MAX_QUESTION:
            logger.info(f"{place}: the question is truncated to {MAX_QUESTION:,} characters")
        with prefix_errors(place):
            text = clean_question(text)
        if questions.setdefault(name, text) != text:
            raise KinspanError(f"{place}: an earlier question has the id {name!r} too")
    if not questions:
        raise KinspanError(f"{path} has no question")
    return questions


def keep_judged(folder: Path, questions: dict[str, str]) -> dict[str, str]:
    """Returns the questions with judgements in qrels/test.tsv of a folder in BEIR's form; all if that is missing."""
    path = find_beir_file(folder, QRELS)
    if not path:
        logger.info(f"{folder} has no {QRELS}: all {len(questions):,} questions of {QUERIES} are asked")
        return questions
    judged = read_beir_qrels(path)
    if missing := [name for name in judged if name not in questions]:
        raise KinspanError(f"{path}: question {missing[0]} is not in {QUERIES}")
    return {name: questions[name] for name in judged}


def take_text(value: object, name: str, place: str) -> str:
    """Returns a field as text, also if it is an integer, as ids often are. Raises KinspanError for other types."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise KinspanError(f"{place}: {name!r} is not text: {str(value)[:60]!r}")
    return str(value).strip()
