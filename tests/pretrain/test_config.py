import json
from pathlib import Path

import pytest

from data_pipeline.core.errors import KinspanError
from pretrain.config import PretrainConfig
from pretrain.engine.deepspeed_config import read_deepspeed_config
from pretrain.planning.checks import check

ADAPTER = {"adapter": "pfeiffer", "adapter_size": 6}
REFUSALS = [  # changed settings, flag
    *[({"micro_batch_size": 65}, "--micro_batch_size"), ({"global_batch_size": 0}, "--global_batch_size 0")],
    *[({"max_steps": -1}, "--max_steps -1"), ({"max_steps": 5, "max_tokens": 5}, "--max_steps and --max_tokens")],
    *[({"max_epochs": float("nan")}, "--max_epochs"), ({"learning_rate": -1.0}, "--learning_rate")],
    *[({"learning_rate": float("nan")}, "--learning_rate"), ({"mlm_probability": 1.5}, "--mlm_probability")],
    *[({"seed": -1}, "--seed"), ({**ADAPTER, "token_loss": "mlm"}, "--token_loss")],
    *[({**ADAPTER, "pair_weight": 0.0}, "--pair_weight 0"), ({"adapter_size": 6}, "--adapter")],
    *[({"resume_with": ["seed=2"]}, "--resume_with seed"), ({"resume_with": ["max_steps=0"]}, "--max_steps 0")],
    *[({"adapter": "fusion"}, "--adapters|--adapter_size"), ({"adapter": "lora", "adapters": ["x"]}, "--adapters")],
]


@pytest.mark.parametrize(("settings", "flag"), REFUSALS)
def test_settings_that_cannot_be_meant_are_refused_by_name(settings, flag):
    with pytest.raises(KinspanError, match=flag):
        check(PretrainConfig(**settings))


def test_paths_are_taken_and_a_number_of_warm_up_steps_replaces_epochs(tmp_path):
    lengths = {"max_epochs": 1.0, "warmup_epochs": 0.1, "resume_with": ["max_steps=9", "warmup_steps=2"]}
    config = PretrainConfig(model=tmp_path, corpus=(tmp_path,), output_dir=tmp_path, **lengths)
    assert (config.model, config.corpus, config.output_dir) == (str(tmp_path), [str(tmp_path)], str(tmp_path))
    check(config)
    assert {"max_epochs", "warmup_epochs"} <= set(config.list_resumed())


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"bf16": {}}', '{"fp16": true}', '{"zero_optimization": 2}', '{"gradient_allreduce_op": "sum"}']
    + ['{"activation_checkpointing": {}}', '{"managed_gradient_accumulation": false}', '{"fp16": {"enabled": true}}']
    + ['{"zero_optimization": {"stage": 3, "zero_quantized_weights": true}}']
    + [f'{{"zero_optimization": {{"stage": {stage}}}}}' for stage in ('"2"', "7", "-1", "1.0", "true", "null")],
)
def test_bad_deepspeed_settings_are_one_line(text, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises(KinspanError, match=f"--deepspeed_config {path}") as caught:
        read_deepspeed_config(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", sorted(Path("ds_configs").glob("*.json")), ids=lambda path: path.stem)
def test_the_shipped_settings_of_deepspeed_are_ones_that_were_tried(path):
    assert read_deepspeed_config(str(path)) == json.loads(path.read_text())
