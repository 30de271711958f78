"""Releases: a trained model as a folder that transformers and sentence-transformers load without code of ours."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from data_pipeline.errors import KinspanError, quote_error
from data_pipeline.files import describe_write_error, read_object
from pretrain.checkpoints.manifest import find_damage
from pretrain.checkpoints.reader import list_checkpoints
from pretrain.modeling.families import FAMILIES
from pretrain.runtime.log import complete_lines

from .adapter import fill_adapter_release
from .card import find_warnings, format_card

MODEL_FOLDER = "model"  # in a run: the config and the tokenizer
GENERATOR_FOLDER = "generator"  # in a run with replaced-token detection: the config; in its release: the model
RELEASED_FILES = ("weights.safetensors", "state.json")  # of a checkpoint: all that a release needs
ATTEMPTS = 5  # to find a checkpoint that a run under way does not remove meanwhile
WORD_TABLE = "electra.embeddings.word_embeddings"


def release(source: Path, output: Path, tell: Callable[[str], None] = print) -> Path:
    """Writes the release of one checkpoint, or of a run's newest one with whole weights, and returns ``output``.

    tell: is given a line about each newer checkpoint that is left out, about damage beside the weights, and about
          figures that should make the reader wary

    Raises KinspanError where there are no whole weights, or ``output`` holds something that is not a release.
    """
    for _ in range(ATTEMPTS):  # a run that is still training removes checkpoints while they are being read
        run, checkpoint, notes = _find_checkpoint(source)
        try:
            state = read_object(checkpoint / "state.json", "release another checkpoint")
            weights = load_file(str(checkpoint / "weights.safetensors"))
            break
        except (OSError, KinspanError) as error:
            if checkpoint.exists():
                raise KinspanError(f"{checkpoint} cannot be read: {quote_error(error)}") from error
    else:
        raise KinspanError(f"{source}: the run removes its checkpoints faster than they can be read: try again")
    try:
        write_release(run, weights, state["step"], output)
        notes += find_warnings(read_run_facts(run, state["step"]))
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise KinspanError(
            f"{run} cannot be released ({quote_error(error)}): its run.json or {MODEL_FOLDER}/config.json is damaged"
        ) from error
    for note in notes:
        tell(f"warning: {note}")
    return output


def _find_checkpoint(source: Path) -> tuple[Path, Path, list[str]]:
    """The run's folder, the checkpoint that ``source`` means, and what the user should know of the choice."""
    if (source / "weights.safetensors").is_file():
        wrong, beside = _judge(source)
        if wrong:
            raise KinspanError(f"checkpoint {source}: {wrong}; release another one")
        run = source.resolve().parent.parent
        if not (run / "run.json").is_file():
            raise KinspanError(f"checkpoint {source} does not lie in its run's folder, which a release needs too")
        return run, source, beside
    if not (source / "run.json").is_file():
        raise KinspanError(f"{source} is neither a run nor a checkpoint: give the --output_dir of launch/pretrain.py")
    for _ in range(ATTEMPTS):
        listed = list_checkpoints(source / "checkpoints")
        skipped: list[str] = []
        for checkpoint in listed:
            wrong, beside = _judge(checkpoint)
            if not wrong:
                notes = [f"left out {text}; the older {checkpoint.name} is released instead" for text in skipped]
                return source, checkpoint, notes + beside
            if checkpoint.exists():
                skipped.append(f"{checkpoint}: {wrong}")
        if len(skipped) == len(listed):
            break  # none was removed meanwhile
    raise KinspanError(f"{source} has no checkpoint of whole weights: {'; '.join(skipped) or 'none was written yet'}")


def _judge(checkpoint: Path) -> tuple[str | None, list[str]]:
    """What keeps a checkpoint from being released, if anything does, and a note where it is damaged only elsewhere."""
    damage = find_damage(checkpoint)
    wrong = damage and find_damage(checkpoint, RELEASED_FILES)
    if wrong or not damage:
        return wrong, []
    return None, [f"{checkpoint}: {damage}; its weights are whole and are released, but no run can resume from it"]


