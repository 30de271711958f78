"""What an epoch trains on, as a function of (seed, epoch): which rows, in which groups, in which order."""

from dataclasses import dataclass

import numpy as np

from data_pipeline.errors import KinspanError
from finetune.data.answers import AnswerSet


@dataclass(frozen=True)
class Groups:
    """G groups of rows of an AnswerSet: group g is ``rows[starts[g] : starts[g + 1]]``."""

    rows: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def select(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of these groups, and for each row its group, counted from 0 in the order of ``groups``."""
        sizes = self.starts[groups + 1] - self.starts[groups]
        ends = np.cumsum(sizes)
        at = np.arange(ends[-1]) + np.repeat(self.starts[groups] - ends + sizes, sizes)
        return self.rows[at], np.repeat(np.arange(len(groups)), sizes)

    def num_rows(self, groups: np.ndarray) -> int:
        """How many rows these groups have together."""
        return int((self.starts[groups + 1] - self.starts[groups]).sum())

    def order_longest_first(self, first: int, count: int, lengths: np.ndarray) -> np.ndarray:
        """``count`` groups from number ``first`` on, those with the longest rows first: micro-batches then pad little.

        lengths: tokens of each row of the AnswerSet
        """
        groups = np.arange(first, first + count)
        rows, group_of = self.select(groups)
        longest = np.maximum.reduceat(lengths[rows], np.searchsorted(group_of, np.arange(count)))
        return groups[np.argsort(-longest, kind="stable")]


def make_generator(seed: int, epoch: int) -> np.random.Generator:
    """The generator of an epoch's draws; numbers from 2^32 on are keys of other purposes than epochs."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)))


def draw_pairs(data: AnswerSet, seed: int, epoch: int, negatives_per_positive: float | None = None) -> Groups:
    """Every pair is a group of its own.

    negatives_per_positive: train on so many negatives per answer, drawn anew in each epoch; None: on all
    """
    random = make_generator(seed, epoch)
    rows = np.arange(data.num_pairs)
    if negatives_per_positive is not None:
        negatives = np.flatnonzero(data.labels == 0)
        count = min(len(negatives), round(negatives_per_positive * int(data.labels.sum())))
        rows = np.concatenate([np.flatnonzero(data.labels), random.choice(negatives, count, replace=False)])
    return Groups(random.permutation(rows), np.arange(len(rows) + 1))


def draw_lists(data: AnswerSet, seed: int, epoch: int, list_size: int) -> Groups:
    """One group per answer: the answer, and at most ``list_size - 1`` negatives of its question, drawn in each epoch.

    A question without an answer, or without a negative, has no group. Raises KinspanError where no question has one.
    """
    random = make_generator(seed, epoch)
    key = random.random(data.num_pairs)
    groups = []
    for rows in data.rows():
        labels = data.labels[rows]
        negatives = rows.start + np.flatnonzero(labels == 0)
        if len(negatives):
            for answer in rows.start + np.flatnonzero(labels):
                drawn = negatives[np.argsort(key[negatives])][: list_size - 1]
                key[negatives] = random.random(len(negatives))  # for the question's next answer
                groups.append(np.concatenate([[answer], drawn]))
    if not groups:
        raise KinspanError(f"{data.name} {data.split}: no question has both an answer and a negative: use pointwise")
    groups = [groups[n] for n in random.permutation(len(groups))]
    return Groups(np.concatenate(groups), np.cumsum([0] + [len(g) for g in groups]))


def flip_labels(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Labels of which ``share`` (rounded down) are flipped, at random over all pairs.

    Garg et al., 2020, section 5.4: of WikiQA's 8,672 pairs 867 and 1,734, of TREC-QA's 53,417 5,341 and 10,683.
    """
    flipped = make_generator(seed, 2**32).choice(len(labels), int(share * len(labels)), replace=False)
    noisy = labels.copy()
    noisy[flipped] = 1 - noisy[flipped]
    return noisy
