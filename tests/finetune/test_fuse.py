"""Learned fusions: what is learned, what the folder scores, and what is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from finetune import fuse
from finetune.data.registry import load_split
from finetune.evaluation.bm25 import count_words
from finetune.fuse import (
    FOLDS,
    fit_fusion,
    fuse_file,
    list_candidates,
    measure_map,
    name_models,
    score_out_of_fold,
    score_parts,
    single_ranker_fusion,
    write_fusion,
)
from finetune.measure import measure_models
from finetune.ranking.fusion import FUSION, WORDS, read_parts
from finetune.ranking.score import score_answers
from finetune.training.search import split_folds
from serve.rerank import ReRanker


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
    parts = name_models(["bm25", str(models / "finder"), str(models / "reader")])
    words = count_words(list_candidates(f"files={folder}"))
    dev, test = (load_split(f"files={folder}", split)[0] for split in ("dev", "test"))
    fitted = fit_fusion(dev, score_parts(parts, dev, words, None, print))
    figures = {"dev": {"map": measure_map(dev, fitted.out_of_fold)}}
    write_fusion(models.parent / "fused", fitted, parts, words, {"data": "files", "figures": figures})
    scores = score_parts(parts, test, words, None, print)
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
    with pytest.raises(KinspanError, match="4 questions with right and wrong answers are too few"):
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


def test_parts_read_as_many_tokens_as_the_weights_were_learned_at(data, make_model, tmp_path):
    parts = name_models(["bm25", str(make_model(headless=True))])
    words = count_words(data.answers.unique().to_pylist())
    scores, whole = (score_parts(parts, data, words, length, print) for length in (8, None))
    assert all((scores[name] == whole[name]).all() == (name == "BM25") for name in parts)
    fitted = fit_fusion(data, scores)
    about = {"data": "files", "figures": {"dev": {"map": 0.5}}}
    write_fusion(tmp_path / "fused", fitted, parts, words, about, 8)
    np.testing.assert_allclose(score_answers(str(tmp_path / "fused"), data), fitted.score(scores), atol=1e-4)


def test_it_is_measured_like_any_ranker(fused, folder, capsys):
    output, _, _ = fused
    measure_models([str(output)], f"files={folder}", split="test", eval_filter="clean", as_json=True)
    said = capsys.readouterr().out
    assert "is a fusion:" in said
    found = json.loads(said.splitlines()[-1])
    assert len(found["fingerprints"]["model"]) == 16
    card = (output / "README.md").read_text()
    assert "BM25" in card
    assert "| dev |" in card


def test_cut_pairs_are_counted_once(fused):
    output, test, _ = fused
    said = []
    score_answers(str(output), test, 16, say=said.append)
    assert sum(" cut" in line and "test:" in line for line in said) == 1


def see_labels(name, data, max_length, say):
    """The labels through noise, another one for each length of name."""
    return data.labels + 0.6 * np.random.default_rng(len(Path(name).name) + data.num_pairs).normal(size=data.num_pairs)


def test_it_is_written_where_it_is_better_than_each_part(folder, make_model, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(fuse, "score_answers", see_labels)
    for name in ("a", "bb"):
        shutil.copytree(make_model(headless=True), tmp_path / name)
    fuse_file([str(tmp_path / "a"), str(tmp_path / "bb")], f"files={folder}", tmp_path / "out", None, None, print)
    said = capsys.readouterr().out
    assert "against" in said  # the table of the test questions
    assert "share" not in said
    assert {part.name for part in read_parts(tmp_path / "out")[0]} == {"a", "bb"}


def test_test_questions_that_the_weights_know_are_said(write_sets, monkeypatch, tmp_path):
    folder, said = write_sets(dev=30, candidates=5), []
    shutil.copy(folder / "dev.jsonl", folder / "test.jsonl")
    monkeypatch.setattr(fuse, "score_answers", see_labels)
    monkeypatch.setattr(fuse, "name_models", lambda parts: {"a": "a", "bb": "bb"})
    monkeypatch.setattr(fuse, "write_fusion", lambda *_: None)
    fuse_file(["a", "bb"], f"files={folder}", tmp_path / "out", None, None, said.append)
    assert any("share 30 of 30 and 30 questions" in line for line in said)


def test_a_fusion_that_is_below_a_part_on_test_and_questions_that_are_left_out_are_said(
    write_sets, monkeypatch, tmp_path
):
    folder, said = write_sets(dev=30, test=20, candidates=5), []
    with (folder / "test.jsonl").open("a") as file:
        file.write(
            json.dumps({"question_id": "q", "answer_id": "a", "question": "?", "answer": "no", "label": 0}) + "\n"
        )

    def score(name, data, max_length, say):
        noisy = data.split == "dev" or name == "a"
        return see_labels(name, data, max_length, say) if noisy else data.labels.astype(float)

    monkeypatch.setattr(fuse, "score_answers", score)
    monkeypatch.setattr(fuse, "name_models", lambda parts: {"a": "a", "bb": "bb"})
    monkeypatch.setattr(fuse, "write_fusion", lambda *_: None)
    fuse_file(["a", "bb"], f"files={folder}", tmp_path / "out", None, None, said.append)
    assert "files test: 1 of 21 questions lack a right or a wrong candidate, and are left out" in said
    assert any(line.endswith("is below that of bb, 1.0000: rank by bb, or label more dev questions") for line in said)


def test_a_fusion_that_is_no_better_is_not_written(folder, make_model, tmp_path):
    model = make_model(headless=True)
    with pytest.raises(KinspanError, match=r"no fusion is written: on dev .* alone has a MAP of"):
        fuse_file(["bm25", str(model)], f"files={folder}", tmp_path / "out", None, None, lambda line: None)
    assert not (tmp_path / "out").exists()
    with pytest.raises(KinspanError, match=r"--output_dir .* holds something that is no release"):  # before the work
        fuse_file(["bm25", str(model)], f"files={folder}", folder, None, None, lambda line: None)


def test_a_part_that_cannot_be_loaded_is_named_without_a_flag_that_was_not_given(folder, make_model, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(make_model(headless=True), broken)
    (broken / "model.safetensors").unlink()
    with pytest.raises(KinspanError, match=rf"^{broken} cannot be loaded"):
        fuse_file(["bm25", str(broken)], f"files={folder}", tmp_path / "out", None, None, lambda line: None)


@pytest.mark.parametrize(
    ("parts", "message"), [(["bm25"], "two rankers or more"), (["bm25", "BM25"], "two rankers or more, each once")]
)
def test_parts_that_are_refused(parts, message):
    with pytest.raises(KinspanError, match=message):
        name_models(parts)


def test_a_fusion_is_no_part(fused):
    with pytest.raises(KinspanError, match="is a fusion: name its parts"):
        name_models(["bm25", str(fused[0])])


def _break_json(folder: Path) -> None:
    (folder / FUSION).write_text("{")


def _forget_words(folder: Path) -> None:
    (folder / WORDS).unlink()


def _lead_astray(folder: Path) -> None:
    found = json.loads((folder / FUSION).read_text())
    found["parts"][1]["folder"] = "../elsewhere"
    (folder / FUSION).write_text(json.dumps(found))


def _lose_part(folder: Path) -> None:
    shutil.rmtree(folder / "part-2")


def _be_newer(folder: Path) -> None:
    (folder / FUSION).write_text(json.dumps({"format": 99}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_break_json, "fusion.json is damaged"),
        (_forget_words, "words.json cannot be read"),
        (_lead_astray, r"is not in the folder '../elsewhere' beside it"),
        (_lose_part, "is not in the folder 'part-2' beside it"),
        (_be_newer, "has format 99"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(fused, tmp_path, damage, message):
    output, test, _ = fused
    shutil.copytree(output, tmp_path / "copy")
    damage(tmp_path / "copy")
    with pytest.raises(KinspanError, match=message) as raised:
        score_answers(str(tmp_path / "copy"), test)
    assert len(str(raised.value).splitlines()) == 1
