"""Writes a trained model to a folder that transformers and sentence-transformers load, and pushes it to the hub."""

import json
import logging
import re
from pathlib import Path

from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import HFValidationError, HTTPError, OfflineModeIsEnabled, RepositoryNotFoundError
from safetensors.torch import load_file, save_file

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import read_object
from pretrain.checkpoints.manifest import find_damage
from pretrain.checkpoints.reader import get_step, list_checkpoints
from pretrain.engine.log import find_ends, read_metrics
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.pair_model import TOKEN_HEAD, TOKEN_HEAD_INDEX

from .adapter import fill_adapter_release
from .card import CardOverrides, Facts, Kind, format_card
from .curve import CURVE, PRETRAINING_PANELS, draw_curve
from .folder import CARD, FACTS, copy_model, replace_release, write_max_length
from .siamese import ModelConfig, Weights, fill_siamese_folder, make_config, strip_prefix, write_json

log = logging.getLogger(__name__)

MODEL_FOLDER = "model"  # in a run's folder: the config and the tokenizer
GENERATOR_FOLDER = "generator"  # of replaced-token detection; in a run's folder: its config; in a release: the model
RELEASED_FILES = ("weights.safetensors",)  # the files of a checkpoint that a release needs
WORD_TABLE = "electra.embeddings.word_embeddings"
INITIAL_FILES = {".gitattributes", CARD}  # files of a repository that nothing was pushed to


def release(source: Path, output: Path, overrides: CardOverrides | None = None) -> Path:
    """Writes the release of a checkpoint, or of a run's newest valid checkpoint, to ``output``, which it returns."""
    run, checkpoint = _find_checkpoint(source)
    step = get_step(checkpoint)
    try:
        weights = load_file(str(checkpoint / "weights.safetensors"))
    except OSError as error:  # a run that is still training may have deleted the checkpoint
        raise KinspanError(f"--run_dir {checkpoint}: {quote_error(error)}") from error
    try:
        facts = _write_release(run, weights, step, output, overrides or CardOverrides())
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise KinspanError(f"{run} cannot be released, its run.json is damaged: {quote_error(error)}") from error
    if run == source and step < facts["total_steps"]:
        log.warning("the run is not complete: this is step %d of %d", step, facts["total_steps"])
    return output


def _find_checkpoint(source: Path) -> tuple[Path, Path]:
    """Returns the folder of the run, and the checkpoint to release."""
    if (source / "weights.safetensors").is_file():
        source = source.resolve()  # its name gives the step, and it may be "."
        if not source.name.removeprefix("step-").isdecimal():
            raise KinspanError(f"--run_dir {source}: a checkpoint's folder is named like step-00000100")
        if damage := find_damage(source, RELEASED_FILES):
            raise KinspanError(f"--run_dir {source}: {damage}")
        return source.parent.parent, source
    if not (source / "run.json").is_file():
        raise KinspanError(f"--run_dir {source} is neither a run nor a checkpoint")
    for checkpoint in list_checkpoints(source / "checkpoints"):
        damage = find_damage(checkpoint, RELEASED_FILES)
        if not damage:
            return source, checkpoint
        log.warning("skipped %s: %s", checkpoint, damage)
    raise KinspanError(f"--run_dir {source} has no valid checkpoint")


