"""Fits a fusion of given rankers on a data set's dev questions, and measures it on its test questions."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from data_pipeline.core.default_model import name_installed
from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.data.dataset import MissingSplit
from finetune.data.filters import CLEAN, find_overlaps
from finetune.data.registry import load_filtered, load_split, parse_columns
from finetune.evaluation.bm25 import BM25, WordCounts, count_words, score_bm25_by
from finetune.evaluation.comparison import compare_systems, format_table
from finetune.evaluation.metrics import MAP, compute_means, compute_question_metrics
from pretrain.release.folder import expect_release_or_nothing

from .fusion import NAME, fit_fusion, measure_map, write_fusion
from .kinds import ADAPTER, FUSION, find_kind
from .model import score_answers

log = logging.getLogger(__name__)


def fuse_file(
    parts: Sequence[str], spec: str, output: Path, columns: str | None = None, max_length: int | None = None
) -> str:
    """Fits a fusion of these parts on the dev questions of a data set, and writes its folder; returns its tables.

    The dev questions, because a part that was fine-tuned on the training questions scores these too well, and its
    weight would be too high. The test questions, where there are any, measure it.

    parts: names of models, and BM25

    Raises KinspanError where the fusion is not better than each of its parts: then nothing is written.
    """
    models = name_models(parts)
    expect_release_or_nothing(output)  # before the work
    dev = load_filtered(spec, "dev", CLEAN, parse_columns(columns))
    words = count_words(list_candidates(spec, columns))
    scores = score_parts(models, dev, words, max_length)
    fitted = fit_fusion(dev, scores)
    maps = {name: measure_map(dev, values) for name, values in {**scores, NAME: fitted.out_of_fold}.items()}
    width = max(map(len, maps))
    tables = [f"{dev.name} dev, {dev.num_questions:,} questions, the fusion by cross-validation: MAP"]
    tables += [f"{name:<{width}}  {value:.4f}" for name, value in maps.items()]
    if worse := [name for name in scores if maps[name] >= maps[NAME]]:
        log.info("\n".join(tables))
        raise KinspanError(f"--parts {' '.join(parts)}: on dev {worse[0]} alone is as good as the fusion: rank by it")
    figures = {"dev": {MAP: maps[NAME]}}
    try:
        test = load_filtered(spec, "test", CLEAN, parse_columns(columns))
    except MissingSplit as error:
        log.warning("%s: nothing else measures the fusion", error)
    else:
        for overlap in find_overlaps([dev, test]):
            log.warning("%s: the fusion knows their answers, and its figures on test are too high", overlap)
        of_test = score_parts(models, test, words, max_length)
        every = {**of_test, NAME: fitted.score(of_test)}
        ordered = sorted(every, key=lambda name: -maps[name])  # the best on dev first, which the rest is compared with
        systems = {name: compute_question_metrics(test, every[name]) for name in ordered}
        figures["test"] = compute_means(systems[NAME])
        tables += [f"\n{test.name} test: {test.num_questions:,} questions", format_table(compare_systems(systems))]
    write_fusion(output, fitted, models, words, {"data": spec.partition("=")[0], "figures": figures}, max_length)
    return "\n".join([*tables, f"\n{output}: {fitted.format_weights()}"])


def name_models(parts: Sequence[str]) -> dict[str, str]:
    """Returns the models by names for people. Raises KinspanError for what can be no part."""
    places = [BM25 if part.lower() == BM25.lower() else part for part in parts]
    names = [shorten_name(name_installed(place)) for place in places]
    models = {place if names.count(name) > 1 else name: place for name, place in zip(names, places, strict=True)}
    if len(models) < 2 or len(models) < len(parts):
        raise KinspanError(f"--parts {' '.join(parts)}: give two rankers or more, each once")
    for model in models.values():
        if model != BM25 and (kind := find_kind(model)) in (ADAPTER, FUSION):
            raise KinspanError(f"--parts {model} is of the kind {kind}, which no fusion can hold")
    return models


def list_candidates(spec: str, columns: str | None = None) -> list[str]:
    """Returns the distinct candidates of all splits, whose words BM25 counts; their labels do not matter to it."""
    texts: dict[str, None] = {}
    for split in ("train", "dev", "test"):
        try:
            data = load_split(spec, split, parse_columns(columns))
        except MissingSplit:
            continue
        texts |= dict.fromkeys(data.answers.unique().to_pylist())
    return list(texts)


def score_parts(
    models: Mapping[str, str], data: AnswerSet, words: WordCounts, max_length: int | None
) -> dict[str, np.ndarray]:
    """Returns the scores of each part, ``[N]``."""
    return {
        name: score_bm25_by(words, data) if name == BM25 else score_answers(model, data, max_length)
        for name, model in models.items()
    }
