"""Learns the weights of a fusion and writes its folder, see ``ranking.fusion``."""

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from data_pipeline.core.default_model import list_versions, name_installed
from data_pipeline.core.errors import KinspanError
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.data.dataset import MissingSplit
from finetune.data.filters import CLEAN, find_overlaps
from finetune.data.registry import load_filtered, load_split, parse_columns
from finetune.evaluation.bm25 import BM25, WordCounts, count_words, score_bm25_by
from finetune.evaluation.comparison import compare_systems, format_table
from finetune.evaluation.metrics import MAP, METRICS, TITLES, compute_means, compute_question_metrics
from pretrain.modeling.adapters.folder import is_adapter
from pretrain.release.card import CardOverrides, make_metadata, render_card
from pretrain.release.folder import CARD, FACTS, expect_release_or_nothing, fingerprint_model, replace_release

from .fusion import FUSION, WORDS, FusedRanker, describe_fusion, is_fusion, split_folds
from .model import score_answers

log = logging.getLogger(__name__)

FOLDS = 5
STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0)  # of the regularisation: scikit-learn's C, small is strong
NAME = "the fusion"
# Files of a hub's repository that no PyTorch model is loaded from
NOT_NEEDED = ("*.onnx", "*.h5", "*.ot", "*.msgpack", "onnx/*", "openvino/*", "coreml/*")
NOT_COPIED = ("ranker.json", "*.tmp")  # of a part's folder


@dataclass(frozen=True)
class Fitted:
    """A fitted fusion.

    weights, means, scales: of the parts, in their order
    strength:    of the regularisation, one of STRENGTHS; 0 where nothing was fitted
    out_of_fold: ``[N]`` score of every candidate, by weights that were fitted on other questions
    """

    names: Sequence[str]
    weights: np.ndarray
    means: np.ndarray
    scales: np.ndarray
    intercept: float
    strength: float
    out_of_fold: np.ndarray

    def score(self, scores: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the fused scores, ``[N]``, of each part's scores."""
        features = np.stack([scores[name] for name in self.names], axis=1)
        return (features - self.means) / self.scales @ self.weights + self.intercept


def fit_fusion(data: AnswerSet, scores: Mapping[str, np.ndarray]) -> Fitted:
    """Fits a logistic regression of the labels over the parts' scores.

    The strength of the regularisation is the one whose out-of-fold MAP is highest; of equals, the weakest. Scores are
    standardised over all candidates: within each question was no better on SelQA and WikiQA, and a candidate's score
    would then depend on the others.

    Raises KinspanError where there are fewer questions than folds.
    """
    if data.num_questions < FOLDS:
        raise KinspanError(f"{data.name} {data.split}: {data.num_questions} questions are too few to learn weights")
    features = np.stack(list(scores.values()), axis=1)
    means, scales = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-9)
    features, fold_of = (features - means) / scales, split_folds(data.num_questions, FOLDS)[data.question_of]
    tried = {strength: score_out_of_fold(features, data.labels, fold_of, strength) for strength in STRENGTHS}
    best = max(tried, key=lambda strength: (measure_map(data, tried[strength]), strength))
    model = LogisticRegression(C=best).fit(features, data.labels)
    return Fitted(list(scores), model.coef_[0], means, scales, float(model.intercept_[0]), best, tried[best])


def single_ranker_fusion(name: str, scores: np.ndarray) -> Fitted:
    """Returns a fusion of one part, whose scores ``[N]`` are the part's own.

    A weight that was learned could turn its order around: one that ranks every question well may score the wrong
    answers of some questions higher than the right ones of others.
    """
    return Fitted([name], np.ones(1), np.zeros(1), np.ones(1), 0.0, 0.0, scores)


def score_out_of_fold(features: np.ndarray, labels: np.ndarray, fold_of: np.ndarray, strength: float) -> np.ndarray:
    """Returns the score of every candidate, ``[N]``, by weights that were fitted on the other folds."""
    out = np.empty(len(labels))
    for fold in range(FOLDS):
        held_out = fold_of == fold
        model = LogisticRegression(C=strength).fit(features[~held_out], labels[~held_out])
        out[held_out] = model.decision_function(features[held_out])
    return out


def measure_map(data: AnswerSet, scores: np.ndarray) -> float:
    """Returns the mean average precision."""
    return compute_means(compute_question_metrics(data, scores, (MAP,)))[MAP]


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
    dev = _load(spec, "dev", columns)
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
        test = _load(spec, "test", columns)
    except MissingSplit as error:
        log.warning("%s: nothing else measures the fusion", error)
    else:
        for overlap in find_overlaps([dev, test]):
            log.warning("%s: the fusion knows their answers, and its figures on test are too high", overlap)
        of_test = score_parts(models, test, words, max_length)
        every = {**of_test, NAME: fitted.score(of_test)}
        ordered = sorted(every, key=lambda name: -maps[name])  # the best on dev first, which others are compared with
        systems = {name: compute_question_metrics(test, every[name]) for name in ordered}
        figures["test"] = compute_means(systems[NAME])
        for name in models:
            if compute_means(systems[name])[MAP] > figures["test"][MAP]:
                log.warning("MAP of %s is above that of the fusion on test", name)
        tables += [f"\n{test.name} test: {test.num_questions:,} questions", format_table(compare_systems(systems))]
    write_fusion(output, fitted, models, words, {"data": spec.partition("=")[0], "figures": figures}, max_length)
    return "\n".join([*tables, f"\n{output}: {describe_weights(fitted)}"])


