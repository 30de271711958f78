"""Releases of fine-tuned rankers: the best checkpoint of a seed with a card that says what was measured."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import read_object
from finetune.evaluation.metrics import MAP
from finetune.training.card import ABOUT, format_card
from finetune.training.plan import BEST, DEV
from pretrain.engine.log import complete_lines
from pretrain.release.curve import CURVE, draw_curve
from pretrain.release.folder import CARD, FACTS, replace_release
from pretrain.release.metadata import CardOverrides

CURVES = {"loss": "training loss", MAP: "MAP"}
RESULTS = "results.json"
WEIGHTS = "model.safetensors"
REPAIR = "the same kinspan finetune command again writes it anew"


def find_ranker(source: Path) -> Path | None:
    """The folder of the ranker that ``source`` means: the folder itself, a seed's, or an experiment's, of which the
    seed with the highest dev MAP is taken. None where it is of no fine-tuning.

    Raises KinspanError where the experiment is not complete, or that seed's ranker is gone.
    """
    for folder in (source, source / BEST):
        if (folder / ABOUT).is_file():
            return folder
    if not (source / RESULTS).is_file():
        if any(source.glob("seed-*")):
            raise KinspanError(
                f"{source} holds a fine-tuning that is not complete: run the same kinspan finetune command again, or "
                "give the folder of a seed that is"
            )
        return None
    results = read_object(source / RESULTS, REPAIR)
    try:
        best = source / f"seed-{max(results['seeds'], key=lambda run: run[DEV][MAP])['seed']}" / BEST
    except (LookupError, TypeError, ValueError) as error:
        raise KinspanError(f"{source / RESULTS} is damaged ({quote_error(error)}): {REPAIR}") from error
    if not (best / ABOUT).is_file():
        raise KinspanError(
            f"{best} is gone, and no other seed has a higher dev MAP: {REPAIR}, or give the folder of another seed"
        )
    return best


def read_experiment(ranker: Path) -> dict[str, Any]:
    """The results of the experiment that a ranker is of; empty where it is not complete, or lies elsewhere."""
    results = ranker.resolve().parent.parent / RESULTS
    return read_object(results, REPAIR) if results.is_file() else {}


def release_ranker(
    source: Path, output: Path, stated: CardOverrides | None = None, measured: Mapping[str, Any] | None = None
) -> Path:
    """Writes the release of the ranker in ``source``, as ``find_ranker`` returned it, and returns ``output``.

    stated:   what the card shall say that the ranker's files do not
    measured: ``data``, the name of the data set, and ``figures``, by split, in place of those in the ranker's files

    Raises KinspanError where files are missing or damaged, or ``output`` holds something that is not a release.
    """
    about = read_object(source / ABOUT, REPAIR)
    if not (source / WEIGHTS).is_file():
        raise KinspanError(f"{source} has no {WEIGHTS}, and cannot be released without it")
    try:
        if measured:
            about["facts"]["Data"], about["figures"] = measured["data"], measured["figures"]
        with replace_release(output) as partial:
            shutil.copytree(source, partial, ignore=shutil.ignore_patterns(ABOUT, CARD, "*.tmp"))
            (partial / FACTS).write_text(json.dumps(about, indent=1) + "\n")
            curve = CURVE if draw_curve(_read_log(source.parent), CURVES, partial / CURVE) else ""
            card = format_card(about, stated or CardOverrides(), curve)
            (partial / CARD).write_text(card, encoding="utf-8")
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise KinspanError(f"{source / ABOUT} is damaged ({quote_error(error)}): {REPAIR}") from error
    return output


def _read_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in complete_lines(folder / "metrics.jsonl")]
