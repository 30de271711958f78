"""The labelled questions of an adaptation: split in three, subsampled if there are many, and written to files."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import write_atomically
from finetune.data.answers import AnswerSet
from finetune.data.dataset import MissingSplit
from finetune.data.files import DEV_SHARE, TEST_SHARE, split_off
from finetune.data.files import NAME as FILES
from finetune.data.filters import CLEAN, NO_ALL_NEGATIVE, filter_questions, find_kept, find_overlaps
from finetune.data.registry import load_split, parse_columns
from finetune.training.groups import make_generator

log = logging.getLogger(__name__)

TRAIN, DEV, TEST = "train", "dev", "test"
MAX_QUESTIONS = {TRAIN: 2000, DEV: 150, TEST: 500}
MAX_PAIRS = {TRAIN: 40_000, DEV: 1200, TEST: 4000}  # so that a first look takes minutes on a processor
MIN_QUESTIONS = 5  # in dev, to choose a ranker, and in test, to measure it
FEW_QUESTIONS = 50  # with fewer, a figure is rough
DRAW_KEY = 2**37  # key of the random numbers that draw questions and wrong candidates


@dataclass(frozen=True)
class Questions:
    """The three splits. Train and dev are written as the data set ``spec``, and test to another folder."""

    spec: str
    train: AnswerSet
    dev: AnswerSet
    test: AnswerSet
    notes: list[str]

    @property
    def splits(self) -> tuple[AnswerSet, AnswerSet, AnswerSet]:
        return self.train, self.dev, self.test

    def write(self, folder: Path) -> None:
        """Writes the splits into the folder that they were loaded for."""
        for data in self.splits:
            path = locate_test(folder) if data.split == TEST else folder / "questions" / f"{data.split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, list_lines(data))

    def list_measured(self) -> list[str]:
        """Returns the distinct right answers to dev and test questions."""
        right = (split.answers.filter(pa.array(split.labels == 1)).to_pylist() for split in (self.dev, self.test))
        return list(dict.fromkeys(text for texts in right for text in texts))

    @property
    def texts(self) -> list[str]:
        """Returns the distinct candidates."""
        return list(dict.fromkeys(text for split in self.splits for text in split.answers.to_pylist()))


def locate_test(folder: Path) -> Path:
    """Returns the file in which an adaptation in ``folder`` keeps its test questions."""
    return folder / TEST / f"{TEST}.jsonl"


def make_spec(given: str) -> str:
    """Returns ``--questions`` as NAME=PLACE: a plain path becomes ``files=PATH``."""
    return given if "=" in given else f"{FILES}={given}"


def name_questions(given: str) -> str:
    """Returns the name for a card: the public data set, or the given file or folder."""
    name, _, place = make_spec(given).partition("=")
    return name if name != FILES else Path(place).resolve().name


def load_questions(given: str, columns: str | None, folder: Path) -> Questions:
    """Reads the labelled questions and selects which are used; ``folder`` is where they will be written.

    given: a data set such as wikiqa=FOLDER, or the folder or file of files=

    A missing test or dev split is taken from the training questions by a hash of their texts, so that it is always the
    same. Raises KinspanError if there are too few questions, or one split is a part of another.
    """
    splits, notes = _read_splits(given, columns)
    for name, share in ((TEST, TEST_SHARE), (DEV, DEV_SHARE)):
        if name not in splits:
            splits[name], splits[TRAIN] = split_off(splits[TRAIN], name, share)
            notes.append(f"no {name} split: {splits[name].num_questions:,} questions are set apart for it")
    for overlap in find_overlaps([splits[split] for split in (TRAIN, DEV, TEST)]):
        if overlap.whole:
            raise KinspanError(f"--questions {given}: {overlap}: one split is a part of the other")
        notes.append(str(overlap))
    kept = {}
    for split, data in splits.items():
        rule, minimum = (NO_ALL_NEGATIVE, 1) if split == TRAIN else (CLEAN, MIN_QUESTIONS)
        if (count := int(find_kept(data, rule).sum())) < minimum:
            raise KinspanError(
                f"--questions {given}: {count} usable {split} questions are too few: label fifty or more"
            )
        kept[split] = _subsample(filter_questions(data, rule), split, notes)
    if min(kept[DEV].num_questions, kept[TEST].num_questions) < FEW_QUESTIONS:
        notes.append(f"fewer than {FEW_QUESTIONS} dev or test questions: a difference between rankers may be chance")
    return Questions(f"files={folder / 'questions'}", kept[TRAIN], kept[DEV], kept[TEST], notes)


def _read_splits(given: str, columns: str | None) -> tuple[dict[str, AnswerSet], list[str]]:
    """Returns the existing splits, and notes. Dev, or else test, replaces a missing train split."""
    splits: dict[str, AnswerSet] = {}
    notes: list[str] = []
    place = Path(make_spec(given).partition("=")[2])
    for split in (TRAIN, DEV, TEST):
        try:
            splits[split] = load_split(make_spec(given), split, parse_columns(columns))
        except MissingSplit as error:
            log.debug("%s", error)
    if not splits:
        raise KinspanError(f"--questions {given}: it has no train, dev or test split")
    if TRAIN not in splits:
        first = next(iter(splits))
        splits[TRAIN] = replace(splits.pop(first), split=TRAIN)
        notes += [] if place.is_file() else [f"no train split: the {first} questions take its place"]
    return splits, notes


def _subsample(data: AnswerSet, split: str, notes: list[str]) -> AnswerSet:
    """Returns at most MAX_QUESTIONS questions, with as many wrong candidates as MAX_PAIRS allows."""
    drawn = data
    if data.num_questions > MAX_QUESTIONS[split]:
        order = make_generator(1, DRAW_KEY).permutation(data.num_questions)
        drawn = data.take(np.sort(order[: MAX_QUESTIONS[split]]))
    drawn = subsample_negatives(drawn, MAX_PAIRS[split])
    if drawn.num_pairs < data.num_pairs:
        kept = f"{drawn.num_questions:,} of {data.num_questions:,} questions, with {drawn.num_pairs:,} candidates"
        notes.append(f"{split}: to save time {kept} are used, drawn at random")
    return drawn


def subsample_negatives(data: AnswerSet, max_pairs: int) -> AnswerSet:
    """Returns the questions with all right candidates, and about ``max_pairs`` candidates in total.

    A question keeps at least one wrong candidate: without it every ranker has an average precision of 1.
    """
    if data.num_pairs <= max_pairs:
        return data
    per_question = max(1, max_pairs // data.num_questions)
    shuffled = make_generator(2, DRAW_KEY).permutation(data.num_pairs)
    order = np.lexsort((shuffled, -data.labels, data.question_of))  # right ones first
    position = np.empty(data.num_pairs, dtype=np.int64)
    position[order] = np.arange(data.num_pairs) - data.starts[data.question_of[order]]
    return data.keep((data.labels > 0) | (position < np.maximum(per_question, data.positives + 1)[data.question_of]))


def list_lines(data: AnswerSet) -> Iterator[str]:
    """Yields the lines of a split of ``files=``, one for each candidate."""
    columns = (data.question_of.tolist(), data.answer_ids.to_pylist(), data.answers.to_pylist(), data.labels.tolist())
    for question, answer_id, answer, label in zip(*columns, strict=True):
        fields = {"question_id": data.question_ids[question], "question": data.questions[question]}
        row = {**fields, "answer_id": answer_id, "answer": answer, "label": label}
        yield json.dumps(row, ensure_ascii=False) + "\n"
