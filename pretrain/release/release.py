"""Releases: a trained model as a folder that transformers and sentence-transformers load without code of ours."""

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import read_object
from pretrain.checkpoints.manifest import find_damage
from pretrain.checkpoints.reader import get_step, list_checkpoints
from pretrain.engine.log import read_metrics
from pretrain.modeling.families import FAMILIES

from .adapter import fill_adapter_release
from .card import Kind, find_warnings, format_card
from .curve import CURVE, OF_PRETRAINING, draw_curve
from .folder import CARD, FACTS, replace_release, write_max_length
from .metadata import CardOverrides
from .siamese import fill_siamese_folder, name_encoder

logger = logging.getLogger(__name__)

MODEL_FOLDER = "model"  # in a run: the config and the tokenizer
GENERATOR_FOLDER = "generator"  # in a run with replaced-token detection: the config; in its release: the model
RELEASED_FILES = ("weights.safetensors", "state.json")  # of a checkpoint: all that a release needs
ATTEMPTS = 5  # to find a checkpoint that a run under way does not remove meanwhile
WORD_TABLE = "electra.embeddings.word_embeddings"


def release(source: Path, output: Path, average: int = 1, stated: CardOverrides | None = None) -> Path:
    """Writes the release of one checkpoint, or of a run's newest one with valid weights, and returns ``output``.

    average: the weights are the mean of this checkpoint's and of those of ``average - 1`` before it
    stated:  what the card shall say that the run does not know

    Raises KinspanError if there are too few valid checkpoints, or ``output`` holds something that is not a release.
    """
    for _ in range(ATTEMPTS):  # a run that is still training removes checkpoints while they are being read
        run, checkpoint = _find_checkpoint(source)
        averaged = _find_averaged(checkpoint, average)
        try:
            state = read_object(checkpoint / "state.json", "release another checkpoint")
            weights = average_weights(averaged)
            break
        except (OSError, KinspanError) as error:
            if checkpoint.exists():
                raise KinspanError(f"{checkpoint} cannot be read: {quote_error(error)}") from error
    else:
        raise KinspanError(f"{source}: the run removes its checkpoints faster than they can be read: try again")
    try:
        steps = sorted(get_step(path) for path in averaged)
        write_release(run, weights, state["step"], output, stated, averaged_steps=steps, with_curve=True)
        facts = read_run_facts(run, state["step"])
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise KinspanError(f"{run} cannot be released, its run.json is damaged: {quote_error(error)}") from error
    if run == source and facts["step"] < facts["total_steps"]:
        logger.warning("the run is not complete: this is step %d of %d", facts["step"], facts["total_steps"])
    for warning in find_warnings(facts):
        logger.warning("%s", warning)
    return output


def _find_checkpoint(source: Path) -> tuple[Path, Path]:
    """Returns the folder of the run, and the checkpoint that ``source`` means."""
    if (source / "weights.safetensors").is_file():
        source = source.resolve()  # it may be ".", and its name says which step it is
        if not source.name.removeprefix("step-").isdecimal():
            raise KinspanError(f"--run_dir {source}: a checkpoint is called step-00000100")
        if damage := _find_damage(source):
            raise KinspanError(f"--run_dir {source}: {damage}")
        run = source.parent.parent
        if not (run / "run.json").is_file():
            raise KinspanError(f"--run_dir {source}: {run} has no run.json, which a release needs")
        return run, source
    if not (source / "run.json").is_file():
        raise KinspanError(f"--run_dir {source} is neither a run nor a checkpoint, nor of kinspan finetune")
    for _ in range(ATTEMPTS):
        listed = list_checkpoints(source / "checkpoints")
        skipped: list[str] = []
        for checkpoint in listed:
            damage = _find_damage(checkpoint)
            if not damage:
                for line in skipped:
                    logger.warning("left out %s", line)
                return source, checkpoint
            if checkpoint.exists():
                skipped.append(f"{checkpoint}: {damage}")
        if len(skipped) == len(listed):
            break  # none was removed meanwhile
    raise KinspanError(f"--run_dir {source} has no valid checkpoint")


def _find_averaged(checkpoint: Path, count: int) -> list[Path]:
    """Returns the checkpoint and the ``count - 1`` newest valid ones before it, newest first."""
    chosen = [checkpoint]
    for older in list_checkpoints(checkpoint.parent) if count > 1 else []:
        if len(chosen) < count and get_step(older) < get_step(checkpoint) and not _find_damage(older):
            chosen.append(older)
    if len(chosen) < count:
        raise KinspanError(f"--average {count}: the run keeps {len(chosen)} valid checkpoints up to this one")
    return chosen


