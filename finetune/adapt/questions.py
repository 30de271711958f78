"""The labelled questions of an adaptation: pooled, checked, thinned if there are many, and divided into folds."""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import write_atomically
from finetune.data.answers import AnswerSet, concatenate
from finetune.data.dataset import MissingSplit
from finetune.data.files import NAME as FILES
from finetune.data.files import has_splits, load_unsplit
from finetune.data.filters import CLEAN, NO_ALL_NEGATIVE, find_kept
from finetune.data.folds import assign_folds, group_questions, pair_similar
from finetune.data.registry import load_split, parse_columns
from finetune.training.groups import make_generator

TRAIN, DEV, TEST = "train", "dev", "test"
TEST_FILE = "test/test.jsonl"  # in an adaptation's folder
SAMPLE, SELQA = "selqa-sample", Path(__file__).with_name("selqa")  # questions that are shipped, and their folder
# Maximum questions and candidates to train on, compare by and test on, so that a first look takes minutes on a CPU
MAX_TRAINED, MAX_COMPARED, MAX_TESTED = (2000, 40_000), (300, 3000), (500, 5000)
MIN_QUESTIONS = 10  # with a right and a wrong candidate; with fewer no comparison could show a gain
FEW_QUESTIONS = 50  # with fewer, a figure is rough
FOLDS, MANY, FOLDS_OF_MANY = 5, 200, 3  # folds, and those of more than MANY compared questions
MIN_DRAWN = 100  # questions that are kept, with fewer candidates each
MAX_SHARED = 0.2  # share of the questions that may also be in the test set, where they are removed
MAX_RIGHT = 0.5  # share of right candidates above which the labels look reversed
DRAW_KEY = 2**37  # key of the random numbers that draw questions and candidates


@dataclass(frozen=True)
class Questions:
    """The labelled questions, of which the train split is written as the data set ``spec``, and test elsewhere.

    train:    all questions that rankers are trained on and compared by
    groups:   ``[Q]`` the group of each: those of one group stay in one fold of a cross-validation
    compared: ``[Q]`` bool, those that rankers are compared by; the others are only trained on
    clear:    ``[N]`` bool, False for wrong candidates that may be right, and so train nothing
    test:     the user's test set, or None
    scored:   the S questions that rankers score: those that compare them, and then some again, with other candidates
    asked:    ``[S]`` the number in train of each of these
    searched: ``[S]`` bool, those whose candidates a search of the documents found
    found:    bool for each candidate of scored, False for right ones that the search missed, which have no rank
    words:    BM25's scores of these candidates by the word counts of the documents, if those are searched
    """

    spec: str
    train: AnswerSet
    groups: np.ndarray
    compared: np.ndarray
    clear: np.ndarray
    test: AnswerSet | None
    scored: AnswerSet
    asked: np.ndarray
    searched: np.ndarray
    found: np.ndarray
    words: np.ndarray
    notes: list[str]

    @property
    def judging(self) -> AnswerSet:
        """Returns the questions that rankers are compared by, with which ``scored`` begins."""
        return self.train.take(self.compared)

    @property
    def judged(self) -> np.ndarray:
        """Returns ``[S]`` bool: the scored questions that rankers are compared by."""
        return np.arange(len(self.asked)) < self.compared.sum()

    def select(self, questions: np.ndarray) -> AnswerSet:
        """Returns what is trained on of these questions, ``[Q]`` bool."""
        return self.train.keep(self.clear & questions[self.train.question_of])

    def sink_missed(self, scores: np.ndarray) -> np.ndarray:
        """Returns the scores of the candidates of ``scored``, with right answers that no search found ranked last."""
        lowest = np.minimum.reduceat(scores, self.scored.starts[:-1])[self.scored.question_of]
        return np.where(self.found, scores, lowest - 1e-3 * max(1e-6, np.ptp(scores)))

    @property
    def num_folds(self) -> int:
        """Returns the number of folds for all questions."""
        return FOLDS_OF_MANY if self.compared.sum() > MANY else FOLDS

    def assign_folds(self, num_folds: int) -> np.ndarray:
        """Returns the fold of each question, ``[Q]``: each has about as many that rankers are compared by."""
        return assign_folds(self.groups, num_folds, np.maximum(self.compared, 1e-3))

    def write(self, folder: Path) -> None:
        """Writes the splits into the folder that they were loaded for."""
        path = folder / "questions" / f"{TRAIN}.jsonl"
        for data, target in ((self.train, path), (self.test, folder / TEST_FILE)):
            if data:
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(target, list_lines(data))

    def list_right(self) -> list[str]:
        """Returns the distinct right answers to the questions that judge rankers, test questions included."""
        splits = filter(None, (self.judging, self.test))
        right = (split.answers.filter(pa.array(split.labels == 1)).to_pylist() for split in splits)
        return list(dict.fromkeys(text for texts in right for text in texts))

    @property
    def texts(self) -> list[str]:
        """Returns the distinct candidates."""
        splits = filter(None, (self.train, self.test))
        return list(dict.fromkeys(text for split in splits for text in split.answers.to_pylist()))


