import json
import re

import pytest
import torch
from transformers import AutoConfig, ElectraForMaskedLM, ElectraForPreTraining, PreTrainedTokenizerFast

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError
from pretrain.batches import average_tokens
from pretrain.config import PretrainConfig, as_dict, identity
from pretrain.metrics import FlopCounter
from pretrain.modeling.electra import load_replaced_token_model
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.pair_model import load_model
from pretrain.planning.cost import estimate_update
from pretrain.planning.memory import compute_states, estimate_activations
from pretrain.planning.plan import make_plan
from pretrain.planning.text import _estimate_activations, format_plan


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    """As a machine that reaches no hub, without waiting for it."""

    def unreachable(*arguments, **options):
        raise KinspanError("no model: the hub cannot be reached")

    monkeypatch.setattr("pretrain.planning.plan.load_config", unreachable)


def recipe(name, *flags):
    return parse(PretrainConfig, "", argv=["--config", f"launch/recipes/{name}.yaml", *flags])


@pytest.mark.parametrize("name", ["roberta-base-ssp", "roberta-base-sp", "roberta-base-all"])
def test_the_papers_210_billion_tokens(name):
    plan = make_plan(recipe(name))
    assert plan.tokens == pytest.approx(209.7e9, rel=0.001)
    assert "209.7 billion in all" in format_plan(plan)
    assert plan.epoch_pairs is None


def test_parameters_of_roberta_base():
    """124.7 M is RobertaForMaskedLM, as transformers counts it; the pair head is two layers on top."""
    plan = make_plan(recipe("roberta-base-ssp"))
    pair_head = 768 * 768 + 768 + 768 + 1
    assert plan.parameters["pair head"] == pair_head
    assert plan.num_parameters == 124_697_433 + pair_head
    assert plan.num_parameters == pytest.approx(124.6e6 + pair_head, rel=0.001)
    gigabytes = {g: compute_states(plan.num_parameters, 1, "bf16", g).on_gpu / 1e9 for g in (1, 8, 64)}
    line = next(x for x in format_plan(plan).splitlines() if x.startswith("ZeRO 1, bf16"))
    assert line.split()[3:6] == [f"{x:.2f}" for x in gigabytes.values()]
    assert gigabytes[8] == pytest.approx((6 + 12 / 8) * plan.num_parameters / 1e9)
    assert line.endswith("<- the settings'")