def _write_release(run: Path, weights: Weights, step: int, output: Path, overrides: CardOverrides) -> Facts:
    """Writes weights, config, tokenizer, training curves and model card, and returns the facts on the card."""
    validation = find_ends(line for line in read_metrics(run) if line["step"] <= step).get("validation", [])
    facts = read_object(run / "run.json", f"{run} cannot be released without it")
    while (history := facts.get("history")) and history[-1]["step"] >= step:  # of later checkpoints
        change = history.pop()
        facts["settings"] |= {name: old for name, (old, _) in change["settings"].items()}
        facts |= change["facts"]
    facts |= {"step": step, "first_validation": validation[:1], "last_validation": validation[1:]}
    facts["revision"] = f"step-{step:08d}"
    with replace_release(output) as partial:
        if facts.get("base"):
            partial.mkdir(parents=True)
            fill_adapter_release(run, weights, facts, partial, output, overrides)
        else:
            model_type = _fill_release(run, weights, facts, partial)
            lines = (line for line in read_metrics(run) if line["step"] <= step)
            curve = CURVE if draw_curve(lines, PRETRAINING_PANELS, partial / CURVE) else ""
            kind: Kind = "bi-encoder" if facts["settings"].get("pair_loss") else "cross-encoder"
            (partial / CARD).write_text(format_card(facts, model_type, overrides, kind, curve), encoding="utf-8")
        (partial / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def _fill_release(run: Path, weights: Weights, facts: Facts, partial: Path) -> str:
    """Writes the models and the tokenizer, and returns the type of the model."""
    config = _read_config(run, MODEL_FOLDER)
    copy_model(run / MODEL_FOLDER, partial)
    write_max_length(partial, facts["max_length"])
    if facts["settings"].get("pair_loss"):
        fill_siamese_folder(partial, config, weights, facts["max_length"])
        return config["model_type"]
    if facts["token_loss"] == "rtd":
        models, head = split_electra_models(config, _read_config(run, GENERATOR_FOLDER), weights)
    else:
        models, head = split_models(config, weights)
    for subfolder, (model_config, model_weights) in models.items():
        folder = partial / subfolder
        if subfolder:
            copy_model(run / MODEL_FOLDER, folder)  # with the tokenizer, so that each folder loads by itself
            write_max_length(folder, facts["max_length"])
        save_file(model_weights, str(folder / "model.safetensors"), {"format": "pt"})
        write_json(folder / "config.json", model_config)
    if head:
        _, classifier = models[""]
        save_file(head, str(partial / f"{TOKEN_HEAD}.safetensors"), {"format": "pt"})
        files = dict.fromkeys(classifier, "model.safetensors") | dict.fromkeys(head, f"{TOKEN_HEAD}.safetensors")
        size = sum(tensor.nbytes for tensor in (*classifier.values(), *head.values()))
        write_json(partial / TOKEN_HEAD_INDEX, {"metadata": {"total_size": size}, "weight_map": files})
    return config["model_type"]


def _read_config(run: Path, folder: str) -> ModelConfig:
    return read_object(run / folder / "config.json", f"{run} cannot be released without it")


def split_models(config: ModelConfig, weights: Weights) -> tuple[dict[str, tuple[ModelConfig, Weights]], Weights]:
    """Returns config and weights for each subfolder of a release, and the token head that is stored beside them.

    weights: by the names of PairModel's parameters; tied tensors occur once, under the encoder
    """
    family = FAMILIES[config["model_type"]]
    classifier, head = strip_prefix(weights, "classifier."), strip_prefix(weights, "mlm_head.")
    if not family.masked_lm_folder:
        return {"": (make_release_config(config, family.classifier), classifier)}, head
    encoder = {k: v for k, v in classifier.items() if k.startswith("model.")}
    models = {
        "": (make_release_config(config, family.classifier), classifier),
        family.masked_lm_folder: (make_config(config, family.masked_lm), encoder | head),
    }
    return models, {}


def split_electra_models(
    config: ModelConfig, generator_config: ModelConfig, weights: Weights
) -> tuple[dict[str, tuple[ModelConfig, Weights]], Weights]:
    """Returns the same for replaced-token detection: the discriminator, the generator and the detection head.

    Tensors that both models share are written to both files. A disentangled word table is released as the sum that the
    discriminator uses.
    """
    generator = strip_prefix(weights, "generator.")
    shared = {name: tensor for name, tensor in generator.items() if name.startswith("electra.embeddings.")}
    head = {name: tensor for name, tensor in weights.items() if name.startswith("discriminator_predictions.")}
    discriminator = shared | strip_prefix(weights, "classifier.")
    delta = discriminator.pop(f"{WORD_TABLE}.delta", None)
    if delta is not None:
        discriminator[f"{WORD_TABLE}.weight"] = shared[f"{WORD_TABLE}.weight"] + delta
    family = FAMILIES[config["model_type"]]
    models = {
        "": (make_release_config(config, family.classifier), discriminator),
        GENERATOR_FOLDER: (make_config(generator_config, family.masked_lm), generator),
    }
    return models, head


def make_release_config(config: ModelConfig, architecture: str) -> ModelConfig:
    """Returns the config of a sequence classifier with one logit, which CrossEncoder turns into a probability."""
    return {
        **make_config(config, architecture),
        "id2label": {"0": "POSITIVE"},
        "label2id": {"POSITIVE": 0},
        "problem_type": "multi_label_classification",
        "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
    }


def push(folder: Path, repository: str, public: bool = False) -> None:
    """Replaces a repository's content with this release, and tags it with the release's revision.

    public: creates the repository as public, or allows writing to one that is
    """
    api, tag = HfApi(), str(read_object(folder / FACTS, "release it again")["revision"])
    try:
        ModelCard.load(folder / CARD).validate()
        try:
            if not api.repo_info(repository).private and not public:
                raise KinspanError(f"--push_to_hub {repository}: it is public: give --public, or make it private")
        except RepositoryNotFoundError:
            api.create_repo(repository, private=not public, exist_ok=True)
        files = set(api.list_repo_files(repository))
        if FACTS not in files and files - INITIAL_FILES:
            raise KinspanError(f"--push_to_hub {repository}: it holds something that is not a release")
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=f"Release {tag}", delete_patterns="*"
        )
        if tag in (ref.name for ref in api.list_repo_refs(repository).tags):
            api.delete_tag(repository, tag=tag)
        api.create_tag(repository, tag=tag, revision=commit.oid)
    except (HTTPError, HFValidationError, OfflineModeIsEnabled, OSError, RuntimeError, ValueError) as error:
        # The query of a signed URL is a secret
        message = re.sub(r"(https?://[^\s?'\"]+)\?\S*", r"\1", quote_error(error))
        raise KinspanError(f"--push_to_hub {repository}: {message}") from error
    log.info("pushed %s, tagged %s", commit.commit_url, tag)
