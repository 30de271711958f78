"""Which questions of a data set are used, and how many of them its splits share."""

import logging
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from data_pipeline.core.errors import KinspanError

from .answers import AnswerSet, fold_text

log = logging.getLogger(__name__)

RAW, NO_ALL_NEGATIVE, CLEAN = FILTERS = ("raw", "no-all-negative", "clean")


def filter_questions(data: AnswerSet, mode: str) -> AnswerSet:
    """Returns the questions that the filter ``mode`` keeps (Garg et al., 2020, "TandA", table 2)."""
    keep = find_kept(data, mode)
    if not keep.any():
        raise KinspanError(f"{data.name} {data.split}: the filter {mode} leaves none of {data.num_questions} questions")
    if keep.all():
        return data
    left_out, size = int((~keep).sum()), data.num_questions
    log.info("%s %s: %s of %s questions are left out (%s)", data.name, data.split, left_out, size, mode)
    return data.take(keep)


def find_kept(data: AnswerSet, mode: str) -> np.ndarray:
    """Returns which questions a filter keeps, ``[Q]`` bool: all; those with a right candidate; or with both kinds."""
    positives = data.positives
    if mode == RAW:
        return np.ones(data.num_questions, dtype=bool)
    return (positives > 0) & ((positives < np.diff(data.starts)) | (mode == NO_ALL_NEGATIVE))


def check_overlaps(splits: Sequence[AnswerSet]) -> None:
    """Logs how many questions and pairs each two splits share, by folded texts; refuses a split within another."""
    folded = [list(map(fold_text, data.questions)) for data in splits]  # two ids may have one text
    for (first, first_texts), (second, second_texts) in combinations(zip(splits, folded, strict=True), 2):
        shared = set(first_texts) & set(second_texts)
        if not shared:
            continue
        pairs = _read_pairs(first, first_texts, shared), _read_pairs(second, second_texts, shared)
        overlap = (
            f"{first.name} {first.split} and {second.name} {second.split} share {len(shared):,} of "
            f"{first.num_questions:,} and {second.num_questions:,} questions, and {len(pairs[0] & pairs[1]):,} of "
            f"{first.num_pairs:,} and {second.num_pairs:,} question-candidate pairs"
        )
        is_in_second = shared == set(first_texts) and pairs[0] <= pairs[1]
        if is_in_second or (shared == set(second_texts) and pairs[1] <= pairs[0]):
            raise KinspanError(f"{overlap}: one is a part of the other")
        log.info("%s", overlap)


def _read_pairs(data: AnswerSet, questions: list[str], shared: set[str]) -> set[tuple[str, str]]:
    """Returns the folded pairs of the shared questions."""
    pairs = zip(questions, data.question_slices(), strict=True)
    rows_of = [(question, rows) for question, rows in pairs if question in shared]
    return {(question, fold_text(text)) for question, rows in rows_of for text in data.answers[rows].to_pylist()}