def _load(spec: str, split: str, columns: str | None) -> AnswerSet:
    return load_filtered(spec, split, CLEAN, parse_columns(columns))


def name_models(parts: Sequence[str]) -> dict[str, str]:
    """Returns the models by names for people. Raises KinspanError for what can be no part."""
    places = [BM25 if part.lower() == BM25.lower() else part for part in parts]
    names = [shorten_name(name_installed(place)) for place in places]
    models = {place if names.count(name) > 1 else name: place for name, place in zip(names, places, strict=True)}
    if len(models) < 2 or len(models) < len(parts):
        raise KinspanError(f"--parts {' '.join(parts)}: give two rankers or more, each once")
    for name, model in models.items():
        if name != BM25 and is_adapter(model):
            raise KinspanError(f"--parts {model}: is an adapter: merge it into its base first")
        if name != BM25 and is_fusion(model):
            raise KinspanError(f"--parts {model}: is a fusion: name its parts")
    return models


def list_candidates(spec: str, columns: str | None = None) -> list[str]:
    """Returns the distinct candidates of all splits, whose words BM25 counts; their labels do not matter to it."""
    texts: dict[str, None] = {}
    for split in ("train", "dev", "test"):
        try:
            data = load_split(spec, split, parse_columns(columns))
        except MissingSplit:
            continue
        texts |= dict.fromkeys(chain.from_iterable(chunk.to_pylist() for chunk in [data.answers.unique()]))
    return list(texts)


def score_parts(
    models: Mapping[str, str], data: AnswerSet, words: WordCounts, max_length: int | None
) -> dict[str, np.ndarray]:
    """Returns the scores of each part, ``[N]``."""
    return {
        name: score_bm25_by(words, data) if name == BM25 else score_answers(model, data, max_length)
        for name, model in models.items()
    }


def describe_weights(fitted: Fitted) -> str:
    """Returns the weights of the standardised scores, for people."""
    return ", ".join(f"{weight:.2f} {name}" for name, weight in zip(fitted.names, fitted.weights, strict=True))


def write_fusion(
    output: Path,
    fitted: Fitted,
    models: Mapping[str, str],
    words: WordCounts,
    about: Mapping[str, Any],
    max_length: int | None = None,
) -> None:
    """Writes the folder of a fusion, in which it is complete: the models of its parts are copied.

    models:     where the model of each part is
    about:      ``data``, the name of the data set, and ``figures``, by split
    max_length: what the parts were scored with

    Raises KinspanError where ``output`` holds something that is no release.
    """
    parts = []
    with replace_release(output) as partial:
        partial.mkdir(parents=True)
        for number, name in enumerate(fitted.names):
            folder, fingerprint, length = "", "", None
            if name != BM25:
                folder, length = f"part-{number + 1}", max_length
                ignored = shutil.ignore_patterns(*NOT_COPIED)
                shutil.copytree(_find_folder(models[name]), partial / folder, ignore=ignored)
                fingerprint = fingerprint_model(str(partial / folder))
            weight, mean, scale = (float(of[number]) for of in (fitted.weights, fitted.means, fitted.scales))
            parts.append(FusedRanker(name, folder, weight, mean, scale, fingerprint, length))
        _write_json(partial / FUSION, describe_fusion(parts, fitted.intercept))
        if BM25 in fitted.names:
            _write_json(partial / WORDS, asdict(words), indent=None)
        _write_json(partial / FACTS, {**about, "kind": "fusion", "kinspan": list_versions()["kinspan"]})
        (partial / CARD).write_text(_format_card(fitted, about), encoding="utf-8")


def _find_folder(model: str) -> str:
    """Returns where the files of a model are; one of the hub is downloaded unless it is in the cache."""
    if Path(model).is_dir():
        return model
    from huggingface_hub import snapshot_download

    return snapshot_download(model, ignore_patterns=list(NOT_NEEDED))


def _write_json(path: Path, content: Mapping[str, Any], indent: int | None = 1) -> None:
    path.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def _format_card(fitted: Fitted, about: Mapping[str, Any]) -> str:
    title, figures = f"Learned fusion for {about['data']}", about["figures"]
    tags = ["fusion", "answer-sentence-selection", "kinspan"]
    return render_card(
        "fusion.md",
        make_metadata(CardOverrides(), tags, library=None),
        CardOverrides(),
        title=title,
        weights=dict(zip(fitted.names, fitted.weights.tolist(), strict=True)),
        figures=figures,
        titles={metric: TITLES[metric] for metric in METRICS},
        folds=FOLDS,
    )
