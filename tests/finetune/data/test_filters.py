"""Splits that share questions or candidates."""

import re
from dataclasses import replace

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.answers import fold_text
from finetune.data.collect import SourceRow, collect_answers
from finetune.data.filters import check_overlaps


def make_split(split, *pairs):
    rows = [SourceRow(k, None, question, None, answer, k % 2) for k, (question, answer) in enumerate(pairs)]
    return collect_answers("files", split, "f line", iter(rows))


TRAIN = make_split("train", ("Who?", "she"), ("Who?", "he"), ("When?", "now"))
DEV = make_split("dev", ("who ?", "she"), ("where?", "here"))
TEST = make_split("test", (" WHO?", "She"), ("who?", "they"), ("why?", "so"))


def test_shared_questions_and_pairs_are_counted_by_text(caplog):
    caplog.set_level("INFO")
    check_overlaps([TRAIN, DEV, TEST])
    (record,) = caplog.records
    assert re.findall(r"\d+", record.getMessage()) == ["1", "2", "3", "1", "3", "3"]  # questions, then pairs


def test_the_forms_of_unicode_are_one_text():
    assert fold_text("Cafe\u0301 ") == fold_text("CAF\u00c9")


def test_a_split_that_is_a_part_of_another_is_refused_unless_allowed():
    part = replace(TRAIN.take([1]), split="test")
    with pytest.raises(KinspanError, match="test share"):
        check_overlaps([TRAIN, DEV, part])


def test_other_candidates_of_the_same_questions_are_no_part():
    check_overlaps([TRAIN, make_split("test", ("Who?", "nobody"), ("When?", "then"))])