def write_release(run: Path, weights: dict[str, torch.Tensor], step: int, output: Path) -> None:
    """Writes weights, config, tokenizer and model card to a folder beside ``output``, which is renamed at the end.

    Raises KinspanError where ``output`` holds something that is not a release.
    """
    output = output.absolute()
    if output.exists() and any(output.iterdir()) and not (output / "kinspan.json").exists():
        raise KinspanError(f"--output_dir {output} holds something that is no release: choose another folder")
    partial = output.with_name(output.name + ".tmp")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        _fill_release(run, weights, step, partial, output)
        shutil.rmtree(output, ignore_errors=True)
        os.replace(partial, output)
    except (OSError, SafetensorError) as error:
        raise KinspanError(f"the release {describe_write_error(output, error)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fill_release(run: Path, weights: dict[str, torch.Tensor], step: int, partial: Path, output: Path) -> None:
    """Writes every file of a release to the folder ``partial``, which does not exist yet and will become ``output``."""
    facts = read_run_facts(run, step)
    if facts.get("base"):
        partial.mkdir(parents=True)
        fill_adapter_release(run, weights, facts, partial, output)
        (partial / "kinspan.json").write_text(json.dumps(facts, indent=1) + "\n")
        return
    config = read_object(run / MODEL_FOLDER / "config.json", f"{run} cannot be released without it")
    shutil.copytree(run / MODEL_FOLDER, partial)
    if facts["token_loss"] == "rtd":
        generator = read_object(run / GENERATOR_FOLDER / "config.json", f"{run} cannot be released without it")
        models = split_electra_models(config, generator, weights)
    else:
        models = split_models(config, weights)
    for subfolder, (own_config, own_weights) in models.items():
        folder = partial / subfolder
        if subfolder:
            shutil.copytree(run / MODEL_FOLDER, folder)  # the tokenizer, so that each loads by itself
        save_file(own_weights, str(folder / "model.safetensors"), {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(own_config, indent=2, sort_keys=True) + "\n")
    (partial / "kinspan.json").write_text(json.dumps(facts, indent=1) + "\n")
    (partial / "README.md").write_text(format_card(facts, config["model_type"]), encoding="utf-8")


def split_models(
    config: dict[str, Any], weights: dict[str, torch.Tensor]
) -> dict[str, tuple[dict[str, Any], dict[str, torch.Tensor]]]:
    """The config and weights for each subfolder of a release; "" is the release itself.

    config:  of the run's model
    weights: by PairModel's names. They are returned by the names in the architecture's own classes; tied tensors occur
             once, under the encoder
    """
    family = FAMILIES[config["model_type"]]
    classifier = _strip_prefix(weights, "classifier.")
    head = _strip_prefix(weights, "mlm_head.")
    if not family.masked_lm_folder:
        return {"": (make_release_config(config, family.classifier), classifier | head)}
    encoder = {k: v for k, v in classifier.items() if k.startswith("model.")}
    return {
        "": (make_release_config(config, family.classifier), classifier),
        family.masked_lm_folder: (_make_config(config, family.masked_lm), encoder | head),
    }


def split_electra_models(
    config: dict[str, Any], generator_config: dict[str, Any], weights: dict[str, torch.Tensor]
) -> dict[str, tuple[dict[str, Any], dict[str, torch.Tensor]]]:
    """The same for replaced-token detection: the discriminator with its two heads, and the generator.

    weights: by ReplacedTokenModel's names. Tensors that both models share are named after the generator there, and are
             written to both files. A disentangled word table is released as the sum that the discriminator uses
    """
    generator = _strip_prefix(weights, "generator.")
    shared = {name: tensor for name, tensor in generator.items() if name.startswith("electra.embeddings.")}
    own = {name: tensor for name, tensor in weights.items() if name.startswith("discriminator_predictions.")}
    discriminator = shared | _strip_prefix(weights, "classifier.") | own
    delta = discriminator.pop(f"{WORD_TABLE}.delta", None)
    if delta is not None:
        discriminator[f"{WORD_TABLE}.weight"] = shared[f"{WORD_TABLE}.weight"] + delta
    family = FAMILIES[config["model_type"]]
    return {
        "": (make_release_config(config, family.classifier), discriminator),
        GENERATOR_FOLDER: (_make_config(generator_config, family.masked_lm), generator),
    }


def _strip_prefix(weights: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def _make_config(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    public = {k: v for k, v in config.items() if not k.startswith("_")}
    return {**public, "architectures": [architecture], "dtype": "float32"}


def make_release_config(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    """The config of a sequence classifier with one logit. CrossEncoder's activation makes it a probability."""
    out = _make_config(config, architecture)
    out["id2label"], out["label2id"] = {"0": "POSITIVE"}, {"POSITIVE": 0}
    out["problem_type"] = "multi_label_classification"
    out["sentence_transformers"] = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    return out


def read_run_facts(run: Path, step: int) -> dict[str, Any]:
    """What the card and kinspan.json say: settings and figures, and no local path."""
    facts = read_object(run / "run.json", f"{run} cannot be released without it")
    validation = []
    metrics = run / "metrics.jsonl"
    for line in complete_lines(metrics):
        entry = json.loads(line)
        if entry["split"] == "validation" and entry["step"] <= step:
            validation.append(entry)
    return {**facts, "step": step, "first_validation": validation[:1], "last_validation": validation[-1:]}
