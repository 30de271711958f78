"""What is refused before training starts, each in one line that says what to do."""

import json
import math
import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import ElectraConfig, ElectraForMaskedLM

from data_pipeline.core.errors import KinspanError
from pretrain.config import PretrainConfig
from pretrain.setup import (
    MUST_MATCH_ACROSS_RANKS,
    _check_same_everywhere,
    choose_token_loss,
    disable_unused_masking,
    find_unused_flags,
    plan_schedule,
)
from tests.pretrain.steps import set_up_alone
from tests.programs import run_programs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def refused(make_model, tiny_corpus, tmp_path):
    """``refused(setting=value, ...)``: the error's text."""

    def attempt(**settings):
        known = {"corpus": str(tiny_corpus), "output_dir": str(tmp_path / "run")}
        known |= {} if "model" in settings else {"model": str(make_model())}
        with pytest.raises(KinspanError) as caught:
            set_up_alone(PretrainConfig(**known | {"max_steps": 4, "warmup_steps": 1} | settings))
        text = str(caught.value)
        assert "\n" not in text
        return text

    return attempt


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"corpus": "absent"}, "absent"),
        ({"max_length": 9}, "--max_length 9"),
        ({"max_length": 600}, "--max_length 600"),
        ({"micro_batch_size": 65, "global_batch_size": 64}, "--micro_batch_size 65"),
        ({"warmup_steps": 4}, "--warmup_steps 4"),
        ({"warmup_epochs": 1.0}, "--warmup_epochs 1"),
        ({"objective": "ssq"}, "ssq"),
        ({"deepspeed_config": "ds_configs/zero9.json"}, "--deepspeed_config"),
        ({"precision": "fp16"}, "--precision fp16"),
        ({"precision": "bf16", "deepspeed_config": "ds_configs/zero0.json"}, "--precision bf16"),
        ({"token_loss": "rtd"}, "--token_loss rtd"),
        ({"mlm_probability": 0.0, "pair_weight": 0.0}, "--mlm_probability 0"),
        ({"mlm_weight": 0.0, "pair_weight": 0.0}, "--mlm_weight 0"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, names, refused):
    assert names in refused(**settings)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"generator": "2"}, "--generator 2"),
        ({"generator": "/absent"}, "/absent"),
        ({"mlm_probability": 0.0}, "--token_loss mlm"),
    ],
)
def test_settings_of_replaced_token_detection_that_cannot_be_meant_are_refused(settings, names, refused, make_model):
    assert names in refused(model=str(make_model("electra")), **settings)


def test_a_corpus_of_another_tokenizer(refused, shared, make_corpus, tiny_documents):
    corpus = make_corpus(tiny_documents[:5], shared / "tokenizers/roberta-base-tokenizer")
    assert f"corpus {corpus.name} " in refused(corpus=str(corpus))


