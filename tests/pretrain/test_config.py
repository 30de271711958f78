import pytest
from deepspeed.runtime.precision_config import DeepSpeedFP16Config

from data_pipeline.core.errors import KinspanError
from pretrain.config import PretrainConfig, identity
from pretrain.engine.engine import complete_settings, read_deepspeed_config
from pretrain.engine.layout import Layout
from pretrain.planning.checks import check

BAD = {
    "micro_batch_size": (65, r"--micro_batch_size 65 is larger than --global_batch_size 64"),
    "global_batch_size": (0, "--global_batch_size 0"),
    "max_steps": (-1, "--max_steps -1"),
    "learning_rate": (-1.0, "--learning_rate"),
    "mlm_probability": (1.5, "--mlm_probability"),
    "seed": (-1, "--seed"),
    "max_epochs": (float("nan"), "--max_epochs"),
    "learning_rate ": (float("nan"), "--learning_rate"),
}


@pytest.mark.parametrize("name", BAD)
def test_settings_that_cannot_be_meant_are_refused_by_name(name):
    value, text = BAD[name]
    with pytest.raises(KinspanError, match=text):
        check(PretrainConfig(**{name.strip(): value}))


def test_one_measure_of_length_only():
    with pytest.raises(KinspanError, match="--max_steps and --max_tokens"):
        check(PretrainConfig(max_steps=5, max_tokens=5))


def test_identity_is_about_numbers_only():
    one, two = (identity(PretrainConfig(output_dir=d, log_steps=n)) for d, n in (("a", 1), ("b", 2)))
    assert one == two
    assert identity(PretrainConfig(seed=2)) != one


@pytest.mark.parametrize("name", ["zero0", "zero1", "zero2", "zero3", "offload"])
def test_the_settings_that_come_along_can_be_read(name):
    settings = complete_settings(
        read_deepspeed_config(f"ds_configs/{name}.json"),
        PretrainConfig(),
        Layout(64, 8, 3),
        "fp32",
    )
    assert settings["train_batch_size"] == 3 * 8 * settings["gradient_accumulation_steps"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a JSON object"),
        ("[]", "not a JSON object"),
        ('{"bf16": {}}', "--precision"),
        ('{"fp16": true}', "must be an object"),
    ],
)
def test_bad_deepspeed_settings_are_one_line(text, message, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises(KinspanError, match=message):
        read_deepspeed_config(str(path))


def test_deepspeed_settings_say_how_the_loss_scale_moves(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{"fp16": {"loss_scale_window": 100, "hysteresis": 4}}')
    optimizer, layout = PretrainConfig(), Layout(64, 8, 1)
    scaling = complete_settings(read_deepspeed_config(str(path)), optimizer, layout, "fp16")["fp16"]
    assert scaling == {"loss_scale_window": 100, "hysteresis": 4, "enabled": True}
    assert DeepSpeedFP16Config(**scaling).hysteresis == 4
