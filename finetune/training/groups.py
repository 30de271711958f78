"""Draws what an epoch trains on, as a function of (seed, epoch): which pairs, in which groups, in which order.

The number of a pair of a question and one of its candidates is the candidate's row. A pair with another question's
candidate has a number beyond those of the rows, see finetune.data.answers.number_pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.sampling.random_bits import make_philox_key
from finetune.data.answers import AnswerSet, number_pairs


@dataclass(frozen=True)
class Groups:
    """G groups of pairs of an AnswerSet, by their numbers: group g is ``rows[starts[g] : starts[g + 1]]``."""

    rows: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def select(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of these groups, and for each row its group, counted from 0 in the order of ``groups``."""
        sizes = self.starts[groups + 1] - self.starts[groups]
        ends = np.cumsum(sizes)
        indices = np.arange(ends[-1]) + np.repeat(self.starts[groups] - ends + sizes, sizes)
        return self.rows[indices], np.repeat(np.arange(len(groups)), sizes)

    def order_longest_first(self, first: int, count: int, measure: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Returns ``count`` groups from number ``first`` on, the longest first, so that micro-batches pad little."""
        groups = np.arange(first, first + count)
        rows, group_of = self.select(groups)
        longest = np.maximum.reduceat(measure(rows), np.searchsorted(group_of, np.arange(count)))
        return groups[np.argsort(-longest, kind="stable")]


def make_generator(seed: int, epoch: int) -> np.random.Generator:
    """Returns the generator of an epoch's draws; ``epoch`` from 2^32 on is for other draws than epochs."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)))


def draw_pairs(data: AnswerSet, seed: int, epoch: int, negatives_ratio: float | None = None) -> Groups:
    """Draws pairs, each a group: all, or ``negatives_ratio`` negatives per right answer, new ones in each epoch."""
    random = make_generator(seed, epoch)
    rows = np.arange(data.num_pairs)
    if negatives_ratio is not None:
        negatives = np.flatnonzero(data.labels == 0)
        count = min(len(negatives), round(negatives_ratio * int(data.labels.sum())))
        rows = np.concatenate([np.flatnonzero(data.labels), random.choice(negatives, count, replace=False)])
    return Groups(random.permutation(rows), np.arange(len(rows) + 1))


def draw_negatives(data: AnswerSet, seed: int, epoch: int, count: int, from_corpus: bool) -> Groups:
    """Draws all right answers, and ``count`` negatives per question, new ones in every epoch; each pair is a group.

    from_corpus: draw from all distinct candidates of ``data`` whose text is not right for the question; else from its
        own candidates, which may be fewer than ``count``

    Rücklé et al., 2020, "MultiCQA", section 3.3. A question's negatives depend only on the seed, the epoch and its id,
    not on the other questions.
    """
    chosen = [np.flatnonzero(data.labels)]
    corpus = data.distinct
    for number, candidates in enumerate(data.question_slices()):
        key = make_philox_key(seed, f"negatives/{epoch}/{data.question_ids[number]}")
        random = np.random.Generator(np.random.Philox(key=key))
        if not from_corpus:
            wrong = candidates.start + np.flatnonzero(corpus.wrong[candidates])
            chosen.append(random.choice(wrong, min(count, len(wrong)), replace=False))
        else:
            right = corpus.find_right(number)
            drawn = _draw_others(random, right, count, data, number, f"--negatives_per_question {count}")
            chosen.append(number_pairs(data, np.full(count, number), corpus.rows[drawn]))
    rows = np.concatenate(chosen)
    return Groups(make_generator(seed, epoch).permutation(rows), np.arange(len(rows) + 1))


def _draw_others(
    random: np.random.Generator, excluded: np.ndarray, count: int, data: AnswerSet, number: int, setting: str
) -> np.ndarray:
    """Draws ``count`` distinct candidates that are not ``excluded``; ``setting``: the flag for the error message."""
    size = len(data.distinct.rows)
    if size - len(excluded) < count:
        raise KinspanError(
            f"{setting}: {data.name} {data.split} has {size:,} distinct candidates in all, of "
            f"which question {data.question_ids[number]} leaves {size - len(excluded):,}: lower it"
        )
    drawn = random.choice(size, count + len(excluded), replace=False)
    return drawn[~np.isin(drawn, excluded)][:count]


def draw_examples(data: AnswerSet, seed: int, epoch: int, own_negatives: int) -> Groups:
    """Draws a group per right answer: the answer, and ``own_negatives`` wrong candidates, new ones in each epoch.

    They are the question's own or, if it has too few, also those of other questions.
    """
    random = make_generator(seed, epoch)
    answers = random.permutation(np.flatnonzero(data.labels))
    groups = np.empty((len(answers), 1 + own_negatives), dtype=np.int64)
    groups[:, 0] = answers
    for group, question in zip(groups, data.question_of[answers], strict=True):
        candidates = slice(int(data.starts[question]), int(data.starts[question + 1]))
        wrong = candidates.start + np.flatnonzero(data.distinct.wrong[candidates])
        drawn = random.permutation(wrong)[:own_negatives]
        if missing := own_negatives - len(drawn):
            excluded = np.union1d(data.distinct.which[candidates], data.distinct.find_right(question))
            others = _draw_others(random, excluded, missing, data, question, f"--own_negatives {own_negatives}")
            drawn = np.concatenate([drawn, data.distinct.rows[others]])
        group[1:] = drawn
    return Groups(groups.ravel(), np.arange(len(answers) + 1) * (1 + own_negatives))


def read_labels(labels: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Returns the labels of pairs by their numbers: those of the rows, and 0 beyond them."""
    return np.where(pairs < len(labels), labels[pairs % len(labels)], 0)


def flip_labels(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Returns the labels with a random ``share`` of them (rounded down) flipped.

    Garg et al., 2020, section 5.4: of WikiQA's 8,672 pairs 867 and 1,734, of TREC-QA's 53,417 5,341 and 10,683.
    """
    flipped = make_generator(seed, 2**32).choice(len(labels), int(share * len(labels)), replace=False)
    noisy = labels.copy()
    noisy[flipped] = 1 - noisy[flipped]
    return noisy
