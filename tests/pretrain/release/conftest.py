"""A run folder that was not trained, which a release can be made of."""

import json

import pytest
from safetensors.torch import load_file, save_file

from data_pipeline.tokenizers import load_tokenizer
from pretrain.checkpoints.manifest import make_entry, write_manifest
from pretrain.modeling.pair_model import load_model
from pretrain.release.release import MODEL_FOLDER
from tests.synthetic import short_tokenizer


@pytest.fixture(params=["bert"])
def trained(request, make_model, tmp_path):
    """A run folder with one checkpoint, and the model that is in it."""
    model, _ = load_model(str(make_model(request.param, initializer_range=0.1)), seed=5)
    run = tmp_path / "run"
    load_tokenizer(short_tokenizer()).save_pretrained(str(run / MODEL_FOLDER))
    model.config.to_json_file(str(run / MODEL_FOLDER / "config.json"), use_diff=False)
    corpus = {"fingerprint": "f" * 64, "totals": {"documents": 1, "paragraphs": 1, "tokens": 1}, "sources": []}
    settings = {"objective": "ssp", "pair_weight": 1.0, "mlm_weight": 1.0, "global_batch_size": 8}
    settings |= {"learning_rate": 1e-4, "warmup_steps": 1, "seed": 1}
    ssp = {"name": "ssp", "share": 1.0, "asks": "A or B", "negatives": "", "source": "", "pairs_per_anchor": 5}
    facts = {"model": {"name": "small"}, "corpus": corpus, "settings": settings, "objectives": [ssp]}
    facts |= {"token_loss": "mlm", "max_length": 128, "precision": "fp32", "zero_stage": 2}
    facts |= {"total_steps": 3, "warmup_steps": 1, "eval_pairs": 40}
    (run / "run.json").write_text(json.dumps(facts))
    figures = {"step": 3, "split": "validation", "loss": 1.0, "pair_loss": 0.4321, "pair_auc": 0.8}
    lines = [{**figures, "step": 0, "loss": 2.0}, figures]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    whole = run / "checkpoints/step-00000003"
    whole.mkdir(parents=True)
    save_file({k: v.clone() for k, v in dict(model.named_parameters()).items()}, str(whole / "weights.safetensors"))
    write_manifest(whole, {"weights.safetensors": make_entry(whole / "weights.safetensors")})
    return run, model.eval()


def write_checkpoint(run, step, add=0.0):
    """Writes a later checkpoint, with ``add`` added to each number of the first one, and returns it."""
    folder = run / f"checkpoints/step-{step:08d}"
    folder.mkdir()
    weights = load_file(str(run / "checkpoints/step-00000003/weights.safetensors"))
    save_file({name: tensor + add for name, tensor in weights.items()}, str(folder / "weights.safetensors"))
    write_manifest(folder, {"weights.safetensors": make_entry(folder / "weights.safetensors")})
    return folder
