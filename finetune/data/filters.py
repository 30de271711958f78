"""The three usual ways to filter the questions of a data set before training or measuring on them."""

import numpy as np

from data_pipeline.core.errors import KinspanError

from .answers import AnswerSet

RAW, NO_ALL_NEGATIVE, CLEAN = FILTERS = ("raw", "no-all-negative", "clean")
LACKING = {NO_ALL_NEGATIVE: "have no right candidate", CLEAN: "lack a right or a wrong candidate"}


def filter_questions(data: AnswerSet, mode: str) -> AnswerSet:
    """Returns the questions that the filter ``mode`` keeps (Garg et al., 2020, "TandA", table 2).

    raw:             every question
    no-all-negative: questions with at least one right candidate
    clean:           questions with at least one right and at least one wrong candidate

    Raises KinspanError where no question is left.
    """
    keep = find_kept(data, mode)
    if not keep.any():
        wanted = "a wrong candidate beside a right one" if data.positives.any() else "a right candidate"
        raise KinspanError(
            f"{data.name} {data.split}: the filter {mode} leaves none of {data.num_questions} questions, as none has "
            f"{wanted}: check the labels"
        )
    return data if keep.all() else data.take(keep)


def describe_left_out(data: AnswerSet, mode: str) -> list[str]:
    """Says in a line how many questions the filter ``mode`` leaves out, where it leaves out any."""
    count = data.num_questions - int(find_kept(data, mode).sum())
    of_all = f"{count:,} of {data.num_questions:,} questions"
    return [f"{data.name} {data.split}: {of_all} {LACKING[mode]}, and are left out"] if count else []


def find_kept(data: AnswerSet, mode: str) -> np.ndarray:
    """Tells which questions the filter ``mode`` keeps, ``[Q]`` bool."""
    positives = data.positives
    keep = np.ones(data.num_questions, dtype=bool)
    if mode != RAW:
        keep &= positives > 0
    if mode == CLEAN:
        keep &= positives < np.diff(data.starts)
    return keep