def test_a_kind_of_model_that_cannot_be_trained_is_not_called_a_missing_tokenizer(refused, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    assert "type t5" in refused(model=str(tmp_path))


def test_output_that_cannot_be_written(refused, tmp_path):
    (tmp_path / "file").write_text("")
    assert "--output_dir" in refused(output_dir=str(tmp_path / "file" / "run"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/checkpoints").write_text("")
    assert "run/checkpoints" in refused()


def test_output_that_holds_something_else(refused, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    assert "--output_dir" in refused(output_dir=str(tmp_path / "mine"))
    assert os.listdir(tmp_path / "mine") == ["thesis.tex"]


def test_corpora_without_enough_to_pair(refused, make_corpus, tiny_documents):
    words = "one long sentence without any end that goes on and on about nothing at all for ever and ever"
    for documents in (tiny_documents[:1], [[f"{words} {n}"] * 3 for n in range(4)]):
        assert "needed" in refused(corpus=str(make_corpus(documents))) or "sentences" in refused(
            corpus=str(make_corpus(documents))
        )


def test_warmup_of_epochs():
    config = PretrainConfig(max_epochs=20.0, warmup_epochs=1.0)
    assert plan_schedule(config, 2000).warmup == 100
    with pytest.raises(KinspanError, match=r"--warmup_epochs 20 \(2000 steps\) is not below"):
        plan_schedule(replace(config, warmup_epochs=20.0), 2000)


def test_a_warmup_of_epochs_is_the_same_for_every_length_that_a_run_may_have():
    """Of 10.5 updates an epoch, half an epoch was 6 updates of one epoch, and 5 of two."""
    config = PretrainConfig(lr_schedule="wsd", warmup_epochs=0.5, global_batch_size=10)
    lengths = {epochs: math.ceil(epochs * 10.5) for epochs in (1.0, 2.0, 3.0)}
    warmups = [plan_schedule(replace(config, max_epochs=n), total, 105).warmup for n, total in lengths.items()]
    assert warmups == [5, 5, 5]


def test_steps_follow_from_epochs_and_tokens(make_model, tiny_corpus, tmp_path):
    def steps(**length):
        out = tmp_path / "-".join(map(str, length.values()))
        config = PretrainConfig(corpus=str(tiny_corpus), model=str(make_model()), output_dir=str(out), **length)
        return set_up_alone(config)

    epochs = steps(max_epochs=2)
    assert (epochs.total_steps - 1) * 64 < 2 * epochs.train_stream.epoch_pairs <= epochs.total_steps * 64
    tokens = steps(max_tokens=30_000)
    seen = tokens.train_stream.batch(0, tokens.total_steps * 64).num_tokens
    assert abs(seen - 30_000) < 64 * 128
    assert json.loads((tokens.folder / "run.json").read_text())["total_steps"] == tokens.total_steps


def test_settings_may_change_until_the_first_checkpoint(make_model, tiny_corpus, tmp_path):
    common = {"corpus": str(tiny_corpus), "model": str(make_model()), "output_dir": str(tmp_path / "run")}
    for micro in (32, 16):
        set_up_alone(PretrainConfig(**common, micro_batch_size=micro))
    assert json.loads((tmp_path / "run/run.json").read_text())["settings"]["micro_batch_size"] == 16
    (tmp_path / "run/checkpoints/step-00000005").mkdir(parents=True)
    set_up_alone(PretrainConfig(**common, micro_batch_size=8))  # cuts batches otherwise, and is free
    before = json.loads((tmp_path / "run/run.json").read_text())
    set_up_alone(PretrainConfig(**common, eval_pairs=5))
    after = json.loads((tmp_path / "run/run.json").read_text())
    assert {name for name in after if after[name] != before[name]} == {"eval_pairs", "validation_documents"}
    assert after["eval_pairs"] == 5
    with pytest.raises(KinspanError, match="its global_batch_size is 64, not 32"):
        set_up_alone(PretrainConfig(**common, global_batch_size=32))
    with pytest.raises(KinspanError, match="its warmup_steps is None, not 9"):
        set_up_alone(PretrainConfig(**common, warmup_steps=9))


def test_buckets_of_deepspeed_may_change_and_its_stage_may_not(make_model, tiny_corpus, tmp_path):
    common = {"corpus": str(tiny_corpus), "model": str(make_model()), "output_dir": str(tmp_path / "run")}
    for name, settings in (("mine", {}), ("buckets", {"reduce_bucket_size": 7})):
        zero = {"zero_optimization": {"stage": 2, **settings}}
        (tmp_path / f"{name}.json").write_text(json.dumps(zero))
        set_up_alone(PretrainConfig(**common, deepspeed_config=str(tmp_path / f"{name}.json")))
        (tmp_path / "run/checkpoints/step-00000005").mkdir(parents=True, exist_ok=True)
    with pytest.raises(KinspanError, match="its deepspeed is"):
        set_up_alone(PretrainConfig(**common))


@pytest.mark.parametrize("name", [*MUST_MATCH_ACROSS_RANKS, "deepspeed"])
def test_ranks_agree_on_settings_that_may_change_and_that_collectives_follow_from(name, monkeypatch, tmp_path):
    alike = SimpleNamespace(
        config=PretrainConfig(),
        deepspeed_settings={},
        facts={"identity": {}},
        total_steps=1,
        schedule=None,
        folder=tmp_path,
    )
    _check_same_everywhere(alike)
    monkeypatch.setattr("pretrain.setup.gather", lambda value: [value, value | {name: "else"}])
    with pytest.raises(KinspanError, match=f"rank 1 would train another run: its {name} is else"):
        _check_same_everywhere(alike)


def test_a_generator_with_too_few_positions(refused, make_model):
    generator = make_model("electra", max_position_embeddings=64)
    text = refused(model=str(make_model("electra")), generator=str(generator), embedding_sharing="none")
    assert f"--generator {generator}" in text


def test_the_token_loss_follows_from_the_family(make_model, tiny_corpus, tmp_path):
    def started(family, **settings):
        out = tmp_path / f"{family}-{len(settings)}"
        known = {"corpus": str(tiny_corpus), "model": str(make_model(family)), "output_dir": str(out)}
        return set_up_alone(PretrainConfig(**known, **settings))

    electra = started("electra")
    assert electra.facts["token_loss"] == "rtd"
    assert len(electra.train_stream.batch(0, 4).noise)
    assert (electra.folder / "generator/config.json").exists()
    assert started("electra", token_loss="mlm").facts["token_loss"] == "mlm"
    assert started("bert").facts["token_loss"] == "mlm"


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


@pytest.mark.parametrize(("objective", "share"), [("ssp", 0.2), ("nsp", 0.5), ("ssp+nsp", 0.35)])
@pytest.mark.parametrize("family", ["bert", "electra"])
def test_a_fresh_pair_head_first_predicts_the_share_of_positives(
    family, objective, share, make_model, tiny_corpus, tmp_path
):
    known = {"corpus": str(tiny_corpus), "model": str(make_model(family)), "output_dir": str(tmp_path / "run")}
    classifier = set_up_alone(PretrainConfig(**known, objective=objective)).model.classifier.classifier
    bias = classifier.bias if family == "bert" else classifier.out_proj.bias
    assert torch.sigmoid(bias).item() == pytest.approx(share)


def test_whole_words_are_masked(make_model, tiny_corpus, tmp_path):
    known = {"corpus": str(tiny_corpus), "model": str(make_model()), "output_dir": str(tmp_path / "run")}
    setup = set_up_alone(PretrainConfig(**known, whole_word_masking=True))
    assert setup.train_stream.masking.continues is not None
    batch = setup.train_stream.batch(0, 1000)
    original = batch.input_ids.copy()
    original[batch.masked_positions] = batch.masked_labels
    goes_on = np.array([t.startswith("##") for t in setup.tokenizer.convert_ids_to_tokens(original.tolist())])
    chosen = np.zeros(len(original), dtype=bool)
    chosen[batch.masked_positions] = True
    inner = np.flatnonzero(goes_on)
    cut = batch.input_ids[inner - 1] == setup.tokenizer.sep_token_id  # a text may start or end inside a word
    assert len(inner)
    assert (chosen[inner] == chosen[inner - 1])[~cut].all()


@pytest.mark.parametrize(
    ("given", "token_loss", "note"),
    [
        ({"decay_share": 0.5}, "mlm", "--decay_share"),
        ({"corpus": ["a=1,sp", "b=1,psd"], "objective": "ict"}, "mlm", "an objective of its own: --objective"),
        ({"tokens_per_second": 9.0}, "mlm", "--tokens_per_second"),
        ({"mlm_probability": 0.0, "mlm_weight": 0.1}, "mlm", "no token is masked: --mlm_weight"),
        ({"adapter": "lora", "mlm_probability": 0.3, "rtd_weight": 9.0}, "none", "--rtd_weight and --mlm_probability"),
    ],
)
def test_settings_that_do_nothing_beside_the_others_are_named(given, token_loss, note):
    (said,) = find_unused_flags(PretrainConfig(**given), token_loss)
    assert said.startswith("ignored")
    assert said.endswith(note)


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
    corpora = [make_corpus(tiny_documents), make_corpus(tiny_documents[:-1])]
    model = make_model()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    commands, variables = [], []
    for rank in range(2):
        settings = {"corpus": corpora[rank if flag == "corpus" else 0], "model": model}
        settings |= {"max_steps": 2, "warmup_steps": 0, "global_batch_size": 4, "precision": "fp32"}
        settings |= {"micro_batch_size": 2, "output_dir": tmp_path / f"run{rank if flag == 'output_dir' else ''}"}
        commands.append([ROOT / "launch/pretrain.py", *(f"--{k}={v}" for k, v in settings.items())])
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        variables.append(own | {"MASTER_PORT": port})
    for done in run_programs(commands, cwd=ROOT, timeout=240, variables=variables):
        assert done.returncode == 2, done.stderr
        assert says in done.stderr.splitlines()[-1]
    assert not list(tmp_path.glob("run*/run.json"))


def test_no_token_is_masked_where_their_loss_has_no_weight():
    alone = PretrainConfig(mlm_weight=0.0)
    assert disable_unused_masking(alone, "mlm").mlm_probability == 0
    assert disable_unused_masking(alone, "rtd") is alone  # the discriminator finds what the generator put there
    assert disable_unused_masking(PretrainConfig(), "mlm").mlm_probability == 0.15


def test_the_settings_that_are_kept_mask_again_where_the_loss_has_a_weight(make_model, tiny_corpus, tmp_path):
    """As --config RUN/config.yaml --mlm_weight 1 does; the run itself masks nothing."""
    known = {"corpus": str(tiny_corpus), "model": str(make_model()), "output_dir": str(tmp_path / "run")}
    setup = set_up_alone(PretrainConfig(**known, mlm_weight=0.0))
    assert setup.config.mlm_probability == 0.15
    assert setup.facts["settings"]["mlm_probability"] == setup.facts["identity"]["mlm_probability"] == 0
    assert setup.train_stream.batch(0, 50).num_masked == 0


def test_electra_may_train_on_pairs_alone_where_nothing_is_replaced():
    assert choose_token_loss(PretrainConfig(mlm_probability=0.0, rtd_weight=0.0), "small", "electra") == "rtd"
