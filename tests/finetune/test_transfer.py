"""The matrix of sources and targets: cells, baselines, page and entry."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from finetune.data.registry import load_split
from finetune.evaluation.metrics import MAP, P_1, compute_question_metrics
from finetune.transfer import matrix as module
from finetune.transfer.domains import embed_domains, read_questions
from finetune.transfer.matrix import Matrix, average_best, load_targets, measure_matrix, score_tf_idf
from finetune.transfer.page import format_csv, format_table, render_page
from launch.commands.transfer_matrix import check_names, read_names


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    """Two targets of four questions; the right candidate of the first shares its words with the question."""
    folder = tmp_path_factory.mktemp("targets")
    for name in ("plain", "odd"):
        lines = []
        for n in range(4):
            for k in range(3):
                words = f"river{n} mountain{n}" if (k == n % 3) == (name == "plain") else f"cloud{n}{k} stone"
                question = f"where is river{n} mountain{n}"
                lines.append({"question": question, "answer": f"{words} x{k}", "label": int(k == n % 3)})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {name: f"files={folder / name}.jsonl" for name in ("plain", "odd")}


@pytest.fixture
def targets(specs):
    return load_targets(specs, "test", {"odd"})


@pytest.fixture
def scored(monkeypatch):
    """Scores that depend on the model's name alone, and what was asked for."""
    asked = []

    def score(model, data, max_length):
        asked.append((Path(model).name, data.num_pairs))
        rng = np.random.default_rng(len(Path(model).name))
        return data.labels * (1.0 if "good" in model else 0.0) + 0.1 * rng.random(data.num_pairs)

    monkeypatch.setattr(module, "score_answers", score)
    return asked


def make_models(folder, *names):
    for name in names:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps({"name": name}))
    return {name: str(folder / name) for name in names}


def test_cells_are_measured_once(targets, scored, tmp_path):
    sources = make_models(tmp_path, "good", "bad")
    measure = lambda s: measure_matrix(s, targets, {}, tmp_path / "cells", 64, lambda note: None)  # noqa: E731
    first = measure(sources)
    assert first.values.shape == (2, 2)
    assert first.values[0].tolist() == [1.0, 1.0]
    assert len(scored) == 4
    again = measure(sources | make_models(tmp_path, "third"))
    assert len(scored) == 6
    assert np.array_equal(again.values[:2], first.values)
    (tmp_path / "bad/config.json").write_text("{}")  # another model under the same name
    measure(sources)
    assert len(scored) == 8


def test_each_target_has_its_metric(targets, scored, tmp_path):
    found = measure_matrix(make_models(tmp_path, "bad"), targets, {}, tmp_path / "cells", 64, lambda note: None)
    assert [target.metric for target in targets] == [MAP, P_1]
    for column, target in enumerate(targets):
        scores = module.score_answers("bad", target.data, 64)
        figures = compute_question_metrics(target.data, scores)
        assert found.values[0, column] == pytest.approx(figures[target.metric].mean())


def test_baselines_know_words_alone(targets, scored, tmp_path):
    found = measure_matrix(
        make_models(tmp_path, "bad"), targets, make_models(tmp_path, "odd"), tmp_path / "cells", 64, lambda note: None
    )
    for name in (module.BM25, module.TF_IDF):
        assert found.baselines[name][0] == 1.0  # the right candidate has the question's words
        assert found.baselines[name][1] == 0.0  # and here the wrong ones have them
    assert np.isnan(found.baselines[module.IN_DOMAIN]).tolist() == [True, False]


def test_a_sample_of_questions_is_always_the_same(specs):
    whole, few, again = (load_targets(specs, "test", set(), count)[0].data for count in (None, 2, 2))
    assert (whole.num_questions, few.num_questions, few.num_pairs) == (4, 2, 6)
    assert list(few.questions) == list(again.questions)
    assert set(few.question_ids) < set(whole.question_ids)
    assert load_targets(specs, "test", set(), 9)[0].data.num_questions == 4


def test_tf_idf_of_candidates_without_words(specs):
    data, _ = load_split(specs["plain"], "test")
    assert score_tf_idf(data).shape == (data.num_pairs,)