def make_spec(given: str) -> str:
    """Returns ``--questions`` as NAME=PLACE: a plain path becomes ``files=PATH``."""
    given = str(SELQA) if given == SAMPLE else given
    return given if "=" in given else f"{FILES}={given}"


def load_questions(given: str, columns: str | None, folder: Path) -> Questions:
    """Reads the labelled questions of ``--questions``, pools train and dev, and checks and divides them.

    folder: where they will be written
    """
    notes: list[str] = []
    pool, test = _read_pool(given, columns)
    for data in (pool, test):
        if data and (share := data.labels.mean()) > MAX_RIGHT:
            right = f"{int(data.labels.sum()):,} of {data.num_pairs:,} {data.split} candidates"
            raise KinspanError(f"--questions {given}: {right} are right ({share:.0%}): are the labels reversed?")
    if test:
        pool = _remove_tested(given, pool, test, notes)
        test = thin(test.take(_find_usable(given, test)), MAX_TESTED, notes)
    if num_wrong := int((pool.positives == 0).sum()):
        notes.append(f"{num_wrong:,} of {pool.num_questions:,} questions have no right candidate, and are left out")
    pool = pool.take(find_kept(pool, NO_ALL_NEGATIVE))
    train = thin(pool, MAX_TRAINED, notes)
    return divide(given, train, np.ones(train.num_pairs, dtype=bool), test, folder, notes)


def divide(
    given: str,
    train: AnswerSet,
    clear: np.ndarray,
    test: AnswerSet | None,
    folder: Path,
    notes: list[str],
    places: Sequence[Collection[str]] = (),
) -> Questions:
    """Returns the questions in groups, and which of them compare rankers: MAX_COMPARED, but FEW_QUESTIONS at least.

    places: the documents that hold right answers to each question, which are in one group, if that leaves enough
    """
    usable = _find_usable(given, train)
    order = make_generator(3, DRAW_KEY).permutation(usable)
    pairs = np.cumsum(np.diff(train.starts)[order])
    compared = np.zeros(train.num_questions, dtype=bool)
    compared[order[: max(FEW_QUESTIONS, min(MAX_COMPARED[0], int((pairs <= MAX_COMPARED[1]).sum())))]] = True
    if (count := int(compared.sum())) < FEW_QUESTIONS:
        notes.append(f"{count} questions are few, and show large gains alone: label fifty or more")
    groups = group_questions(train, places)
    if len(np.unique(groups[compared])) < MIN_QUESTIONS:
        groups = group_questions(train)
    if np.ptp(groups[compared]) == 0:
        raise KinspanError(f"--questions {given}: all share a right answer or a wording, and cannot judge each other")
    scored, searched = train.take(compared), np.zeros(count, dtype=bool)
    found, spec = np.ones(scored.num_pairs, dtype=bool), f"{FILES}={folder / 'questions'}"
    asked, words = np.flatnonzero(compared), np.zeros(0)
    return Questions(spec, train, groups, compared, clear, test, scored, asked, searched, found, words, notes)


