"""Fusions: how scores are added up, what the folder scores and who loads it, and which folders are refused."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer

from data_pipeline.core.errors import KinspanError
from finetune.data.passages import Paragraphs
from finetune.evaluation.bm25 import BM25, count_words, score_bm25
from finetune.evaluation.config import EvaluateConfig
from finetune.evaluation.metrics import MAP
from finetune.ranking.fusion import combine, reciprocal_ranks, standardise, write_fusion
from finetune.ranking.kinds import BI_ENCODER as FINDER
from finetune.ranking.kinds import CROSS_ENCODER as READER
from finetune.ranking.kinds import FUSION_FILE, MODULES, WORDS, can_embed
from finetune.ranking.measure import measure_search
from finetune.ranking.model import load_model, score_answers
from finetune.ranking.ranker import load_ranker
from launch.kinspan import run_command, show
from pretrain.release.card import CANDIDATES, EXAMPLE_FOLDER, QUESTION
from pretrain.release.folder import CARD
from serve.search import ReRanker
from tests.fake_hub import find_faults

WEIGHTS = {BM25: 0.2, FINDER: 0.3, READER: 0.5}


@pytest.fixture(scope="module")
def test_set(write_sets, answer_set):
    return answer_set(write_sets(test=10, candidates=5), "test")


@pytest.fixture(scope="module")
def release(test_set, tmp_path_factory):
    """``release(bi_encoder, cross_encoder, by_rank=False, **weights)``: the folder of a fusion."""

    def write(bi_encoder=None, cross_encoder=None, by_rank=False, **weights):
        output = tmp_path_factory.mktemp("fusion") / "release"
        models = {"bi_encoder": bi_encoder and str(bi_encoder), "cross_encoder": cross_encoder and str(cross_encoder)}
        words, about = count_words(test_set.answers.to_pylist()), {"data": "files", "figures": {"test": {MAP: 0.5}}}
        write_fusion(output, **models, weights=weights, by_rank=by_rank, words=words, about=about)
        return output

    return write


@pytest.fixture(scope="module")
def fused(release, make_model, test_set, tmp_path_factory):
    """The folder of a fusion of all parts, whose own folders are gone; the test questions; and each part's scores."""
    models = tmp_path_factory.mktemp("models")
    finder = shutil.copytree(make_model(headless=True), models / "finder")
    reader = shutil.copytree(make_model(initializer_range=0.3), models / "reader")
    output = release(finder, reader, **WEIGHTS)
    scores = {BM25: score_bm25(test_set)}
    scores |= {name: score_answers(str(model), test_set) for name, model in ((FINDER, finder), (READER, reader))}
    shutil.rmtree(models)
    return output, test_set, scores


def test_the_folder_scores_as_its_parts_do_wherever_it_lies(fused):
    """Whatever other questions are scored, too, so that a search ranks as the evaluation did."""
    output, test, of_parts = fused
    scores = score_answers(str(output), test)
    np.testing.assert_allclose(scores, combine(of_parts, WEIGHTS, test.starts, False), atol=1e-4)
    found = ReRanker(str(output)).score(test.questions[1:2], [test.answers.to_pylist()[5:10]])
    np.testing.assert_allclose(found[0], scores[5:10], atol=1e-4)


def test_a_search_is_measured_by_the_fusions_own_bi_encoder(fused):
    output, test, _ = fused
    texts = list(dict.fromkeys(test.answers.to_pylist()))
    paragraphs = Paragraphs(texts, [("", "")] * len(texts), [""] * len(texts))
    config = EvaluateConfig(model=[str(output)], depth=3, json=True)
    *_, figures = measure_search(config, test.keep(test.labels == 1), {}, paragraphs)
    assert json.loads(figures)["systems"][0]["r@10"] < 1  # what no search found has no rank
    assert [row["name"] for row in json.loads(figures)["systems"]][:2] == [str(output), f"the bi-encoder of {output}"]


def test_sentence_transformers_loads_both_models(fused):
    output, test, of_parts = fused
    bi_encoder, cross_encoder = SentenceTransformer(str(output)), CrossEncoder(str(output / READER))
    answers = bi_encoder.encode_document(test.answers.to_pylist())
    queries = bi_encoder.encode_query(list(test.questions))[test.question_of]
    cosines = bi_encoder.similarity_pairwise(queries, answers)
    np.testing.assert_allclose(cosines, of_parts[FINDER], atol=1e-4)
    pairs = [(test.questions[q], text.as_py()) for q, text in zip(test.question_of, test.answers, strict=True)]
    logits = cross_encoder.predict(pairs, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(logits, of_parts[READER], atol=1e-4)


def test_a_fusion_is_not_trained(fused):
    with pytest.raises(KinspanError, match="--model"):
        load_ranker(str(fused[0]))


def test_a_bi_encoder_may_be_there_for_the_first_stage_alone_or_not_at_all(fused, release, make_model):
    output, test, of_parts = fused
    for bi_encoder, can in ((make_model(headless=True), True), (None, False)):
        alone = release(bi_encoder, output / READER, **{READER: 1.0})
        expected = standardise(of_parts[READER], test.starts)
        np.testing.assert_allclose(score_answers(str(alone), test), expected, atol=1e-4)
        assert can_embed(str(alone)) == can
        assert (alone / MODULES).is_file() == can


def test_the_code_of_the_card_runs_as_it_stands(fused, tmp_path, monkeypatch, capsys):
    """It comes first, and names ``path/to/this/folder``."""
    output, _, _ = fused
    shutil.copytree(output, tmp_path / EXAMPLE_FOLDER)
    (tmp_path / "my-documents").mkdir()
    (tmp_path / "my-documents/cats.txt").write_text(" ".join(CANDIDATES) * 3)
    rows = [{"question": QUESTION, "answer": text, "label": n} for n, text in enumerate(CANDIDATES)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    card = (output / CARD).read_text()
    assert not find_faults(card)
    *codes, commands = re.findall(r"```\w+\n(.*?)```", card, re.DOTALL)
    assert len(codes) == 2
    for code in codes:
        exec(code, {})
    for line in commands.splitlines():
        monkeypatch.setattr("sys.argv", shlex.split(line))
        show(run_command())
    said = capsys.readouterr().out
    assert "tensor([[" in said
    assert "'corpus_id': " in said
    assert "cats.txt#1" in said


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
        (lambda folder: rewrite(folder, weights={"../x": 1}), FUSION_FILE),
        (lambda folder: rewrite(folder, by="chance"), FUSION_FILE),
        (lambda folder: shutil.rmtree(folder / READER), READER),
        (lambda folder: rewrite(folder, format=2), FUSION_FILE),
    ],
    ids=["json", "words", "astray", "way", "part", "older"],
)
def test_a_damaged_folder_is_refused(fused, tmp_path, damage, file):
    output, test, _ = fused
    shutil.copytree(output, tmp_path / "copy")
    damage(tmp_path / "copy")
    with pytest.raises(KinspanError, match=file):
        score_answers(str(tmp_path / "copy"), test)
