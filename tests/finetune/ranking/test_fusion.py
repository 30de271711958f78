"""Learned fusions: what is learned, what the folder scores, and which folders are refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.registry import load_split
from finetune.evaluation.bm25 import BM25, count_words, score_bm25_by
from finetune.ranking.fusion import (
    FOLDS,
    WORDS,
    combine,
    fit_fusion,
    measure_map,
    read_parts,
    reciprocal_ranks,
    score_out_of_fold,
    single_ranker_fusion,
    split_folds,
    standardise,
    write_fusion,
)
from finetune.ranking.kinds import FUSION_FILE
from finetune.ranking.model import load_model, score_answers
from serve.search import ReRanker


@pytest.fixture(scope="module")
def data(write_sets, answer_set):
    return answer_set(write_sets(dev=40, candidates=6), "dev")


@pytest.fixture(scope="module")
def folder(write_sets):
    return write_sets(train=5, dev=30, test=10, candidates=5)


@pytest.fixture(scope="module")
def fused(folder, make_model, tmp_path_factory):
    """The folder of a fusion of BM25, a bi-encoder and a cross-encoder, whose own folders are gone; the test questions;
    and what each part scored on them."""
    models = tmp_path_factory.mktemp("models")
    shutil.copytree(make_model(headless=True), models / "finder")
    shutil.copytree(make_model(initializer_range=0.3), models / "reader")
    parts = {BM25: BM25, "finder": str(models / "finder"), "reader": str(models / "reader")}
    dev, test = (load_split(f"files={folder}", split) for split in ("dev", "test"))
    words = count_words(dev.answers.unique().to_pylist())

    def score(data):
        return {
            name: score_bm25_by(words, data) if name == BM25 else score_answers(model, data)
            for name, model in parts.items()
        }

    fitted = fit_fusion(dev, score(dev))
    figures = {"dev": {"map": measure_map(dev, fitted.out_of_fold)}}
    write_fusion(models.parent / "fused", fitted, parts, words, {"data": "files", "figures": figures})
    scores = score(test)
    shutil.rmtree(models)
    return models.parent / "fused", test, scores


def test_what_tells_right_from_wrong_gets_the_weight(data):
    """Of a good part, noise and a part on another scale that adds to it; the fusion is better than each on questions
    that it was not fitted on."""
    random = np.random.default_rng(1)
    noise = random.normal(size=(3, data.num_pairs))
    scores = {
        "good": 100 + 50 * (data.labels + 0.8 * noise[0]),
        "noise": noise[1],
        "small": 1e-3 * (data.labels + 0.8 * noise[2]),
    }
    fitted = fit_fusion(data, scores)
    weights = dict(zip(fitted.names, fitted.weights, strict=True))
    assert min(weights["good"], weights["small"]) > 5 * abs(weights["noise"])
    assert measure_map(data, fitted.out_of_fold) > max(measure_map(data, own) for own in scores.values())
    assert fit_fusion(data, {**scores, "constant": np.ones(data.num_pairs)}).weights[3] == 0


def test_a_part_alone_keeps_its_order(data):
    """Scores that rank each question well, and are lower where a right answer is likely."""
    short = data.question_of % 2 == 0
    scores = data.labels + np.where(short, 0.0, 9.0)
    some = data.keep((data.labels == 1) | ~short | (data.question_of != np.append(-1, data.question_of[:-1])))
    kept = np.isin(data.answer_ids.to_pylist(), some.answer_ids.to_pylist())
    few = scores[kept]
    assert measure_map(some, few) == 1
    assert measure_map(some, fit_fusion(some, {"a": few}).score({"a": few})) < 1
    np.testing.assert_array_equal(single_ranker_fusion("a", few).score({"a": few}), few)


def test_scores_out_of_fold_have_not_seen_their_labels(data):
    features = np.random.default_rng(2).normal(size=(data.num_pairs, 2))
    fold_of = split_folds(data.num_questions, FOLDS)[data.question_of]
    flipped = np.where(fold_of == 0, 1 - data.labels, data.labels)
    before, after = (score_out_of_fold(features, labels, fold_of, 1.0) for labels in (data.labels, flipped))
    np.testing.assert_array_equal(before[fold_of == 0], after[fold_of == 0])
    assert (before[fold_of == 1] != after[fold_of == 1]).all()


def test_too_few_questions_are_refused(data):
    few = data.take(np.arange(4))
    with pytest.raises(KinspanError, match="4 questions"):
        fit_fusion(few, {"a": np.zeros(few.num_pairs)})


def test_the_folder_scores_as_its_parts_do_wherever_it_lies(fused):
    """Whatever else is scored, too, so that a search ranks as the evaluation did."""
    output, test, of_parts = fused
    parts, intercept = read_parts(output)
    expected = intercept + sum(part.weight * (of_parts[part.name] - part.mean) / part.scale for part in parts)
    scores = score_answers(str(output), test)
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    texts = test.answers.to_pylist()
    found = ReRanker(str(output)).score(test.questions[1:2], [texts[5:10]])
    np.testing.assert_allclose(found[0], scores[5:10], atol=1e-4)


def test_cut_pairs_are_counted_once(fused):
    output, test, _ = fused
    model = load_model(str(output), 16)
    model.score(test)
    assert 0 < model.num_cut <= model.num_pairs == test.num_pairs


def test_parts_are_standardised_within_each_question():
    starts = np.array([0, 3, 3, 4, 7])
    scores = np.array([1.0, 2.0, 3.0, 5.0, 0.1 + 0.2, 0.3, 0.3])
    scaled = standardise(scores, starts)
    assert scaled[:3] == pytest.approx(np.sqrt(1.5) * np.array([-1, 0, 1]))
    assert not scaled[3:].any()  # one candidate, and scores that differ by rounding
    assert combine({"a": scores, "b": -scores}, {"a": 1.0, "b": 0.5}, starts, False) == pytest.approx(scaled / 2)


def test_ranks_do_not_depend_on_the_order_of_rows():
    starts, scores = np.array([0, 4, 6]), np.array([0.0, 7.0, 0.0, 0.0, 1.0, 2.0])
    ranks = reciprocal_ranks(scores, starts)
    assert ranks == pytest.approx([1 / 64, 1 / 61, 1 / 64, 1 / 64, 1 / 62, 1 / 61])
    assert combine({"a": scores, "b": scores}, {"a": 0.25, "b": 0.75}, starts, True) == pytest.approx(ranks)
    order = [3, 1, 0, 2, 5, 4]
    np.testing.assert_array_equal(reciprocal_ranks(scores[order], starts), ranks[order])


def rewrite(folder: Path, **changed) -> None:
    (folder / FUSION_FILE).write_text(json.dumps(json.loads((folder / FUSION_FILE).read_text()) | changed))


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (lambda folder: (folder / FUSION_FILE).write_text("{"), FUSION_FILE),
        (lambda folder: (folder / WORDS).unlink(), WORDS),
        (
            lambda folder: rewrite(folder, parts=[{"name": "x", "folder": "../x", "weight": 1, "mean": 0, "scale": 1}]),
            FUSION_FILE,
        ),
        (lambda folder: shutil.rmtree(folder / "part-2"), FUSION_FILE),
        (lambda folder: rewrite(folder, format=99), FUSION_FILE),
    ],
    ids=["json", "words", "astray", "part", "newer"],
)
def test_a_damaged_folder_is_refused(fused, tmp_path, damage, file):
    output, test, _ = fused
    shutil.copytree(output, tmp_path / "copy")
    damage(tmp_path / "copy")
    with pytest.raises(KinspanError, match=file):
        score_answers(str(tmp_path / "copy"), test)
