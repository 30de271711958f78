"""What is refused before training starts, each in one line that says what to do."""

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import ElectraConfig, ElectraForMaskedLM

from data_pipeline.core.errors import KinspanError
from pretrain.config import VALIDATION_SEED, PretrainConfig
from pretrain.setup import count_steps, plan_schedule
from tests.chaos.starts import free_port
from tests.pretrain.steps import set_up_alone
from tests.programs import run_programs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def known(make_model, tiny_corpus, tmp_path):
    """The settings that every run here has."""
    return {"corpus": str(tiny_corpus), "model": str(make_model()), "output_dir": str(tmp_path / "run")}


@pytest.fixture
def refused(known):
    """``refused(setting=value, ...)``: the error's text."""

    def attempt(**settings):
        with pytest.raises(KinspanError) as caught:
            set_up_alone(PretrainConfig(**known | {"max_steps": 4, "warmup_steps": 1} | settings))
        text = str(caught.value)
        assert "\n" not in text
        return text

    return attempt


REFUSALS = [  # family, changed settings, flag
    ("bert", {"max_length": 600}, "--max_length 600"),
    ("bert", {"warmup_epochs": 1.0}, "--warmup_epochs 1"),
    ("bert", {"max_epochs": 1.0, "max_steps": None, "warmup_epochs": 1.0, "warmup_steps": None}, "--warmup_epochs 1"),
    ("bert", {"deepspeed_config": "ds_configs/zero9.json"}, "--deepspeed_config"),
    ("bert", {"precision": "fp16"}, "--precision fp16"),
    ("bert", {"precision": "bf16", "deepspeed_config": "ds_configs/zero0.json"}, "--precision bf16"),
    ("bert", {"precision": "fp32", "deepspeed_config": "ds_configs/slow_network.json"}, "--deepspeed_config"),
    ("bert", {"token_loss": "rtd"}, "--token_loss rtd"),
    ("bert", {"mlm_probability": 0.0, "pair_weight": 0.0}, "--pair_weight 0"),
    ("bert", {"mlm_weight": 0.0, "pair_weight": 0.0}, "--mlm_weight 0"),
    ("electra", {"generator": "/absent"}, "/absent"),
    ("electra", {"mlm_probability": 0.0}, "--token_loss mlm"),
]


@pytest.mark.parametrize(("family", "settings", "flag"), REFUSALS)
def test_settings_that_cannot_be_meant_are_refused(family, settings, flag, refused, make_model):
    assert flag in refused(model=str(make_model(family)), **settings)


def test_files_that_do_not_fit_are_refused_by_name(refused, shared, make_corpus, make_model, tiny_documents, tmp_path):
    corpus = make_corpus(tiny_documents[:5], shared / "tokenizers/roberta-base-tokenizer")
    assert f"corpus {corpus} " in refused(corpus=str(corpus))
    small = make_model("electra", max_position_embeddings=64)
    text = refused(model=str(make_model("electra")), generator=str(small), embedding_sharing="none")
    assert f"--generator {small}" in text
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    assert f"--model {tmp_path}" in refused(model=str(tmp_path))