def test_parameters_of_electra_base_and_its_generator():
    """Tied: the generator counts without the embeddings, which the discriminator has too."""
    base = {"vocab_size": 30522, "embedding_size": 768}
    big = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    small = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    with torch.device("meta"):
        generator = ElectraForMaskedLM(AutoConfig.for_model("electra", **base, **small)).num_parameters()
        discriminator = ElectraForPreTraining(AutoConfig.for_model("electra", **base, **big)).num_parameters()
    embeddings = 768 * (30522 + 512 + 2) + 2 * 768
    pair_head = 768 * 768 + 768 + 768 + 1
    plan = make_plan(recipe("electra-base-ssp"))
    assert plan.token_loss == "rtd"
    assert plan.num_parameters == discriminator + generator - embeddings + pair_head
    apart = make_plan(recipe("electra-base-ssp", "--embedding_sharing", "none"))
    assert apart.num_parameters == discriminator + generator + pair_head


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_agrees_with_the_model_and_the_pairs_of_a_run(family, make_model, tiny_corpus, make_stream, monkeypatch):
    monkeypatch.undo()  # a folder needs no hub
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
    assert plan.steps == -(-2 * stream.epoch_pairs // 16)
    batch = stream.batch(0, stream.epoch_pairs)
    assert plan.flops == pytest.approx(FlopCounter(model)(batch) / batch.num_tokens, rel=0.02)


def test_hours_follow_from_the_given_speed():
    plan = make_plan(recipe("roberta-base-ssp", "--tokens_per_second", "1e6"))
    assert "58 h 15 min at 1,000,000 tokens/s" in format_plan(plan)
    predicted = format_plan(make_plan(recipe("roberta-base-ssp")))
    assert re.search(r"H100: 1 GPU \d+ h \d\d min, 8 GPUs \d+ h \d\d min, 64 GPUs [\d hmin]+\n", predicted + "\n")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", [{}, {"pair_loss": "contrastive"}])
def test_every_family_is_counted(family, settings, make_model, monkeypatch):
    monkeypatch.undo()
    plan = make_plan(PretrainConfig(model=str(make_model(family)), global_batch_size=8, max_length=32, **settings))
    assert plan.flops > 0
    assert "H200: 1 " in format_plan(plan)


def test_hours_follow_from_arithmetic_and_network():
    """More GPUs take less, by as many times at most; a slow network between machines takes its time."""
    encoder = AutoConfig.for_model("roberta")

    def hours(gpu="H200", count=1, network=25.0, flops=1e18):
        return estimate_update(flops, encoder, 125_000_000, gpu, count, network) / 3600

    assert hours() == pytest.approx(1e18 / (0.34 * 989e12) / 3600)
    assert hours("A100") > hours() > hours(count=8) > hours() / 8
    assert hours(count=64) - hours() / 64 == pytest.approx(10 * 125e6 * 63 / 64 / 25e9 / 3600)
    assert hours(count=64, network=200.0) < hours(count=64)


def test_many_epochs_are_warned_of(make_model, tiny_corpus, monkeypatch):
    monkeypatch.undo()
    plan = make_plan(PretrainConfig(model=str(make_model()), corpus=str(tiny_corpus), max_steps=10_000))
    assert any(note.startswith("warning") and "epochs" in note for note in plan.notes)


def test_what_the_run_would_refuse_is_refused(make_model, tiny_corpus, monkeypatch):
    with pytest.raises(KinspanError, match="hub"):
        make_plan(PretrainConfig(model="some/other-model"))
    with pytest.raises(KinspanError, match="--max_epochs"):
        make_plan(PretrainConfig(model="roberta-base", corpus="absent", max_epochs=1))
    with pytest.raises(KinspanError, match="--warmup_steps"):
        make_plan(PretrainConfig(model="roberta-base", corpus="absent", max_steps=5, warmup_steps=5))
    with pytest.raises(KinspanError, match="--max_length 513"):
        make_plan(PretrainConfig(model="roberta-base", corpus="absent", max_length=513))
    with pytest.raises(KinspanError, match="--compile"):
        make_plan(PretrainConfig(model="roberta-base", compile=True, deepspeed_config="ds_configs/zero3.json"))
    monkeypatch.undo()
    folder = make_model("bert")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["of"], vocabulary["the"] = vocabulary["the"], vocabulary["of"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(KinspanError, match="tokenizer"):
        make_plan(PretrainConfig(model=str(folder), corpus=str(tiny_corpus)))


def test_neither_flag_is_of_the_runs_identity():
    plain, dry = PretrainConfig(), PretrainConfig(dry_run=True, tokens_per_second=5.0)
    assert identity(plain) == identity(dry)
    assert as_dict(plain) == as_dict(dry)


def test_a_generator_that_the_run_would_refuse_is_refused(make_model, monkeypatch):
    monkeypatch.undo()
    model = str(make_model("electra"))

    def refused(generator, sharing="none", **options):
        with pytest.raises(KinspanError) as caught:
            make_plan(PretrainConfig(model=model, generator=str(generator), embedding_sharing=sharing, **options))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "vocabulary entries" in refused(make_model("electra", vocab_size=40_000))
    assert "vocabulary entries" in refused(make_model("electra", vocab_size=40_000), "tied")
    short = make_model("electra", max_position_embeddings=64)
    assert f"64 positions of --generator {short}" in refused(short, max_length=100)
    assert "must be an ELECTRA model" in refused(make_model("bert"))


def test_a_tokenizer_that_the_run_would_refuse_is_refused(make_model, monkeypatch):
    monkeypatch.undo()

    def refused(folder, **options):
        with pytest.raises(KinspanError) as caught:
            make_plan(PretrainConfig(model=str(folder), **options))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "tokenizer has 4150 entries, the model 4100" in refused(make_model(vocab_size=4100))
    folder = make_model()
    PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    ).save_pretrained(str(folder))
    assert "no mask token" in refused(folder)
    tokenizer = json.loads((folder := make_model()).joinpath("tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {word.replace("##", "@@"): number for word, number in vocabulary.items()}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "--whole_word_masking" in refused(folder, whole_word_masking=True)


def test_replaced_tokens_take_memory_to_draw(make_model, monkeypatch):
    monkeypatch.undo()
    plan = make_plan(PretrainConfig(model=str(make_model("electra"))))
    configs = [encoder.config for encoder in plan.model.encoders]
    tokens, masked = 8 * plan.max_length, round(8 * plan.max_length * 0.15)
    assert _estimate_activations(plan, configs, 8) == estimate_activations(
        configs, tokens, masked, plan.precision, sampled=True
    )
