"""Decides which ranker to use: the base model, unless a gain over it is shown."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import norm

from data_pipeline.core.files import JsonObject
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.data.registry import load_split
from finetune.evaluation.bm25 import BM25, ENGLISH, count_words
from finetune.evaluation.significance import SIGNIFICANT, compare, compute_interval, correct_choice, format_p
from finetune.ranking.encode import encode_pairs
from finetune.ranking.kinds import BI_ENCODER, CROSS_ENCODER, find_kind
from finetune.ranking.ranker import find_max_length, load_own_tokenizer, load_ranker
from finetune.ranking.score import score_pairs

from .questions import SELQA
from .rankers import PRETRAINED, Ranker, ScoreCache, list_untrained, name_base

SHOWN = (
    "Use {name}: its MAP is {chosen:.3f} on {questions} questions that it had not seen, against {base:.3f} of "
    "{base_name} (difference {difference:+.3f}, 95% interval {low:+.3f} to {high:+.3f}; p {p}, which counts the "
    "choice among {rankers} rankers); BM25 has {bm25:.3f}."
)
NOT_SHOWN = (
    "Keep {base_name}: with {questions} questions no gain worth its cost is shown. Its MAP is {base:.3f} (95% interval "
    "{base_low:.3f} to {base_high:.3f}); the best other, {name}, has {chosen:.3f} (p {p}, which counts the choice "
    "among {rankers} rankers); BM25 has {bm25:.3f}. {more}"
)
SHOWN_ON_TEST = (
    "Use {name}: its MAP on the {questions} test questions is {chosen:.3f}, against {base:.3f} of {base_name} "
    "(difference {difference:+.3f}, 95% interval {low:+.3f} to {high:+.3f}; p {p}); BM25 has {bm25:.3f}."
)
NOT_SHOWN_ON_TEST = (
    "Keep {base_name}: {name} was chosen on the other questions, but on the {questions} test questions no gain "
    "worth its cost is shown (MAP {chosen:.3f} against {base:.3f}, p {p}); BM25 has {bm25:.3f}. {more}"
)
MORE = "Some {more:,} questions more would show a gain of {gain}."
ENOUGH = "A gain of {gain} would have been shown."
NOT_WORTH = "That gains less than {gain} and takes {times:.0f} times as long for a question: --quality_first takes it."
CHEAPER = (
    " Out of fold {name} has {high:.3f}, not {low:.3f}, and takes {times:.0f} times as long for a question: "
    "--quality_first prefers it."
)
LOOKED = " Some of these questions have now judged {looks} times: a gain counts with p of {level:.3f} or less."
SEARCHED = " In {questions} searches of all paragraphs {name} has MRR@10 {mrr:.3f}; the best is {high:.3f}, of {best}."
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

LEVEL = 0.04  # p up to which a gain is shown; if no ranker is better, 3.6 to 4.4% of simulated verdicts are wrong
GAIN = 0.05  # that a user would care about
LIKELY = 0.84  # standard errors, beyond those of p, for a power of .8
SMALL_GAIN, COSTLY = 0.01, 10  # a ranker with a smaller gain is not worth this many times the time


@dataclass(frozen=True)
class Verdict:
    """The ranker to use.

    best:    the one whose gain was tested; it is chosen if the gain is shown
    base:    the ranker to beat
    figures: MAP of both and of BM25, on the test set if there is one, and how they differ
    p:       by ranker, of its gain on the labelled questions, corrected for the choice
    """

    chosen: Ranker
    best: Ranker
    base: Ranker
    figures: JsonObject
    p: dict[str, float]
    sentence: str


def choose_best(rankers: list[Ranker], data: AnswerSet, ms: dict[str, float], quality_first: bool) -> Ranker:
    """Returns the ranker with the highest MAP, or, unless ``quality_first``, the best of those that are COSTLY times as
    fast and less than SMALL_GAIN below it; ms: milliseconds per question."""
    maps = {ranker.name: float(ranker.measure(data).mean()) for ranker in rankers}
    best = max(rankers, key=lambda ranker: maps[ranker.name])
    if quality_first:
        return best
    least, most = maps[best.name] - SMALL_GAIN, ms[best.name] / COSTLY
    as_good = [ranker for ranker in rankers if maps[ranker.name] > least and ms[ranker.name] <= most]
    return max(as_good, key=lambda ranker: maps[ranker.name], default=best)


def judge(
    rankers: list[Ranker],
    base: Ranker,
    data: AnswerSet,
    ms: dict[str, float],
    level: float,
    quality_first: bool = False,
    measure_test: Callable[[Ranker], np.ndarray] | None = None,
) -> Verdict:
    """Returns the ranker to use: the base, unless a gain over it is shown.

    data:         the questions that the rankers have scored out of fold
    level:        p up to which a gain is shown
    measure_test: returns a ranker's average precision on each test question. With a test set, the best ranker of the
                  labelled questions is measured on it, and only that; without, its gain out of fold counts, with the
                  choice among the rankers in the test (``correct_choice``)
    """
    precision = {ranker.name: ranker.measure(data) for ranker in rankers}
    maps = {name: float(values.mean()) for name, values in precision.items()}
    others = [ranker for ranker in rankers if ranker is not base]
    corrected = correct_choice(np.stack([precision[ranker.name] - precision[base.name] for ranker in others]))
    p = dict(zip([ranker.name for ranker in others], corrected.tolist(), strict=True))
    shown = [ranker for ranker in others if p[ranker.name] <= level]
    candidates = others if measure_test else shown or others
    quality = choose_best(candidates, data, ms, True)
    best = choose_best(candidates, data, ms, quality_first or not (measure_test or shown))
    if measure_test:
        best_ap, base_ap, bm25_ap = (measure_test(ranker) for ranker in (best, base, rankers[0]))
        best_p = compare(best_ap, base_ap).p
    else:
        best_ap, base_ap, bm25_ap = precision[best.name], precision[base.name], precision[BM25]
        best_p = p[best.name]
    gains, times = best_ap - base_ap, ms[best.name] / ms[base.name]
    is_shown = best_p <= level and gains.mean() > 0
    is_worth_it = quality_first or gains.mean() >= SMALL_GAIN or times < COSTLY
    looks, num_tests = round(LEVEL / level), 2 if measure_test else len(others)  # two sides, or a choice of rankers
    errors = LIKELY + norm.isf(LEVEL / (looks + 1) / num_tests)  # at the next look
    wanted = (errors * gains.std() / GAIN) ** 2 - len(gains)
    more = MORE.format(more=int(-(-wanted // 10) * 10), gain=GAIN) if wanted > 0 else ENOUGH.format(gain=GAIN)
    figures: JsonObject = {
        "name": best.name,
        "base_name": base.name,
        "questions": len(gains),
        "rankers": len(others),
        "chosen": float(best_ap.mean()),
        "base": float(base_ap.mean()),
        "bm25": float(bm25_ap.mean()),
        "difference": float(gains.mean()),
        "p": best_p,
        **dict(zip(("low", "high"), compute_interval(gains), strict=True)),
        **dict(zip(("base_low", "base_high"), compute_interval(base_ap), strict=True)),
        "more": more if not is_shown else NOT_WORTH.format(gain=SMALL_GAIN, times=times),
    }
    is_better = is_shown and is_worth_it
    templates = (SHOWN_ON_TEST, NOT_SHOWN_ON_TEST) if measure_test else (SHOWN, NOT_SHOWN)
    sentence = templates[0 if is_better else 1].format(**{**figures, "p": format_p(best_p)})
    if is_better and quality is not best:
        times = ms[quality.name] / ms[best.name]
        sentence += CHEAPER.format(name=quality.name, high=maps[quality.name], low=maps[best.name], times=times)
    if level < LEVEL:
        sentence += LOOKED.format(looks=looks, level=level)
    return Verdict(best if is_better else base, best, base, figures, p, sentence)


def judge_without_labels(model: str, pretrained: str, folder: Path) -> JsonObject:
    """Returns MAP on SelQA of the model as a cross-encoder before and after, BM25, the model as it is, and the rank
    fusion of these two, with intervals and a sentence; ``folder`` caches scores.

    A model with a pair head is measured with it, once. A model that cannot rank untrained has no such row.
    """
    data = load_split(f"files={SELQA}", "test")
    cache = ScoreCache(count_words(data.answers.unique().to_pylist(), ENGLISH), folder)
    rankers = {ranker.name: ranker for ranker in list_untrained(model, data, cache)}
    after = cache.rank(PRETRAINED, CROSS_ENCODER, pretrained, data)
    if name_base(model) in rankers and find_kind(model) != BI_ENCODER:
        before = rankers.pop(name_base(model))
    else:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        fresh = load_ranker(model).eval().to(device)  # with the pair head that its pre-training began with
        pairs = encode_pairs(data, load_own_tokenizer(model), find_max_length(pretrained))
        name = f"{shorten_name(model)} as a cross-encoder, before any training"
        before = Ranker(name, CROSS_ENCODER, model, score_pairs(fresh, pairs, device))
    precision = {ranker.name: ranker.measure(data) for ranker in (before, after, *rankers.values())}
    intervals = {name: dict(zip(("low", "high"), compute_interval(ap), strict=True)) for name, ap in precision.items()}
    rows = [{"name": name, "map": float(ap.mean()), **intervals[name]} for name, ap in precision.items()]
    comparison = compare(precision[after.name], precision[before.name])
    has_learned = comparison.difference > 0 and comparison.p < SIGNIFICANT
    return {"questions": data.num_questions, "rows": rows, "sentence": LEARNED if has_learned else NOT_LEARNED}
