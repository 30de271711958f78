"""Which way is best for these documents and labels: chosen on dev, measured once on test."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import BM25
from finetune.evaluation.significance import SIGNIFICANT, compare, compute_interval

from .ways import Scorer, Way

BETTER = (
    "Use {name}: its MAP on the {questions} test questions is {chosen:.3f}, against {start:.3f} of {start_name} "
    "(difference {difference:+.3f}, 95% interval {low:+.3f} to {high:+.3f}); BM25 has {bm25:.3f}."
)
PERHAPS = (
    "Use {name}, with care: its MAP on the {questions} test questions is {chosen:.3f}, against {start:.3f} of "
    "{start_name}, but that may be chance (p {p:.3f}, 95% interval of the difference {low:+.3f} to {high:+.3f}); "
    "BM25 has {bm25:.3f}."
)
NOT_ON_TEST = (
    "Keep {start_name}: {name} was best on dev, but on the {questions} test questions it is not better (MAP "
    "{chosen:.3f} against {start:.3f}, 95% interval of the difference {low:+.3f} to {high:+.3f}); BM25 has {bm25:.3f}."
)
UNJUDGED = (
    "This is no verdict on your documents, which these questions are not about. For one, label fifty questions of your "
    "own and add --questions; docs/adapt.md has the form."
)
KEEP = (
    "Keep {start_name}: nothing here beats it on the dev questions (best: {best:.3f} by {best_name}, against "
    "{start_dev:.3f}). Its MAP on the {questions} test questions is {start:.3f} (95% interval {low:.3f} to {high:.3f});"
    " BM25 has {bm25:.3f}."
)
BM25_ABOVE = " That is above {name}: before you decide, measure both on more questions."


@dataclass(frozen=True)
class Verdict:
    """What was found.

    chosen:  the way to use
    best:    the way that was best on dev; another one where it did not hold on test
    start:   the way that the others had to beat
    tested:  of these two, the scores ``[N]`` of the test questions
    figures: of the sentence: MAP on test of both and of BM25, the difference and its interval
    """

    chosen: Way
    best: Way
    start: Way
    tested: dict[str, np.ndarray]
    figures: dict[str, Any]
    sentence: str

    @property
    def test_maps(self) -> dict[str, float]:
        """MAP on test of each way that was measured on it."""
        of_both = {self.start.name: self.figures["start"], self.best.name: self.figures["chosen"]}
        return {BM25: self.figures["bm25"], **of_both}


def judge(ways: list[Way], start: Way, dev: AnswerSet, test: AnswerSet, scorer: Scorer) -> Verdict:
    """Chooses the way with the highest MAP on dev, of equals the first, and measures it, the start and BM25 on test.

    Nothing below the start is chosen: where the best on dev is no better on test, the start is.
    """
    maps = {way.name: float(way.measure(dev).mean()) for way in ways}
    best = max(ways, key=lambda way: maps[way.name])
    tested = {way.name: scorer.score_way(way, test) for way in (start, best)}
    ap = {way.name: Way(way.name, "", tested[way.name]).measure(test) for way in (start, best)}
    figures: dict[str, Any] = {
        "name": best.name,
        "start_name": start.name,
        "questions": test.num_questions,
        "chosen": float(ap[best.name].mean()),
        "start": float(ap[start.name].mean()),
        "bm25": float(Way(BM25, BM25, scorer.score(BM25, test)).measure(test).mean()),
    }
    above = BM25_ABOVE.format(name=start.name) if figures["bm25"] > figures["start"] else ""
    if best is start:
        others = [way for way in ways if way is not start]
        second = max(others, key=lambda way: maps[way.name])
        figures["low"], figures["high"] = compute_interval(ap[start.name])
        figures |= {"best": maps[second.name], "best_name": second.name, "start_dev": maps[start.name]}
        return Verdict(start, start, start, tested, figures, KEEP.format(**figures) + above)
    difference = compare(ap[best.name], ap[start.name])
    figures["difference"] = difference.difference
    figures["p"] = difference.over_questions
    figures["low"], figures["high"] = compute_interval(ap[best.name] - ap[start.name])
    if difference.difference <= 0:
        return Verdict(start, best, start, tested, figures, NOT_ON_TEST.format(**figures) + above)
    sentence = BETTER if difference.over_questions < SIGNIFICANT else PERHAPS
    above = BM25_ABOVE.format(name=best.name) if figures["bm25"] > figures["chosen"] else ""
    return Verdict(best, best, start, tested, figures, sentence.format(**figures) + above)
