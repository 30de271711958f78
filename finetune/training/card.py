"""The model card of a fine-tuned ranker."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from data_pipeline.core.default_model import find_hub_name, list_versions
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import JsonObject, read_object, write_atomically
from data_pipeline.tokenizers import shorten_name
from finetune.evaluation.metrics import TITLES
from finetune.ranking.kinds import BI_ENCODER, CROSS_ENCODER
from pretrain.release.card import CardOverrides, make_metadata, render_card
from pretrain.release.folder import CARD, FACTS

from .config import CONTRASTIVE, TEMPERATURE
from .stages import TrainingStage, name_transfer

ABOUT = "ranker.json"  # beside a ranker's weights: the content of its card
HUB_NAMES = {"wikiqa": "microsoft/wiki_qa"}  # names of data sets on the hub
# Notes on a ranker that was best at step 0, whose figures alone look like those of a trained one
AS_STARTED = (
    "no update improved the dev MAP, so this is the starting model (a new head of a cross-encoder is random; a "
    "bi-encoder does not use the head of its start)"
)
AS_TRANSFERRED = "no update of the adaptation improved the dev MAP, so this is the transferred model"

FiguresBySplit = Mapping[str, Mapping[str, float]]


def write_card(folder: Path, stage: TrainingStage, seed: int, step: int, figures: FiguresBySplit) -> None:
    """Writes the card of the ranker in ``folder``, which was best after ``step`` updates of the stage, and ABOUT: its
    ``facts`` in words, ``figures`` by split and the hub's names, without a local path, for the card of a release."""
    config = stage.config
    is_contrastive = config.loss == CONTRASTIVE
    is_adapted = bool(config.transfer) and stage.what != "transfer"
    trained_on = config.train_data or config.data, config.transfer
    facts = {
        "Starting model": shorten_name(str(config.model)),
        "Data": stage.train.name,
        "Transferred from": name_transfer(config) if is_adapted else None,
        "Questions and pairs": f"{stage.train.num_questions:,} and {stage.train.num_pairs:,}",
        "Loss": config.loss,
        "Updates": f"{step:,}" if step else f"0: {AS_TRANSFERRED if is_adapted else AS_STARTED}",
        "Pairs in an update": config.batch_size,
        "Wrong candidates of each question": config.own_negatives,
        "Temperature": (config.temperature or TEMPERATURE) if is_contrastive else None,
        "Peak learning rate": config.learning_rate,
        f"Tokens of a {'text' if is_contrastive else 'pair'}, at most": stage.max_length,
        "Seed": seed,
        "kinspan": list_versions()["kinspan"],
    }
    about = {
        "facts": {name: value for name, value in facts.items() if value is not None},
        "figures": {split: dict(of_split) for split, of_split in figures.items()},
        "max_length": stage.max_length,
        "kind": BI_ENCODER if is_contrastive else CROSS_ENCODER,
        "base_model": _find_base(str(config.model)),
        "datasets": [name for spec in trained_on if spec and (name := _find_set(spec))],
        "revision": f"seed-{seed}-step-{step:08d}",
    }
    write_atomically(folder / ABOUT, json.dumps(about, indent=1) + "\n")
    write_atomically(folder / CARD, format_card(about, CardOverrides()))


def _find_set(spec: str) -> str | None:
    """Returns the hub's name of a data set such as wikiqa=FOLDER or hub=OWNER/NAME."""
    name, _, place = spec.partition("=")
    if name == "hub":
        return None if Path(place).is_dir() else place
    return HUB_NAMES.get(name)


def _find_base(model: str) -> str | None:
    """Returns the hub's name of the model; of a release, that of the model which its pre-training started from."""
    if (Path(model) / FACTS).is_file():
        with suppress(KinspanError, AttributeError):
            return read_object(Path(model) / FACTS, "").get("model", {}).get("hub_name")
    return find_hub_name(model)


def format_card(about: JsonObject, overrides: CardOverrides, curve: str = "") -> str:
    """Returns the card: Markdown with the hub's block of metadata.

    about: as ``write_card`` writes it
    curve: file name of the picture of the training curves, beside the card; "": there is none
    """
    facts, figures, kind = about["facts"], about["figures"], about.get("kind", CROSS_ENCODER)
    metadata = make_metadata(
        overrides,
        [kind, "answer-sentence-selection", "kinspan"],
        base_model=about["base_model"],
        datasets=about["datasets"],
        task="text-ranking" if kind == CROSS_ENCODER else "sentence-similarity",
    )
    return render_card(
        "ranker.md",
        metadata,
        overrides,
        title=f"{facts['Starting model']} fine-tuned on {facts['Data']}",
        kind=kind,
        max_length=about["max_length"],
        facts=facts,
        figures=figures,
        metrics=[metric for metric in TITLES if all(metric in of_split for of_split in figures.values())],
        titles=TITLES,
        curve=curve,
    )
