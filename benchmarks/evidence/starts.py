"""Where arms begin: a small encoder trained from scratch, all-MiniLM-L6-v2, or an ELECTRA made of the small encoder.

Weights lie in the work folder: those of a start as long as the study lasts, those of a pre-training as long as rows
begin there. What is absent is made again, to the same bits.
"""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, ElectraConfig

from data_pipeline.files import read_object, write_atomically
from finetune.training.fingerprints import fingerprint_model
from pretrain.config import PretrainConfig
from pretrain.modeling.default_model import default_model
from pretrain.release.release import release
from pretrain.run import pretrain
from pretrain.runtime.precision import choose_precision

from .plan import RELEASE, Job, Places, name_pretraining, name_start
from .recipe import hash_settings, settle_precision

RUN = "run"
FIGURES = ("loss", "mlm_loss", "rtd_loss", "pair_loss", "pair_auc", "pair_auc_hard", "pair_auc_easy")
# Where a BERT's tensors are in an ELECTRA whose embeddings are as wide as its layers: the two compute the same.
ELECTRA_NAMES = {
    "bert.embeddings.": "electra.embeddings.",
    "bert.encoder.": "electra.encoder.",
    "cls.predictions.transform.dense.": "generator_predictions.dense.",
    "cls.predictions.transform.LayerNorm.": "generator_predictions.LayerNorm.",
    "cls.predictions.bias": "generator_lm_head.bias",
}


def make_start(scratch: dict[str, Any], start: str, places: Places, precision: str) -> dict[str, Any]:
    """Trains the start from scratch, or goes on with it, and returns what the page says of it."""
    folder = name_start(start, scratch, places)
    blank = folder / "blank"
    write_blank(scratch["config"], blank)
    settings = {"precision": precision, "max_length": 128, "eval_pairs": 1000, "micro_batch_size": 32}
    settings |= {"deepspeed_config": "ds_configs/zero1.json", **scratch["pretrain"]}
    summary = _pretrain(settings, str(blank), places.corpus, folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    curve = [[line["step"], round(line["mlm_loss"], 4)] for line in lines if line["split"] == "validation"]
    return {
        "fingerprint": hash_settings(scratch),
        "weights": fingerprint_model(str(folder / RELEASE)),
        "steps": summary["steps"],
        "tokens": summary["tokens"],
        "seconds": summary["wall_seconds"],
        "validation_mlm_loss": curve,
    }


def write_blank(config: dict[str, Any], folder: Path, with_weights: bool = False) -> None:
    """Writes a BERT of this shape, as a config or with random weights. Its vocabulary is BERT's, as all-MiniLM-L6-v2
    has it, so that both starts read one corpus."""
    tokenizer = AutoTokenizer.from_pretrained(default_model())
    tokenizer.save_pretrained(str(folder))
    shape = BertConfig(vocab_size=len(tokenizer), architectures=["BertForMaskedLM"], **config)
    shape.to_json_file(str(folder / "config.json"), use_diff=False)
    if with_weights:
        BertForMaskedLM(shape).save_pretrained(str(folder))


def find_start(start: str, scratch: dict[str, Any] | None, settings: dict[str, Any] | None, places: Places) -> Path:
    """The folder of the weights that a pre-training with these settings begins with, or a row without one.

    scratch: how the start is made here; None where it is all-MiniLM-L6-v2
    """
    found = Path(default_model()) if scratch is None else name_start(start, scratch, places) / RELEASE
    if settings is None or settings.get("token_loss") != "rtd":
        return found
    electra = found.with_name("electra")
    if not electra.is_dir():
        made = electra.with_name(f"electra-{os.getpid()}")  # another worker may make it at the same moment
        convert_to_electra(found, made)
        with suppress(OSError):
            made.rename(electra)
        shutil.rmtree(made, ignore_errors=True)
    return electra


def convert_to_electra(bert: Path, output: Path) -> None:
    """Writes an ELECTRA that computes what the BERT does: its encoder as the discriminator, all of it as generator/.

    The discriminator's head and pair head are not in the file, and so start fresh.
    """
    shutil.rmtree(output, ignore_errors=True)
    config = json.loads((bert / "config.json").read_text(encoding="utf-8"))
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    same = {name: config[name] for name in (*names, "max_position_embeddings", "type_vocab_size", "layer_norm_eps")}
    electra = ElectraConfig(embedding_size=config["hidden_size"], **same)
    weights = {}
    for name, tensor in load_file(str(bert / "model.safetensors")).items():
        for old, new in ELECTRA_NAMES.items():
            if name.startswith(old):
                weights[name.replace(old, new, 1)] = tensor
    encoder = {name: tensor for name, tensor in weights.items() if name.startswith("electra.")}
    for folder, tensors, architecture in (
        (output, encoder, "ElectraForPreTraining"),
        (output / "generator", weights, "ElectraForMaskedLM"),
    ):
        folder.mkdir(parents=True)
        AutoTokenizer.from_pretrained(bert).save_pretrained(str(folder))
        (folder / "config.json").write_text(json.dumps({**electra.to_dict(), "architectures": [architecture]}))
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()},
            folder / "model.safetensors",
            {"format": "pt"},
        )


def pretrain_and_release(job: Job, start: Path, places: Places) -> tuple[Path, dict[str, Any]]:
    """Returns the release of the job's pre-training, made unless it is there, and its figures."""
    folder = name_pretraining(job, places)
    settings = {**(job.pretrain or {}), "seed": job.seed}
    if settings.get("token_loss") == "rtd":
        settings["generator"] = str(start / "generator")
    summary = _pretrain(settings, str(start), places.corpus, folder)
    kept = {"steps": summary["steps"], "tokens": summary["tokens"], "seconds": summary["wall_seconds"]}
    kept["precision"] = summary.get("precision")  # weights of before do not say it
    for name in ("first_validation", "last_validation"):
        figures = summary[name] or {}
        kept[name] = {figure: round(figures[figure], 4) for figure in FIGURES if figure in figures}
    return folder / RELEASE, kept


def _pretrain(settings: dict[str, Any], model: str, corpus: str, folder: Path) -> dict[str, Any]:
    """Runs a pre-training to its end, or finds it there, and returns its summary. Its checkpoints are then removed."""
    done = folder / "done.json"
    if not done.exists():
        run = folder / RUN
        # On a GPU the same bits again need slower algorithms; on a processor all are such.
        settings = {"deterministic": torch.cuda.is_available(), **settle_precision(settings)}
        summary = pretrain(PretrainConfig(**settings, model=model, corpus=corpus, output_dir=str(run)))
        release(run, folder / RELEASE)
        shutil.copy(run / "metrics.jsonl", folder / "metrics.jsonl")
        # Said here, since another machine may go on from these weights.
        summary["precision"] = choose_precision(settings["precision"], zero_stage=1)
        write_atomically(done, json.dumps(summary) + "\n")
    shutil.rmtree(folder / RUN, ignore_errors=True)
    return read_object(done, f"delete {folder}")
