"""The labelled questions of an adaptation: split in three, drawn where there are many, and written as ``files=``."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import write_atomically
from finetune.data.answers import AnswerSet, fold_text
from finetune.data.dataset import MissingSplit
from finetune.data.files import NAME as FILES
from finetune.data.filters import CLEAN, NO_ALL_NEGATIVE, describe_left_out, filter_questions, find_kept
from finetune.data.overlap import find_overlaps
from finetune.data.registry import expect_data, load_split, parse_columns
from finetune.data.tables import FORMATS, find_suffix
from finetune.training.groups import make_generator

TRAIN, DEV, TEST = "train", "dev", "test"
MOST_QUESTIONS = {TRAIN: 2000, DEV: 150, TEST: 500}
MOST_PAIRS = {TRAIN: 40_000, DEV: 1200, TEST: 4000}  # so that a first look takes minutes on a processor
FEWEST = 5  # questions to choose by, or to measure on
FEW = 50  # below these a figure is rough
TEST_PART, DEV_PART = 0.4, 0.25  # of the questions that are not split yet, those that become the test and the dev set
FORM = (
    "give a file, or a folder with train.jsonl, dev.jsonl and test.jsonl, of a line for each candidate of a question, "
    'such as {"question": "Who wrote Faust?", "answer": "Goethe did.", "label": 1}'
)
DRAWN = "{split}: {count:,} of {whole:,} questions are used, drawn at random, to save time"
THINNED = (
    "{split}: {count:,} of {whole:,} candidates are used, to save time: up to {most} of each question, its right ones "
    "and some wrong ones drawn at random"
)
FEW_NOTE = (
    f"fewer than {FEW} dev or test questions: a difference between two rankers may be chance, as its interval will show"
)
DRAW_KEY = 2**37  # of the random numbers that draw questions and wrong candidates


@dataclass(frozen=True)
class Questions:
    """The three splits; train and dev are the data set ``spec`` on the disk, and test is kept apart from training.

    notes: what was drawn or left out, a line each
    """

    spec: str
    train: AnswerSet
    dev: AnswerSet
    test: AnswerSet
    notes: list[str]

    @property
    def splits(self) -> tuple[AnswerSet, AnswerSet, AnswerSet]:
        return self.train, self.dev, self.test

    def write(self, folder: Path) -> None:
        """Writes the splits into the folder that they were settled for."""
        for data in self.splits:
            _write_split(folder / (TEST if data.split == TEST else "questions") / f"{data.split}.jsonl", data)

    def describe(self) -> list[str]:
        """What is used, and how it was drawn, in lines."""
        counts = (f"{one.num_questions:,} {one.split} ({one.num_pairs:,} candidates)" for one in self.splits)
        few = [FEW_NOTE] if min(self.dev.num_questions, self.test.num_questions) < FEW else []
        return [f"questions: {', '.join(counts)}", *(f"  {note}" for note in [*self.notes, *few])]

    def list_measured(self) -> list[str]:
        """The distinct right answers to dev and test questions."""
        right = (split.answers.filter(pa.array(split.labels == 1)).to_pylist() for split in (self.dev, self.test))
        return list(dict.fromkeys(text for texts in right for text in texts))

    @property
    def texts(self) -> list[str]:
        """The distinct candidates."""
        every = (split.answers.to_pylist() for split in self.splits)
        return list(dict.fromkeys(text for texts in every for text in texts))


def expect_questions(given: str) -> None:
    """Raises KinspanError where there are none. The command calls it before it imports torch, which takes seconds."""
    spec = _make_spec(given)
    if spec.startswith(f"{FILES}=") and not Path(spec.partition("=")[2]).exists():
        raise KinspanError(f"--questions {given}: there is no such file or folder; {FORM}")
    expect_data(spec)


def _make_spec(given: str) -> str:
    return given if "=" in given else f"{FILES}={given}"


def load_questions(given: str, columns: str | None, folder: Path) -> Questions:
    """Reads the labelled questions, and decides what is used of them, to be written into ``folder``.

    given: a data set such as wikiqa=FOLDER, or the folder or file of files=

    A test or dev set that is missing is taken from the rest by a hash of the questions' texts, so that it is the same
    one every time. Raises KinspanError where there are too few questions, and where one split is a part of another.
    """
    splits, notes, made = _read_splits(given, columns)
    _carve(splits, TEST, TEST_PART, made)
    _carve(splits, DEV, DEV_PART, made)
    notes += made
    for overlap in find_overlaps([splits[split] for split in (TRAIN, DEV, TEST)]):
        if overlap.whole:
            raise KinspanError(
                f"--questions {given}: {overlap.describe()}: one is a part of the other, so no verdict would mean "
                "anything; give other questions, or leave a split out, and it is made of the rest"
            )
        notes.append(overlap.describe())
    kept = {}
    for split, data in splits.items():
        rule, least = (NO_ALL_NEGATIVE, 1) if split == TRAIN else (CLEAN, FEWEST)
        if (count := int(find_kept(data, rule).sum())) < least:
            raise KinspanError(
                f"--questions {given}: {count} {split} questions with right and wrong candidates are too few: label "
                f"{FEWEST} or more for each of train, dev and test, better fifty{''.join(f'; {note}' for note in made)}"
            )
        notes += (note.removeprefix(f"{data.name} ") for note in describe_left_out(data, rule))
        kept[split] = _draw(filter_questions(data, rule), split, notes)
    return Questions(f"files={folder / 'questions'}", kept[TRAIN], kept[DEV], kept[TEST], notes)


def name_questions(given: str) -> str:
    """What a card calls the questions: the public data set, or the file or folder that they were given as."""
    name, _, place = _make_spec(given).partition("=")
    return name if name != FILES else Path(place).resolve().name


def _read_splits(given: str, columns: str | None) -> tuple[dict[str, AnswerSet], list[str], list[str]]:
    """The splits that are there, what is odd in them, and what stands in for the training questions where they are
    missing: the dev questions, or else the test questions."""
    found: dict[str, AnswerSet] = {}
    notes: list[str] = []
    made: list[str] = []
    missing, spec = "", _make_spec(given)
    name, _, path = spec.partition("=")
    place = Path(path)
    for split in (TEST,) if place.is_file() else (TRAIN, DEV, TEST):  # a single file is the test set of files=
        try:
            found[split], said = load_split(spec, split, parse_columns(columns))
        except MissingSplit as error:
            missing = str(error)
            continue
        notes += (note.removeprefix(f"{name} ") for note in said)
    if not found:
        raise KinspanError(
            f"--questions {given}: no train, dev or test split in it; {FORM if name == FILES else missing}"
        )
    if name == FILES and place.is_dir():
        tables = sorted(path.name for path in place.iterdir() if find_suffix(path) in FORMATS)
        if ignored := [file for file in tables if file.partition(".")[0] not in (TRAIN, DEV, TEST)]:
            notes.append(f"not read, as no split has such a name: {', '.join(ignored)}")
    if TRAIN not in found:
        first = next(iter(found))
        found[TRAIN] = replace(found.pop(first), split=TRAIN)
        made += [] if place.is_file() else [f"there is no train split: the {first} questions take its place"]
    return found, notes, made


def _carve(splits: dict[str, AnswerSet], name: str, part: float, made: list[str]) -> None:
    """Takes a split that is missing from the training questions."""
    if name in splits:
        return
    train = splits[TRAIN]
    hashes = (xxh3_64_intdigest(f"{name} {fold_text(text)}".encode("utf-8", "replace")) for text in train.questions)
    taken = np.fromiter(hashes, np.uint64, train.num_questions) / 2**64 < part
    splits[name], splits[TRAIN] = replace(train.take(taken), split=name), train.take(~taken)
    made.append(f"there is no {name} split: {int(taken.sum()):,} of {len(taken):,} questions are set apart for it")


def _draw(data: AnswerSet, split: str, notes: list[str]) -> AnswerSet:
    """At most MOST_QUESTIONS questions, each with its right candidates and as many wrong ones as MOST_PAIRS leave."""
    drawn = data
    if data.num_questions > MOST_QUESTIONS[split]:
        random = make_generator(1, DRAW_KEY)
        drawn = data.take(np.sort(random.permutation(data.num_questions)[: MOST_QUESTIONS[split]]))
        notes.append(DRAWN.format(split=split, count=drawn.num_questions, whole=data.num_questions))
    kept = thin(drawn, MOST_PAIRS[split])
    if kept.num_pairs < drawn.num_pairs:
        most = int(np.diff(kept.starts).max())
        notes.append(THINNED.format(split=split, count=kept.num_pairs, whole=drawn.num_pairs, most=most))
    return kept


def thin(data: AnswerSet, most_pairs: int) -> AnswerSet:
    """The same questions with all their right candidates, and with as many wrong ones as ``most_pairs`` leave, at least
    one where there is one: without it, any ranker has an average precision of 1."""
    if data.num_pairs <= most_pairs:
        return data
    most = max(1, most_pairs // data.num_questions)
    shuffled = make_generator(2, DRAW_KEY).permutation(data.num_pairs)
    order = np.lexsort((shuffled, -data.labels, data.question_of))  # right ones first
    place = np.empty(data.num_pairs, dtype=np.int64)
    place[order] = np.arange(data.num_pairs) - data.starts[data.question_of[order]]
    return data.keep((data.labels > 0) | (place < np.maximum(most, data.positives + 1)[data.question_of]))


def _write_split(path: Path, data: AnswerSet) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = (data.question_of.tolist(), data.answer_ids.to_pylist(), data.answers.to_pylist(), data.labels.tolist())
    rows = (
        {
            "question_id": data.question_ids[question],
            "question": data.questions[question],
            "answer_id": answer_id,
            "answer": answer,
            "label": label,
        }
        for question, answer_id, answer, label in zip(*columns, strict=True)
    )
    write_atomically(path, (json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
