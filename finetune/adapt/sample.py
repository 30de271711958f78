"""What an adaptation without labels ends with: how well each ranker answers a hundred real questions, of SelQA."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from finetune.data.answers import AnswerSet
from finetune.data.registry import load_split
from finetune.evaluation.bm25 import count_words
from finetune.evaluation.significance import SIGNIFICANT, compare_rows, compute_interval
from finetune.fuse import fit_fusion
from finetune.ranking.bi_encoder import is_bi_encoder
from finetune.ranking.encode import encode_pairs
from finetune.ranking.ranker import find_trained_length, load_own_tokenizer, load_ranker
from finetune.ranking.score import score_pairs

from .ways import FUSION, MAX_LENGTH, PRETRAINED, Scorer, Way, list_untrained, name_model, name_start

QUESTIONS = Path(__file__).with_name("selqa")

NOT_LEARNED = (
    "So short a training is not shown to have taught the model to rank: it ranks these answers no better than before. "
    "Use one of the other rankers, and try a larger --budget or more documents."
)
WORSE = (
    "The model has learned to rank answers from your documents alone, without one label; after so short a training it "
    "is still worse here than a ranker that needs none, so use that one, or give a larger --budget."
)
BETTER = (
    "The model has learned to rank answers from your documents alone, without one label, and ranks these better than "
    "BM25 and than it did as it was."
)
UNDECIDED = (
    "The model has learned to rank answers from your documents alone, without one label; a hundred questions do not "
    "decide whether it is better or worse than the rankers that need no training."
)
TRIAL = (
    "What more pairs gave on other documents than yours, without labels: on the 1,133 test questions of SelQA "
    "all-MiniLM-L6-v2 had a MAP of .62 after 12,800 pairs of Wikipedia and news, .81 after 51,200, and .84 after "
    "204,800, as much as BM25 and the model as it is."
)


@dataclass(frozen=True)
class Sample:
    """What was found on the questions.

    rows:     ``name``, ``map``, ``low`` and ``high`` of each ranker
    sentence: what they mean
    shown:    the scores ``[N]`` before and after the pre-training, for questions side by side
    """

    data: AnswerSet
    rows: list[dict[str, Any]]
    sentence: str
    shown: dict[str, np.ndarray]

    def describe(self) -> dict[str, Any]:
        """What ``result.json`` holds."""
        return {"questions": self.data.num_questions, "rows": self.rows, "sentence": self.sentence}


def measure_sample(start: str, pretrained: str, folder: Path, say: Callable[[str], None]) -> Sample:
    """Measures the start as a cross-encoder, the pre-trained model, BM25, the start as it is, and their fusion.

    A start that has a pair head is measured by it, once. One that cannot rank as it is has no row for that.

    folder: for scores
    """
    data, _ = load_split(f"files={QUESTIONS}", "test")
    scorer = Scorer(count_words(data.answers.unique().to_pylist()), folder)
    ways = {way.name: way for way in list_untrained(start, data, scorer, say)}
    as_it_is, after = ways.get(name_start(start)), scorer.rank(PRETRAINED, pretrained, data)
    if as_it_is and not is_bi_encoder(start):
        before = ways.pop(as_it_is.name)
    else:
        name = f"{name_model(start)} as a cross-encoder, before any training"
        before = Way(name, start, score_by_new_head(start, data, pretrained))
    parts = [*ways.values(), after]
    fusion = fit_fusion(data, {way.name: way.scores for way in parts})
    fused = Way(f"{FUSION} of the last {len(parts)}", "", fusion.out_of_fold)
    precision = {way.name: way.measure(data) for way in (before, after, *ways.values(), fused)}
    rows = [_describe_row(name, own) for name, own in precision.items()]
    sentence = choose_sentence(*(precision[way.name] for way in (after, before, *ways.values())))
    return Sample(data, rows, sentence, {way.name: way.scores for way in (before, after)})


def score_by_new_head(start: str, data: AnswerSet, pretrained: str) -> np.ndarray:
    """The scores ``[N]`` of the start with a pair head that was just drawn, as its pre-training began, on as many
    tokens as the pre-trained model reads."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ranker, _ = load_ranker(start)
    pairs = encode_pairs(data, load_own_tokenizer(start), find_trained_length(pretrained) or MAX_LENGTH)
    return score_pairs(ranker.eval().to(device), pairs, device)


def choose_sentence(after: np.ndarray, before: np.ndarray, *others: np.ndarray) -> str:
    """What average precisions ``[Q]`` mean.

    after:  of the pre-trained model
    before: of the same model without pre-training
    others: of rankers that need no training
    """
    tests = [test for test in compare_rows([row[None] for row in (after, before, *others)]) if test]
    learned, *lower = (test["difference"] < 0 and test["corrected"] < SIGNIFICANT for test in tests)
    higher = [test["difference"] > 0 and test["corrected"] < SIGNIFICANT for test in tests[1:]]
    if not learned:
        return NOT_LEARNED
    if any(higher):
        return WORSE
    return BETTER if all(lower) else UNDECIDED


def _describe_row(name: str, precision: np.ndarray) -> dict[str, Any]:
    low, high = compute_interval(precision)
    return {"name": name, "map": float(precision.mean()), "low": low, "high": high}
