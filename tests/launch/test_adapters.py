"""Adapters of many corpora in one command."""

import json

import pytest
from transformers import AutoModelForSequenceClassification

from data_pipeline.core.errors import KinspanError
from finetune.ranking.ranker import find_max_length, load_ranker
from launch.commands import merge_adapter
from launch.commands.train_adapters import TrainAdaptersConfig, name_runs, parse_task, plan_runs, train_all
from pretrain.modeling.adapters.folder import read_adapter
from tests.pretrain.steps import same, stopped_in_step
from tests.synthetic import write_model


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("base"), AutoModelForSequenceClassification, num_labels=1)


@pytest.fixture(scope="module")
def forums(make_corpus, helpers, tmp_path_factory):
    """Three small corpora in one folder."""
    folder = tmp_path_factory.mktemp("forums")
    for name in ("beer", "history.meta", "travel"):
        (folder / name).symlink_to(make_corpus(helpers.synthetic_documents(10, name), validation_share=0.2))
    return sorted(map(str, folder.iterdir()))


@pytest.fixture
def config(base, forums, tmp_path):
    """``config(**settings)``: of adapters for the forums."""

    def make(**settings):
        common = {"global_batch_size": 10, "micro_batch_size": 10, "max_length": 48, "max_steps": 3, "eval_steps": 3}
        common |= {"eval_pairs": 10, "precision": "fp32", "peak_tflops": 1.0, "adapter_size": 4}
        common |= {"corpus": forums, "model": str(base), "output_dir": str(tmp_path / "out")}
        return TrainAdaptersConfig(**{**common, **settings})

    return make


def test_each_corpus_gets_an_adapter_and_a_second_call_does_nothing(config, tmp_path):
    runs = plan_runs(config(), None)
    train_all(runs)
    names = {name: read_adapter(tmp_path / "out" / name / "release").part.name for name in runs}
    assert names == {name: name for name in ("beer", "history.meta", "travel")}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.safetensors")}
    assert find_max_length(str(tmp_path / "out/beer/release")) == 48  # and ranks by no more
    train_all(plan_runs(config(output_dir=f"{tmp_path}/out/../out"), None))
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.safetensors")}
    with pytest.raises(KinspanError, match="--corpus"):
        train_all(plan_runs(config(corpus=[f"{config().corpus[0]}=1,sp"]), None))
    (tmp_path / "out/beer/stage.json").unlink()  # as if the command had been killed during the release
    (tmp_path / "out/beer/release/adapter.safetensors").unlink()
    train_all({"beer": runs["beer"]})
    assert read_adapter(tmp_path / "out/beer/release").part.name == "beer"


def test_what_was_under_way_goes_on_and_ends_the_same(config, tmp_path, monkeypatch):
    train_all(plan_runs(config(output_dir=str(tmp_path / "whole")), None))
    runs = plan_runs(config(), None)
    with stopped_in_step(monkeypatch, 5):  # in the second of three
        train_all(runs)
    assert (tmp_path / "out/beer/release").is_dir()
    assert not (tmp_path / "out/travel").exists()
    train_all(plan_runs(config(), None))
    for name in ("beer", "history.meta", "travel"):
        one, two = (read_adapter(tmp_path / where / name / "release") for where in ("whole", "out"))
        assert same(one.tensors, two.tensors)
        assert same(one.head, two.head)


def test_a_corpus_that_cannot_be_trained_on_costs_only_itself(config, tmp_path):
    runs = plan_runs(config(corpus=[*config().corpus[:1], str(tmp_path / "none"), *config().corpus[1:]]), None)
    with pytest.raises(KinspanError, match=r"1 of 4 adapters .*none"):
        train_all(runs)
    assert (tmp_path / "out/travel/release").is_dir()


def test_tasks_of_a_job_array_share_the_corpora(config):
    every = [list(plan_runs(config(), f"{number}/2")) for number in (1, 2)]
    assert every == [["beer", "travel"], ["history.meta"]]
    for text in ("3/2", "0/2", "a/b", "2", "1/"):
        with pytest.raises(KinspanError, match="--task"):
            parse_task(text)


def test_a_run_is_named_by_the_last_part_of_its_path():
    """Whatever else stands in the path, and behind it."""
    corpora = ["a=1/beer", "a=1/travel=2,sop", "s3://user:secret@bucket/wiki/"]
    assert list(name_runs(corpora)) == ["beer", "travel", "wiki"]


def test_forums_are_chosen_among_all_corpora(config):
    runs = plan_runs(config(forums="travel,beer"), "2/2")
    assert list(runs) == ["travel"]
    assert runs["travel"].forums is None


def test_lora_merges_into_a_plain_model(config, tmp_path, monkeypatch):
    pytest.importorskip("peft")
    train_all(plan_runs(config(adapter="lora", corpus=config().corpus[:1]), None))
    adapter, output = str(tmp_path / "out/beer/release"), str(tmp_path / "merged")
    monkeypatch.setattr("sys.argv", ["merge", "--adapter", adapter, "--output_dir", output])
    merge_adapter.main()
    assert same(*(load_ranker(str(tmp_path / where)).state_dict() for where in ("out/beer/release", "merged")))
    (named,) = json.loads((tmp_path / "merged/config.json").read_text())["architectures"]
    assert named == "BertForSequenceClassification"
    assert find_max_length(str(tmp_path / "merged")) == 48
