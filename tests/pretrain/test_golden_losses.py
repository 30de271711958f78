"""The losses of short runs are what they were when the files in ``golden/`` were written.

They guard the numerics against changes that nobody meant: of sampling, masking, packing, loss weights, the optimiser,
the schedule. Where a change is meant, the files are written anew, and the new ones are part of that change:

    python -m pytest tests/pretrain/test_golden_losses.py --write_golden

In fp32 on a CPU. Dropout is off but in one run.
"""

import json
from pathlib import Path

import pytest

from data_pipeline.core.default_model import default_model
from pretrain.config import PretrainConfig
from pretrain.run import pretrain

GOLDEN = Path(__file__).parent / "golden"
LOGGED = ("loss", "mlm_loss", "rtd_loss", "pair_loss", "grad_norm")
TOLERANCE = 1e-4  # relative: without vector instructions, or with two threads, they stay within
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SETTINGS = {"max_steps": 20, "log_steps": 1, "eval_pairs": 0, "save_steps": 1000, "global_batch_size": 10}
SETTINGS |= {"micro_batch_size": 4, "max_length": 32, "learning_rate": 3e-3, "precision": "fp32"}
SETTINGS |= {"weight_decay": 0.5}  # so much that the losses show a tenth more or less
RUNS = {
    **{name: ("bert", STILL, {"objective": name}) for name in ("ssp", "sp", "psd", "nsp", "sop", "ict", "all")},
    **{f"rtd-{how}": ("electra", STILL, {"embedding_sharing": how}) for how in ("none", "tied", "disentangled")},
    "whole-words": ("bert", STILL, {"whole_word_masking": True}),
    "dropout": ("bert", {}, {"deepspeed_config": "ds_configs/zero0.json"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_losses_are_as_they_were(name, make_model, default_corpus, tmp_path, request):
    family, options, settings = RUNS[name]
    given = {"model": str(make_model(family, default_model(), **options)), "corpus": str(default_corpus)}
    given |= {"output_dir": str(tmp_path)}
    pretrain(PretrainConfig(**given, **SETTINGS | settings))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    found = {figure: [line[figure] for line in lines] for figure in LOGGED if figure in lines[0]}
    assert len(found["loss"]) == SETTINGS["max_steps"]
    path = GOLDEN / f"{name}.json"
    if request.config.getoption("--write_golden"):
        rounded = {figure: [float(f"{value:.7g}") for value in values] for figure, values in found.items()}
        path.write_text(json.dumps({"settings": SETTINGS | settings, **rounded}, indent=1) + "\n")
    golden = json.loads(path.read_text())
    assert golden.pop("settings") == SETTINGS | settings
    assert found.keys() == golden.keys()
    for figure, values in golden.items():
        assert found[figure] == pytest.approx(values, rel=TOLERANCE), figure