def test_output_that_cannot_be_written_or_holds_something_else(refused, tmp_path):
    (tmp_path / "file").write_text("")
    assert "--output_dir" in refused(output_dir=str(tmp_path / "file" / "run"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/checkpoints").write_text("")
    assert "run/checkpoints" in refused()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    assert "--output_dir" in refused(output_dir=str(tmp_path / "mine"))
    assert os.listdir(tmp_path / "mine") == ["thesis.tex"]


def test_a_warmup_of_epochs_is_the_same_for_every_length_that_a_run_may_have():
    """Of 10.5 updates an epoch, half an epoch is 5 updates, of however many epochs."""
    config = PretrainConfig(lr_schedule="wsd", warmup_epochs=0.5, global_batch_size=10)
    lengths = {epochs: math.ceil(epochs * 10.5) for epochs in (1.0, 2.0, 3.0)}
    warmups = [plan_schedule(replace(config, max_epochs=n), total, 105).warmup for n, total in lengths.items()]
    assert warmups == [5, 5, 5]
    assert plan_schedule(PretrainConfig(max_epochs=20.0, warmup_epochs=1.0), 2000).warmup == 100


def test_steps_follow_from_epochs_and_tokens(make_model, tiny_corpus, tmp_path):
    def steps(**length):
        out = tmp_path / "-".join(map(str, length.values()))
        config = PretrainConfig(corpus=str(tiny_corpus), model=str(make_model()), output_dir=str(out), **length)
        return set_up_alone(config)

    assert count_steps(PretrainConfig(max_epochs=0.07), SimpleNamespace(epoch_pairs=6400)) == 7
    epochs = steps(max_epochs=2)
    assert (epochs.schedule.total - 1) * 64 < 2 * epochs.train_stream.epoch_pairs <= epochs.schedule.total * 64
    tokens = steps(max_tokens=30_000)
    seen = tokens.train_stream.batch(0, tokens.schedule.total * 64).num_tokens
    assert abs(seen - 30_000) < 64 * 128
    assert json.loads((tokens.folder / "run.json").read_text())["total_steps"] == tokens.schedule.total


def test_settings_may_change_until_the_first_checkpoint(known, tmp_path, caplog):
    for micro in (32, 16):
        set_up_alone(PretrainConfig(**known, micro_batch_size=micro))
    assert json.loads((tmp_path / "run/run.json").read_text())["settings"]["micro_batch_size"] == 16
    (tmp_path / "run/checkpoints/step-00000005").mkdir(parents=True)
    set_up_alone(PretrainConfig(**known, micro_batch_size=8))  # cuts batches otherwise, and is free
    caplog.set_level("INFO")
    for pairs in (9999, 5):
        set_up_alone(PretrainConfig(**known, eval_pairs=pairs))
    assert json.loads((tmp_path / "run/run.json").read_text())["eval_pairs"] == 5
    assert caplog.text.count("--eval_pairs 9,999") == 1
    for changed in ({"global_batch_size": 32}, {"warmup_steps": 9}):
        with pytest.raises(KinspanError, match="--output_dir"):
            set_up_alone(PretrainConfig(**known, **changed))


def test_a_run_keeps_the_weight_that_it_chose_when_another_one_changes(known, make_base, tmp_path):
    settings = known | {"model": str(make_base()), "max_steps": 8}
    assert set_up_alone(PretrainConfig(**settings)).config.mlm_weight == 0.05
    (tmp_path / "run/checkpoints/step-00000004").mkdir(parents=True)
    changed = PretrainConfig(**settings, pair_weight=0.0, resume_with=["pair_weight=0"])
    assert set_up_alone(changed).config.mlm_weight == 0.05
    with pytest.raises(KinspanError, match="--output_dir"):
        set_up_alone(replace(changed, resume_with=[]))


def test_what_lies_behind_a_path_identifies_a_run(known, make_base, make_corpus, tiny_documents, tmp_path, monkeypatch):
    places = {"corpus": [known["corpus"], make_corpus(tiny_documents[:-1])], "model": [make_base(), make_base(seed=4)]}
    links = {name: tmp_path / name for name in places}
    for name, link in links.items():
        link.symlink_to(places[name][0])
    settings = PretrainConfig(**{**known, **{name: str(link) for name, link in links.items()}})
    assert set_up_alone(settings).config.mlm_weight == 0.05  # as the masked-LM head starts fresh
    assert set_up_alone(PretrainConfig(**{**known, "output_dir": str(tmp_path / "scratch")})).config.mlm_weight == 1
    (tmp_path / "run/summary.json").write_text("{}")
    for name, link in links.items():
        link.unlink(), link.symlink_to(places[name][1])
        with pytest.raises(KinspanError, match=f"--output_dir .*--{name}"):
            set_up_alone(settings)
        link.unlink(), link.symlink_to(places[name][0])
    monkeypatch.chdir(known["model"])
    (tmp_path / "run").rename(tmp_path / "before")
    assert set_up_alone(replace(settings, model=".")).facts["model"]["name"] == Path(known["model"]).name


def test_a_run_is_named_by_its_generators_weights_not_by_where_they_lie(make_model, tiny_corpus, tmp_path):
    def identity(generator):
        known = {"corpus": str(tiny_corpus), "model": str(discriminator), "generator": str(generator)}
        setup = set_up_alone(PretrainConfig(**known, output_dir=str(tmp_path / f"out-{generator.name}")))
        assert str(generator) not in (setup.folder / "run.json").read_text()
        return setup.facts["identity"]

    discriminator = make_model("electra")
    config = ElectraConfig.from_pretrained(discriminator)
    for name, seed in (("one", 1), ("two", 2)):
        torch.manual_seed(seed)
        ElectraForMaskedLM(config).save_pretrained(tmp_path / name)
    shutil.copytree(tmp_path / "one", tmp_path / "moved")
    assert identity(tmp_path / "one") == identity(tmp_path / "moved") != identity(tmp_path / "two")


def test_a_fresh_pair_head_first_predicts_the_share_of_positives(known):
    classifier = set_up_alone(PretrainConfig(**known, objective="ssp+nsp")).model.classifier.classifier
    assert torch.sigmoid(classifier.bias).item() == pytest.approx(0.35)


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("corpus", "rank 1 would train another run: its corpus_content is "),
        pytest.param("output_dir", "rank 1 does not see there what rank 0 wrote", marks=pytest.mark.slow),
    ],
)
def test_ranks_whose_machines_hold_different_things_are_refused(
    flag, says, make_model, make_corpus, tiny_documents, tmp_path
):
    corpora, model = [make_corpus(tiny_documents), make_corpus(tiny_documents[:-1])], make_model()
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    commands = []
    for rank in range(2):
        settings = {"corpus": corpora[rank if flag == "corpus" else 0], "model": model, "max_steps": 2}
        settings |= {"warmup_steps": 0, "global_batch_size": 4, "precision": "fp32", "micro_batch_size": 2}
        settings |= {"output_dir": tmp_path / f"run{rank if flag == 'output_dir' else ''}"}
        commands.append([ROOT / "launch/pretrain.py", *(f"--{k}={v}" for k, v in settings.items())])
    variables = [group | {"RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
    for done in run_programs(commands, cwd=ROOT, timeout=240, variables=variables):
        assert done.returncode == 2, done.stderr
        assert says in done.stderr.splitlines()[-1]
    assert not list(tmp_path.glob("run*/run.json"))


def test_the_settings_that_are_kept_mask_again_where_the_loss_has_a_weight(known):
    """As --resume_with mlm_weight=1 does; the run itself masks nothing."""
    setup = set_up_alone(PretrainConfig(**known, mlm_weight=0.0, eval_pairs=5))
    assert setup.config.mlm_probability == setup.facts["identity"]["mlm_probability"] == 0.15
    assert setup.facts["validation_documents"] == 1
    assert setup.train_stream.batch(0, 50).num_masked == 0


def test_what_is_trained_and_measured_is_as_set(known, tmp_path):
    settings = {**known, "seed": 5, "permute_pair_labels": True, "mlm_probability": 0.3}
    made = set_up_alone(PretrainConfig(**settings))
    train, validation = made.train_stream, made.validation_stream
    assert (train.split, train.seed, train.permute_labels) == ("train", 5, True)
    assert (validation.split, validation.seed, validation.permute_labels) == ("validation", VALIDATION_SEED, False)
    assert train.masking.probability == validation.masking.probability == 0.3
    other = set_up_alone(PretrainConfig(**{**settings, "seed": 6, "output_dir": str(tmp_path / "other")}))
    one, two = (setup.model.classifier.get_input_embeddings().weight for setup in (made, other))
    assert not torch.equal(one, two)
    settings = {**known, "output_dir": str(tmp_path / "bi"), "pair_loss": "contrastive", "temperature": 0.5}
    assert set_up_alone(PretrainConfig(**settings)).model.temperature == 0.5