def test_the_k_best():
    values = np.array([0.2, 0.8, 0.5])
    assert average_best(values, np.argsort(-values)).tolist() == pytest.approx([0.8, 0.65, 0.5])


def make_matrix(targets, count=4):
    values = np.random.default_rng(0).random((count, len(targets)))
    baselines = {"BM25": np.array([0.4] * len(targets)), "in-domain": np.array([np.nan] * len(targets))}
    return Matrix([f"forum{n} <b>" for n in range(count)], targets, values, baselines)


def test_page_and_csv_say_the_same(targets):
    found = make_matrix(targets)
    sizes, similarity = np.array([10, 2000, 300, 40]), np.random.default_rng(1).random((4, 2))
    page = render_page("Transfer", found, sizes, similarity, {})
    assert page.count('role="img"') == 3
    assert "forum0 &lt;b&gt;" in page
    assert "forum0 <b>" not in page
    assert "72.4" in page  # the paper's
    rows = list(csv.DictReader(io.StringIO(format_csv(found, sizes, similarity))))
    assert len(rows) == 4 * 2 + 2  # an in-domain model that is not there has no line
    for row in rows:
        assert f"{float(row['value']):.3f}" in page
    assert [row["size"] for row in rows[:4]] == ["10", "2000", "300", "40"]
    text = format_table(found).splitlines()
    assert [line.split("  ")[0] for line in text[1:5]] == found.sources
    assert "plain MAP" in text[0]


@pytest.mark.parametrize("count", [1, 2])
def test_a_page_of_few_sources(targets, count):
    page = render_page("Transfer", make_matrix(targets, count), None, None, {})
    assert page.count('role="img"') == (1 if count == 2 else 0)


def test_questions_without_a_right_or_a_wrong_candidate_are_left_out(tmp_path):
    labels = {"none": (0, 0), "all": (1, 1), "some": (0, 1)}
    lines = [
        {"question": f"what is {name}", "answer": f"it is {name} {k}", "label": label}
        for name, given in labels.items()
        for k, label in enumerate(given)
    ]
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    target = load_targets({"odd": f"files={tmp_path / 'odd.jsonl'}"}, "test", set())[0]
    assert list(target.data.questions) == ["what is some"]


def test_questions_of_a_corpus_are_its_titles_and_first_paragraphs(tiny_corpus):
    found = read_questions(Corpus(tiny_corpus))
    corpus = Corpus(tiny_corpus)
    of_training = [info.documents for info in corpus.manifest.shards if info.split == "train"]
    assert 0 < sum(of_training) < sum(info.documents for info in corpus.manifest.shards)
    # Documents are drawn with replacement, and those that are held out are left out
    assert 0.5 * sum(of_training) < len(found) < sum(info.documents for info in corpus.manifest.shards)
    assert all(len(text.split()) > 3 for text in found)


def test_alike_domains_are_near(monkeypatch):
    found = embed_domains(
        {
            "beer": ["How is ale brewed?", "Which hops are in a lager?"],
            "wine": ["How long does a red wine keep?", "Which beer goes with cheese?"],
            "maths": ["How is a matrix inverted?", "What is the integral of this function?"],
        }
    )
    assert found["beer"] @ found["wine"] > found["beer"] @ found["maths"]
    assert np.linalg.norm(found["beer"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("texts", "message"),
    [(["beer"], "write NAME=FOLDER"), (["beer="], "write NAME=FOLDER"), (["a=b", "a=c"], "a stands twice")],
)
def test_names_that_are_none_are_refused(texts, message):
    with pytest.raises(KinspanError, match=message):
        read_names("sources", texts)


def test_names_must_be_known():
    with pytest.raises(KinspanError, match="--in_domain wine: there is no such name; there are beer"):
        check_names("in_domain", {"wine": "x"}, {"beer": "y"}, needs_all=False)
    with pytest.raises(KinspanError, match="wine is missing: give the corpus of every source"):
        check_names("corpora", {"beer": "x"}, {"beer": "y", "wine": "z"}, needs_all=True)
    with pytest.raises(KinspanError, match="--accuracy wine: not among --targets"):
        load_targets({}, "test", {"wine"})
