"""``--dry_run``: memory and work by formula, and the refusals of the run itself."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, ElectraForMaskedLM, ElectraForPreTraining

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError
from pretrain.batches import average_tokens
from pretrain.config import PretrainConfig
from pretrain.metrics import FlopCounter
from pretrain.modeling.electra import load_replaced_token_model
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.pair_model import load_config, load_model
from pretrain.planning.cost import compute_states, estimate_activations, estimate_update
from pretrain.planning.plan import format_plan, make_plan

BASE_PAIR_HEAD = 768 * 768 + 768 + 768 + 1


@pytest.fixture
def _no_hub(monkeypatch):
    """As a machine that reaches no hub, without waiting for it."""

    def unreachable(name, *arguments):
        if not Path(name).is_dir():
            raise KinspanError("no model: the hub cannot be reached")
        return load_config(name, *arguments)

    monkeypatch.setattr("pretrain.planning.plan.load_config", unreachable)


def recipe(name, *flags):
    return parse(PretrainConfig, "", argv=["--config", f"launch/recipes/{name}.yaml", *flags])


@pytest.mark.usefixtures("_no_hub")
@pytest.mark.parametrize("name", ["roberta-base-ssp", "roberta-base-sp", "roberta-base-all"])
def test_the_papers_210_billion_tokens(name):
    plan = make_plan(recipe(name))
    assert plan.tokens == pytest.approx(209.7e9, rel=0.001)
    assert "209.7 billion in all" in format_plan(plan)
    assert plan.epoch_pairs is None


@pytest.mark.usefixtures("_no_hub")
def test_parameters_of_roberta_base():
    """124.7 M is RobertaForMaskedLM, as transformers counts it; the pair head is two layers on top."""
    plan = make_plan(recipe("roberta-base-ssp"))
    assert plan.num_parameters == 124_697_433 + BASE_PAIR_HEAD
    gigabytes = {g: compute_states(plan.num_parameters, 1, "bf16", g)[0] / 1e9 for g in (1, 8, 64)}
    line = next(x for x in format_plan(plan).splitlines() if x.startswith("ZeRO 1, bf16"))
    assert line.split()[3:6] == [f"{x:.2f}" for x in gigabytes.values()]
    assert gigabytes[8] == pytest.approx((6 + 12 / 8) * plan.num_parameters / 1e9)
    assert line.endswith("<- these settings")


@pytest.mark.usefixtures("_no_hub")
def test_parameters_of_electra_base_and_its_generator():
    """Tied: the generator counts without the embeddings, which the discriminator has too."""
    base = {"vocab_size": 30522, "embedding_size": 768}
    big = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    small = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    with torch.device("meta"):
        generator = ElectraForMaskedLM(AutoConfig.for_model("electra", **base, **small)).num_parameters()
        discriminator = ElectraForPreTraining(AutoConfig.for_model("electra", **base, **big)).num_parameters()
    embeddings = 768 * (30522 + 512 + 2) + 2 * 768
    plan = make_plan(recipe("electra-base-ssp"))
    assert plan.token_loss == "rtd"
    assert plan.num_parameters == discriminator + generator - embeddings + BASE_PAIR_HEAD
    apart = make_plan(recipe("electra-base-ssp", "--embedding_sharing", "none"))
    assert apart.num_parameters == discriminator + generator + BASE_PAIR_HEAD
    (line,) = (line for line in format_plan(plan).splitlines() if line.startswith("H100"))
    hours = plan.flops * plan.tokens / (0.29 * 989e12) / 3600  # by the utilisation of the discriminator
    assert int(line.split()[1]) == int(hours)


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_agrees_with_the_model_and_the_pairs_of_a_run(family, make_model, tiny_corpus, make_stream):
    folder = str(make_model(family))
    config = PretrainConfig(
        model=folder, corpus=str(tiny_corpus), max_epochs=2, global_batch_size=16, micro_batch_size=8, generator="1/2"
    )
    plan = make_plan(config)
    load = {"bert": load_model, "electra": lambda *a: load_replaced_token_model(folder, "1/2", "tied", 1)}[family]
    model, _ = load(folder, 1)
    assert plan.num_parameters == sum(p.numel() for p in model.parameters())
    stream = make_stream(tiny_corpus, masking=True)
    assert plan.pair_tokens == pytest.approx(average_tokens(stream))
    assert plan.epoch_pairs == stream.epoch_pairs
    assert plan.speed > 0
    assert plan.steps == -(-2 * stream.epoch_pairs // 16)
    batch = stream.batch(0, stream.epoch_pairs)
    assert plan.flops == pytest.approx(FlopCounter(model)(batch) / batch.num_tokens, rel=0.02)


@pytest.mark.usefixtures("_no_hub")
def test_hours_follow_from_the_given_speed():
    plan = make_plan(recipe("roberta-base-ssp", "--tokens_per_second", "1e6"))
    assert "58 h 15 min at 1,000,000 tokens/s" in format_plan(plan)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", [{}, {"pair_loss": "contrastive"}])
def test_every_family_is_counted(family, settings, make_model):
    plan = make_plan(PretrainConfig(model=str(make_model(family)), global_batch_size=8, max_length=32, **settings))
    assert plan.flops > 0
    assert "\nH200 " in format_plan(plan)


def test_hours_follow_from_arithmetic_and_network():
    """More GPUs take less, by as many times at most; a slow network between machines takes its time."""
    encoder, peak = AutoConfig.for_model("roberta"), 989e12

    def hours(peak=peak, count=1, network=25.0, flops=1e18):
        return estimate_update(flops, encoder, 125_000_000, peak, count, network) / 3600

    assert hours() == pytest.approx(1e18 / (0.34 * peak) / 3600)
    assert hours(peak / 3) > hours() > hours(count=8) > hours() / 8
    assert hours(count=64) - hours() / 64 == pytest.approx(10 * 125e6 * 63 / 64 / 25e9 / 3600)
    assert hours(count=64, network=200.0) < hours(count=64)
    assert hours(count=8) - hours() / 8 == pytest.approx(10 * 125e6 * 7 / 8 / 200e9 / 3600)  # within a machine
    assert hours(count=64, flops=1.0) == pytest.approx(max(10 * 125e6 * 63 / 64 / 25e9, 0.04) / 3600)
    assert hours(count=8, flops=1.0) == pytest.approx(0.04 / 3600)  # the host's


def test_many_epochs_are_warned_of(make_model, tiny_corpus):
    plan = make_plan(PretrainConfig(model=str(make_model()), corpus=str(tiny_corpus), max_steps=10_000))
    assert any(note.startswith("warning") and "epochs" in note for note in plan.notes)


@pytest.mark.usefixtures("_no_hub")
@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        *[({"model": "some/other-model"}, "model"), ({"max_epochs": 1}, "--max_epochs")],
        *[({"max_steps": 5, "warmup_steps": 5}, "--warmup_steps"), ({"max_length": 513}, "--max_length 513")],
        ({"compile": True, "deepspeed_config": "ds_configs/zero3.json"}, "--compile"),
    ],
)
def test_what_the_run_would_refuse_is_refused(settings, flag):
    with pytest.raises(KinspanError, match=flag):
        make_plan(PretrainConfig(**{"model": "roberta-base", "corpus": "absent"} | settings))


def test_states_by_hand():
    """A billion parameters on 4 GPUs: GB are bytes a parameter."""
    p = 10**9

    def gigabytes(*arguments):
        return [x / 1e9 for x in compute_states(p, *arguments)]

    assert gigabytes(0, "fp32", 4) == [4 + 4 + 8, 0]
    assert gigabytes(1, "bf16", 4) == [2 + 4 + 1 + 2, 0]
    assert gigabytes(2, "bf16", 4) == [2 + 1 + 1 + 2, 0]
    assert gigabytes(3, "bf16", 4) == [0.5 + 1 + 1 + 2, 0]
    assert gigabytes(2, "fp16", 4) == [2 + 0.5 + 1 + 2, 0]
    assert gigabytes(2, "fp32", 4) == [4 + 1 + 1 + 2, 0]
    assert gigabytes(2, "bf16", 4, True) == [2, 4]
    assert gigabytes(2, "bf16", 1) == [18, 0]


def test_activations_by_hand():
    """RoBERTa-base in bf16: 34 h bytes a token and layer, and 2 bytes an entry of the vocabulary and masked token; 10
    where a replacement is drawn."""
    config = type("Config", (), {})()
    config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.vocab_size = 768, 3072, 12, 50265
    assert estimate_activations([config], 1000, 150, "bf16") == 1000 * 12 * 34 * 768 + 150 * 50265 * 2
    assert estimate_activations([config], 1000, 150, "bf16", sampled=True) == 1000 * 12 * 34 * 768 + 150 * 50265 * 10
