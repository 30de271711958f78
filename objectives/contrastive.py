"""Contrastive learning: which of the texts of a whole batch belongs to the query?

Any pair objective gives the texts: A of an anchor is the query, its positive's B the text that belongs to it, and the
other anchors' texts in the global batch are the negatives (multiple-negatives ranking; Henderson et al., 2017,
"Efficient Natural Language Response Suggestion for Smart Reply", section 4). So an anchor makes one example. The
objective's own negatives may join the candidates, hard ones first: with ``ssp``, spans of the same document, which the
rest of the batch does not have.
"""

from dataclasses import replace
from functools import cache, partial

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.sampling.block import Block, Spans
from data_pipeline.sampling.mixture import Mixture
from data_pipeline.sampling.pairs import POSITIVE, Objective, Pairs

from .sop import SOP


def as_contrastive(mixture: Mixture, own_negatives: int = 0) -> Mixture:
    """Returns the mixture for a bi-encoder: one example per anchor, its positive and ``own_negatives`` negatives."""
    parts = (replace(part, objective=keep_positives(part.objective, own_negatives)) for part in mixture.parts)
    return replace(mixture, parts=tuple(parts))


@cache
def keep_positives(objective: Objective, own_negatives: int = 0) -> Objective:
    """Returns the objective with one example per anchor: the query, the positive and ``own_negatives`` negatives."""
    if own_negatives >= objective.pairs_per_anchor:
        raise KinspanError(
            f"--own_negatives {own_negatives}: {objective.name} has {objective.pairs_per_anchor - 1} for each anchor"
        )
    if own_negatives and objective is SOP:
        raise KinspanError(f"--own_negatives {own_negatives}: the negative of sop is the query itself")
    sample = partial(_join_examples, objective, own_negatives)
    return replace(objective, sample=sample, pairs_per_anchor=1, num_texts=2 + own_negatives, separate_texts=True)


def _join_examples(
    objective: Objective, own_negatives: int, block: Block, anchors: np.ndarray, random_bits: np.ndarray
) -> Pairs:
    pairs = objective.sample(block, anchors, random_bits)
    objective.check(pairs, len(anchors))
    order = pairs.kind.argsort(axis=1, kind="stable")  # the positive, hard ones, easy ones
    a, b = pairs.texts
    chosen = [_take(b, order[:, [number]]) for number in range(1 + own_negatives)]
    return Pairs((_take(a, order[:, [0]]), *chosen), np.full((len(anchors), 1), POSITIVE))


def _take(spans: Spans, columns: np.ndarray) -> Spans:
    """Returns, from each row of ``[n, g]`` spans, the one in its column; columns: ``[n, 1]``"""
    return spans.map(lambda array: np.take_along_axis(array, columns, axis=1))