def _find_usable(given: str, data: AnswerSet) -> np.ndarray:
    """Returns the numbers of the questions with right and wrong candidates. Raises KinspanError if they are few."""
    if len(usable := np.flatnonzero(find_kept(data, CLEAN))) < MIN_QUESTIONS:
        count = f"{len(usable)} questions with right and wrong candidates"
        raise KinspanError(f"--questions {given}: {data.split}: {count} are too few: label fifty or more")
    return usable


def _read_pool(given: str, columns: str | None) -> tuple[AnswerSet, AnswerSet | None]:
    """Returns the pooled train and dev questions, and the test set; a lone test set becomes the pool."""
    name, _, place = make_spec(given).partition("=")
    if name == FILES and Path(place).exists() and not has_splits(Path(place)):
        return load_unsplit(Path(place), parse_columns(columns) or {}), None
    splits: dict[str, AnswerSet] = {}
    for split in (TRAIN, DEV, TEST):
        with suppress(MissingSplit):
            splits[split] = load_split(make_spec(given), split, parse_columns(columns))
    if not splits:
        raise KinspanError(f"--questions {given}: it has no train, dev or test split")
    test = splits.pop(TEST, None) if len(splits) > 1 else None
    return replace(concatenate(list(splits.values())), split=TRAIN), test


def _remove_tested(given: str, pool: AnswerSet, test: AnswerSet, notes: list[str]) -> AnswerSet:
    """Returns the questions without those that the test set has too, in the same or similar words."""
    shared = np.unique(pair_similar(pool.questions, test.questions)[0])
    if not len(shared):
        return pool
    count = f"{len(shared):,} of {pool.num_questions:,} train and dev questions are also test questions"
    if len(shared) > MAX_SHARED * pool.num_questions:
        raise KinspanError(f"--questions {given}: {count}, in the same or similar words: the test set is no test")
    notes.append(f"{count}, and are removed")
    return pool.take(np.setdiff1d(np.arange(pool.num_questions), shared))


def thin(data: AnswerSet, most: tuple[int, int], notes: list[str]) -> AnswerSet:
    """Returns a random sample of at most ``most[0]`` questions and about ``most[1]`` candidates.

    Questions are dropped first, down to MIN_DRAWN. Then each keeps the same share of its right and of its wrong
    candidates, and at least one of each: a MAP among all right and few wrong ones would be far too high.
    """
    max_pairs = most[1]
    max_questions = min(most[0], max(MIN_DRAWN, max_pairs * data.num_questions // max(1, data.num_pairs)))
    drawn = data
    if data.num_questions > max_questions:
        order = make_generator(1, DRAW_KEY).permutation(data.num_questions)
        drawn = data.take(np.sort(order[:max_questions]))
    if drawn.num_pairs > max_pairs:
        kind = 2 * drawn.question_of + drawn.labels  # of a question and a label
        order = np.lexsort((make_generator(2, DRAW_KEY).permutation(drawn.num_pairs), kind))
        sizes = np.bincount(kind, minlength=2 * drawn.num_questions)
        position = np.arange(drawn.num_pairs) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        kept = np.zeros(drawn.num_pairs, dtype=bool)
        kept[order] = position < np.repeat(np.maximum(1, np.round(sizes * max_pairs / drawn.num_pairs)), sizes)
        drawn = drawn.keep(kept)
    if drawn.num_pairs < data.num_pairs:
        kept_counts = f"{drawn.num_questions:,} of {data.num_questions:,} questions"
        pairs = f"{drawn.num_pairs:,} of {data.num_pairs:,} candidates"
        notes.append(f"{data.split}: to save time {kept_counts} and {pairs} are used, drawn at random")
    return drawn


def list_lines(data: AnswerSet) -> Iterator[str]:
    """Yields the lines of a split of ``files=``, one for each candidate."""
    columns = (data.question_of.tolist(), data.answer_ids.to_pylist(), data.answers.to_pylist(), data.labels.tolist())
    for question, answer_id, answer, label in zip(*columns, strict=True):
        fields = {"question_id": data.question_ids[question], "question": data.questions[question]}
        row = {**fields, "answer_id": answer_id, "answer": answer, "label": label}
        yield json.dumps(row, ensure_ascii=False) + "\n"
