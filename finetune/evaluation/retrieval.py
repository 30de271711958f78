"""How well answers are found among all there are: MRR and recall of the first few, as trec_eval computes them."""

from collections.abc import Collection, Sequence

import numpy as np

from .metrics import CUTS, MRR, RECALLS, RETRIEVAL_METRICS, Figures


def measure_retrieval(found: Sequence[Sequence[str]], right: Sequence[Collection[str]]) -> Figures:
    """Returns each metric's value for every question, ``[Q]``; a question without a right answer counts 0.

    found: of each question the ids of the answers that were found, the best first, none twice
    right: of each question the ids of its right answers

    MRR: 1 over the rank of the first right answer, 0 where none was found. R@k: the share of the right answers that are
    among the first k; of a question with several, R@1 cannot be 1.
    """
    figures = {name: np.zeros(len(found)) for name in RETRIEVAL_METRICS}
    for number, (ids, wanted) in enumerate(zip(found, right, strict=True)):
        ranks = [rank for rank, name in enumerate(ids, 1) if name in wanted]
        if ranks:
            figures[MRR][number] = 1 / ranks[0]
            for name, cut in zip(RECALLS, CUTS, strict=True):
                figures[name][number] = sum(rank <= cut for rank in ranks) / len(wanted)
    return figures
