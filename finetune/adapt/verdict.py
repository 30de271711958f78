"""Finds the best ranker for these documents and labels: chosen on dev, measured once on test."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from data_pipeline.core.files import JsonObject
from finetune.data.answers import AnswerSet
from finetune.data.registry import load_split
from finetune.evaluation.bm25 import BM25, count_words
from finetune.evaluation.significance import SIGNIFICANT, compare, compute_interval
from finetune.ranking.encode import encode_pairs
from finetune.ranking.fusion import fit_fusion
from finetune.ranking.kinds import BI_ENCODER, find_kind
from finetune.ranking.ranker import find_trained_length, load_own_tokenizer, load_ranker
from finetune.ranking.score import score_pairs

from .rankers import FUSION, MAX_LENGTH, PRETRAINED, Ranker, ScoreCache, list_untrained, name_base, name_model

SELQA = Path(__file__).with_name("selqa")  # a hundred questions, for an adaptation without labels

BETTER = (
    "Use {name}: its MAP on the {questions} test questions is {chosen:.3f}, against {base:.3f} of {base_name} "
    "(difference {difference:+.3f}, 95% interval {low:+.3f} to {high:+.3f}); BM25 has {bm25:.3f}."
)
PERHAPS = (
    "Use {name}, with care: its MAP on the {questions} test questions is {chosen:.3f}, against {base:.3f} of "
    "{base_name}, but that may be chance (p {p:.3f}, 95% interval of the difference {low:+.3f} to {high:+.3f}); "
    "BM25 has {bm25:.3f}."
)
NOT_ON_TEST = (
    "Keep {base_name}: {name} was best on dev, but on the {questions} test questions it is not better (MAP "
    "{chosen:.3f} against {base:.3f}, 95% interval of the difference {low:+.3f} to {high:+.3f}); BM25 has {bm25:.3f}."
)
KEEP = (
    "Keep {base_name}: nothing here beats it on the dev questions (best: {best:.3f} by {best_name}, against "
    "{base_dev:.3f}). Its MAP on the {questions} test questions is {base:.3f} (95% interval {low:.3f} to {high:.3f});"
    " BM25 has {bm25:.3f}."
)
BM25_ABOVE = " That is above {name}: before you decide, measure both on more questions."
UNJUDGED = (
    "This is no verdict on your documents, which these questions are not about. For a verdict, label fifty questions "
    "about your documents and add --questions; docs/start.md has the form."
)
NOT_LEARNED = (
    "This training is too short: the model ranks these answers no better than before. Use another ranker, a larger "
    "--budget or more documents."
)
LEARNED = (
    "The model has learned to rank answers from your documents alone, without one label. The other rows show how good "
    "rankers are that need no training."
)


@dataclass(frozen=True)
class Verdict:
    """The chosen ranker, and the figures of its sentence.

    best:    the best on dev; it is not chosen if the base is as good on test
    base:    the ranker to beat
    figures: MAP on test of both and of BM25, their difference and its interval
    """

    chosen: Ranker
    best: Ranker
    base: Ranker
    figures: JsonObject
    sentence: str

    @property
    def test_maps(self) -> dict[str, float]:
        """Returns MAP on test of each ranker that was measured on it."""
        measured = {self.base.name: self.figures["base"], self.best.name: self.figures["chosen"]}
        return {BM25: self.figures["bm25"], **measured}


def judge(rankers: list[Ranker], base: Ranker, dev: AnswerSet, test: AnswerSet, cache: ScoreCache) -> Verdict:
    """Chooses the ranker with the highest MAP on dev (the first of equals), and measures it, base and BM25 on test.

    If the best on dev is no better than the base on test, the base is chosen.
    """
    maps = {ranker.name: float(ranker.measure(dev).mean()) for ranker in rankers}
    best = max(rankers, key=lambda ranker: maps[ranker.name])
    best_ap, base_ap = (Ranker("", "", cache.score_ranker(ranker, test)).measure(test) for ranker in (best, base))
    figures: JsonObject = {
        "name": best.name,
        "base_name": base.name,
        "questions": test.num_questions,
        "chosen": float(best_ap.mean()),
        "base": float(base_ap.mean()),
        "bm25": float(cache.rank(BM25, BM25, test).measure(test).mean()),
    }
    if best is base:
        second = max((ranker for ranker in rankers if ranker is not base), key=lambda ranker: maps[ranker.name])
        figures["low"], figures["high"] = compute_interval(base_ap)
        figures |= {"best": maps[second.name], "best_name": second.name, "base_dev": maps[base.name]}
        chosen, sentence = base, KEEP
    else:
        comparison = compare(best_ap, base_ap)
        figures |= {"difference": comparison.difference, "p": comparison.over_questions}
        figures["low"], figures["high"] = compute_interval(best_ap - base_ap)
        chosen = best if comparison.difference > 0 else base
        sentence = BETTER if comparison.over_questions < SIGNIFICANT else PERHAPS
        sentence = sentence if chosen is best else NOT_ON_TEST
    above = figures["bm25"] > figures["base" if chosen is base else "chosen"]
    sentence = sentence.format(**figures) + (BM25_ABOVE.format(name=chosen.name) if above else "")
    return Verdict(chosen, best, base, figures, sentence)


def judge_without_labels(model: str, pretrained: str, folder: Path) -> JsonObject:
    """Returns MAP on SelQA of the model as a cross-encoder before and after, BM25, the model as it is, and their
    fusion, with intervals and a sentence.

    A model with a pair head is measured with it, once. A model that cannot rank untrained has no such row.

    folder: cache of the scores
    """
    data = load_split(f"files={SELQA}", "test")
    cache = ScoreCache(count_words(data.answers.unique().to_pylist()), folder)
    rankers = {ranker.name: ranker for ranker in list_untrained(model, data, cache)}
    after = cache.rank(PRETRAINED, pretrained, data)
    if name_base(model) in rankers and find_kind(model) != BI_ENCODER:
        before = rankers.pop(name_base(model))
    else:
        name = f"{name_model(model)} as a cross-encoder, before any training"
        before = Ranker(name, model, _score_by_new_head(model, data, pretrained))
    parts = [*rankers.values(), after]
    fusion = fit_fusion(data, {ranker.name: ranker.scores for ranker in parts})
    fused = Ranker(f"{FUSION} of the last {len(parts)}", "", fusion.out_of_fold)
    precision = {ranker.name: ranker.measure(data) for ranker in (before, after, *rankers.values(), fused)}
    rows = []
    for name, values in precision.items():
        low, high = compute_interval(values)
        rows.append({"name": name, "map": float(values.mean()), "low": low, "high": high})
    comparison = compare(precision[after.name], precision[before.name])
    has_learned = comparison.difference > 0 and comparison.over_questions < SIGNIFICANT
    return {"questions": data.num_questions, "rows": rows, "sentence": LEARNED if has_learned else NOT_LEARNED}


def _score_by_new_head(model: str, data: AnswerSet, pretrained: str) -> np.ndarray:
    """Returns the scores ``[N]`` of the model with the fresh pair head that its pre-training began with."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ranker = load_ranker(model)
    pairs = encode_pairs(data, load_own_tokenizer(model), find_trained_length(pretrained) or MAX_LENGTH)
    return score_pairs(ranker.eval().to(device), pairs, device)
