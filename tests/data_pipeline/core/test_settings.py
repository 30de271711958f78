"""All that follows from the declaration of a setting: its check, its text, its place in a run's identity, its type."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import pytest

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import (
    ABOVE_0,
    FROM_0_TO_BELOW_1,
    REQUIRED,
    check_settings,
    convert_setting,
    get_identity_settings,
    read_help_texts,
    setting,
)
from finetune.training.config import FinetuneConfig
from pretrain.config import PretrainConfig


@dataclass
class Base:
    GROUP = "sizes"

    name: str = setting(REQUIRED, may_change=True)
    """A name."""
    size: int = setting(3, ABOVE_0)
    """A size, of
    two lines."""


@dataclass
class Config(Base):
    share: float | None = setting(None, FROM_0_TO_BELOW_1, needs="flag")
    rates: list[float] = setting([0.5], ABOVE_0, help="Rates.")
    kind: Literal["a", "b"] = setting("a", may_change=True)
    """A kind."""
    flag: bool = setting(False)
    word: str | None = setting(None, needs="kind b")


def test_a_text_stands_below_its_declaration_or_in_it():
    assert read_help_texts(Config).items() >= {"size": "A size, of two lines.", "rates": "Rates."}.items()


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        *[({"size": 0}, "--size 0"), ({"share": 1.0}, "--share 1.0"), ({"share": float("nan")}, "--share nan")],
        *[({"rates": [0.5, -1.0]}, "--rates -1.0"), ({"rates": [float("inf")]}, "--rates inf")],
        *[({"share": 0.5}, "--share needs --flag"), ({"word": "x"}, "--word needs --kind b")],
    ],
)
def test_what_is_out_of_range_or_alone_is_refused(settings, flag):
    with pytest.raises(KinspanError, match=f"^{flag}"):
        check_settings(Config("n", **settings))


def test_values_in_range_pass_and_lists_are_copied():
    check_settings(Config("n", size=1, share=0.0, rates=[1e-9], flag=True, kind="b", word="x"))
    check_settings(Config("n"))
    Config("n").rates.append(2.0)
    assert Config("n").rates == [0.5]


@pytest.mark.parametrize(
    ("name", "value", "converted"),
    [
        *[("size", "1e3", 1000), ("size", str(2**63 - 1), 2**63 - 1), ("share", "1e-5", 1e-5), ("share", None, None)],
        *[("rates", ["1", 2], [1.0, 2.0]), ("rates", 1, [1.0]), ("name", 0.25, "0.25"), ("flag", "no", False)],
        ("name", "~/a", str(Path.home() / "a")),
    ],
)
def test_values_of_yaml_and_of_flags_get_the_settings_type(name, value, converted):
    result = convert_setting(Config, name, value)
    assert (result, type(result)) == (converted, type(converted))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("size", 1.5), ("size", None), ("size", "nan"), ("share", True), ("share", 10**400), ("rates", "x")],
        *[("rates", []), ("kind", "c"), ("flag", "maybe"), ("name", ["a"]), ("name", "a\0"), ("name", "\udcff")],
    ],
)
def test_values_of_another_type_are_refused_by_name(name, value):
    with pytest.raises(KinspanError, match=f"^--{name} "):
        convert_setting(Config, name, value)


def test_what_a_run_may_change_when_it_resumes():
    """A setting that may change by mistake would let a run go on as another one."""
    assert get_identity_settings(Config("n", kind="b")).keys() == {"size", "share", "rates", "flag", "word"}
    assert get_identity_settings(PretrainConfig()).keys() >= {
        *("objective", "token_loss", "mlm_probability", "sampling", "max_length", "global_batch_size", "pair_loss"),
        *("max_steps", "learning_rate", "warmup_steps", "lr_schedule", "weight_decay", "precision", "seed", "adapter"),
    }
    changing = {f.name for f in fields(FinetuneConfig) if f.metadata["may_change"]}
    assert {"data", "model", "transfer", "output_dir", "seeds", "local_rank", "micro_batch_size"} <= changing
    assert not changing & {"loss", "learning_rate", "batch_size", "max_length", "epochs", "eval_steps"}
