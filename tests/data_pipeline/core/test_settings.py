"""What follows from the declaration of a setting: its check, its place in a run's identity, its type."""

from dataclasses import dataclass, fields
from typing import Literal

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import (
    ABOVE_0,
    FROM_0_TO_BELOW_1,
    GROUPS,
    REQUIRED,
    check_ranges,
    convert_setting,
    default_of,
    setting,
    settings_of_identity,
)
from finetune.training.config import FinetuneConfig
from pretrain.config import PretrainConfig


@dataclass
class Config:
    name: str = setting(REQUIRED, "A name.", may_change=True)
    size: int = setting(3, "A size.", within=ABOVE_0)
    share: float | None = setting(None, "A share.", within=FROM_0_TO_BELOW_1)
    rates: list[float] = setting([0.5], "Rates.", within=ABOVE_0)
    kind: Literal["a", "b"] = setting("a", "A kind.", may_change=True)
    flag: bool = setting(False, "A flag.")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"size": 0}, "--size 0: must be above 0"),
        ({"share": 1.0}, "--share 1.0: must be from 0 to less than 1"),
        ({"share": float("nan")}, "--share nan: must be a finite number"),
        ({"rates": [0.5, -1.0]}, "--rates -1.0: must be above 0"),
        ({"rates": [float("inf")]}, "--rates inf: must be a finite number"),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(settings, text):
    with pytest.raises(KinspanError) as error:
        check_ranges(Config("n", **settings))
    assert str(error.value) == text


def test_what_is_in_range_or_not_given_passes():
    check_ranges(Config("n", size=1, share=0.0, rates=[1e-9]))
    check_ranges(Config("n"))


def test_a_list_is_every_configs_own():
    one, two = Config("n"), Config("n")
    one.rates.append(2.0)
    assert two.rates == [0.5]
    assert [default_of(f) for f in fields(Config)] == [REQUIRED, 3, None, [0.5], "a", False]


def test_the_identity_is_what_is_not_free():
    assert settings_of_identity(Config("n", kind="b")) == {"size": 3, "share": None, "rates": [0.5], "flag": False}


@pytest.mark.parametrize(
    ("name", "value", "converted"),
    [
        ("size", "1e3", 1000),
        ("share", "1e-5", 1e-5),
        ("share", None, None),
        ("rates", ["1", 2], [1.0, 2.0]),
        ("rates", 1, [1.0]),
    ],
)
def test_values_of_yaml_get_the_settings_type(name, value, converted):
    found = convert_setting(Config, name, value)
    assert (found, type(found)) == (converted, type(converted))


@pytest.mark.parametrize(
    ("name", "value", "must"),
    [
        ("size", 1.5, "a whole number"),
        ("size", None, "a whole number"),
        ("share", True, "a number"),
        ("rates", "x", "a number"),
        ("kind", "c", "one of a, b"),
        ("flag", "yes", "true or false"),
        ("name", 3, "text"),
    ],
)
def test_values_of_another_type_are_refused_by_name(name, value, must):
    with pytest.raises(KinspanError, match=f"^{name}: .*: must be {must}$"):
        convert_setting(Config, name, value)


def test_a_list_may_be_empty_where_its_default_is():
    assert convert_setting(FinetuneConfig, "seed", []) == []
    with pytest.raises(KinspanError, match=r"^rates: \[\]: must have a value$"):
        convert_setting(Config, "rates", [])


@pytest.mark.parametrize("config_class", [PretrainConfig, FinetuneConfig])
def test_every_setting_of_a_training_has_a_group_and_a_sentence(config_class):
    for declared in fields(config_class):
        assert declared.metadata["group"] in GROUPS
        assert declared.metadata["help"].endswith((".", ")"))


def test_a_renamed_setting_keeps_its_name_in_the_identity_of_runs():
    identity = settings_of_identity(PretrainConfig(corpus_schedule="round_robin"))
    assert identity["schedule"] == "round_robin"
    assert "corpus_schedule" not in identity


def test_what_a_run_may_change_when_it_resumes():
    """A setting that may change by mistake would let a run go on as another one."""
    fixed = {f.name for f in fields(PretrainConfig) if not f.metadata["may_change"]}
    assert fixed == {
        *("objective", "token_loss", "mlm_weight", "rtd_weight", "pair_weight", "mlm_probability"),
        *("whole_word_masking", "sampling", "max_length", "embedding_sharing", "global_batch_size"),
        *("pair_loss", "temperature", "symmetric", "own_negatives"),
        *("permute_pair_labels", "max_steps", "max_epochs", "max_tokens", "learning_rate", "warmup_steps"),
        *("weight_decay", "max_grad_norm", "precision", "seed", "adapter", "adapter_size"),
        *("corpus_schedule", "forums", "min_questions", "warmup_epochs", "lr_schedule", "decay_share"),
    }
    changing = {f.name for f in fields(FinetuneConfig) if f.metadata["may_change"]}
    assert {"data", "model", "transfer", "output_dir", "seeds", "local_rank", "micro_batch_size"} <= changing
    assert not changing & {"loss", "learning_rate", "batch_size", "max_length", "epochs", "eval_steps"}