def average_weights(checkpoints: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Returns the mean of each tensor over the checkpoints, summed in fp64 (Izmailov et al., 2018, "Averaging Weights
    Leads to Wider Optima and Better Generalization").

    Raises ValueError if the checkpoints hold different tensors.
    """
    first, *others = checkpoints
    weights = load_file(str(first / "weights.safetensors"))
    if not others:
        return weights
    sums = {name: tensor.double() for name, tensor in weights.items()}
    for checkpoint in others:
        more = load_file(str(checkpoint / "weights.safetensors"))
        if more.keys() != sums.keys():
            raise ValueError(f"{checkpoint} holds other tensors than {first}")
        for name, tensor in more.items():
            sums[name] += tensor
    return {name: (total / len(checkpoints)).to(weights[name].dtype) for name, total in sums.items()}


def _find_damage(checkpoint: Path) -> str | None:
    """Returns what is wrong with a checkpoint's weights, if anything; warns of damage elsewhere."""
    damage = find_damage(checkpoint)
    if damage and not (weights := find_damage(checkpoint, RELEASED_FILES)):
        logger.warning("%s: %s; no run can resume from it", checkpoint, damage)
        return weights
    return damage


def write_release(
    run: Path,
    weights: dict[str, torch.Tensor],
    step: int,
    output: Path,
    stated: CardOverrides | None = None,
    averaged_steps: Sequence[int] = (),
    with_curve: bool = False,
) -> None:
    """Writes weights, config, tokenizer and model card to a folder beside ``output``, which is renamed at the end.

    averaged_steps: those whose weights were averaged; one or none is no average
    with_curve:     the training curves are drawn, too

    Raises KinspanError if ``output`` holds something that is not a release.
    """
    facts = read_run_facts(run, step)
    facts["revision"] = f"step-{step:08d}"
    if len(averaged_steps) > 1:
        facts["averaged_steps"] = list(averaged_steps)
        facts["revision"] += f"-average-{len(averaged_steps)}"
    with replace_release(output) as partial:
        if facts.get("base"):
            partial.mkdir(parents=True)
            fill_adapter_release(run, weights, facts, partial, output, stated or CardOverrides())
            (partial / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
            return
        _fill_release(run, weights, facts, partial)
        lines = [line for line in read_metrics(run) if line["step"] <= step]
        curve = CURVE if with_curve and draw_curve(lines, OF_PRETRAINING, partial / CURVE) else ""
        model_config = json.loads((partial / "config.json").read_text(encoding="utf-8"))
        model_type = model_config["model_type"]
        kind: Kind = "bi-encoder" if facts["settings"].get("pair_loss") else "cross-encoder"
        known = {"size": model_config["hidden_size"], "architecture": name_encoder(model_type)}
        card = format_card(facts, model_type, stated or CardOverrides(), kind, curve, **known)
        (partial / CARD).write_text(card, encoding="utf-8")


def _fill_release(run: Path, weights: dict[str, torch.Tensor], facts: dict[str, Any], partial: Path) -> None:
    config = read_object(run / MODEL_FOLDER / "config.json", f"{run} cannot be released without it")
    shutil.copytree(run / MODEL_FOLDER, partial)
    write_max_length(partial, facts["max_length"])
    (partial / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    if facts["settings"].get("pair_loss"):
        fill_siamese_folder(partial, config, weights, facts["max_length"])
        return
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


def split_models(
    config: dict[str, Any], weights: dict[str, torch.Tensor]
) -> dict[str, tuple[dict[str, Any], dict[str, torch.Tensor]]]:
    """Returns config and weights for each subfolder of a release, by the names of the architecture's classes.

    weights: by PairModel's names; tied tensors occur once, under the encoder
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
    """Does the same for replaced-token detection: the discriminator with its two heads, and the generator.

    Tensors that both models share are written to both files. A disentangled word table is released as the sum that the
    discriminator uses.
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
    """Returns the config of a sequence classifier with one logit, which CrossEncoder turns into a probability."""
    out = _make_config(config, architecture)
    out["id2label"], out["label2id"] = {"0": "POSITIVE"}, {"POSITIVE": 0}
    out["problem_type"] = "multi_label_classification"
    out["sentence_transformers"] = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    return out


def read_run_facts(run: Path, step: int) -> dict[str, Any]:
    """Returns what the card and kinspan.json say: settings and figures, and no local path."""
    facts = read_object(run / "run.json", f"{run} cannot be released without it")
    lines = read_metrics(run)
    validation = [line for line in lines if line["split"] == "validation" and line["step"] <= step]
    return {**facts, "step": step, "first_validation": validation[:1], "last_validation": validation[-1:]}
