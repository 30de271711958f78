"""Releases of fine-tuned rankers: the best checkpoint of a seed with a card that says what was measured."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import JsonObject, read_object
from finetune.evaluation.metrics import MAP
from pretrain.engine.log import read_metrics
from pretrain.engine.run_folder import RUN, SUMMARY
from pretrain.release.card import CardOverrides
from pretrain.release.curve import CURVE, draw_curve
from pretrain.release.folder import CARD, FACTS, copy_model, replace_release

from .card import ABOUT, format_card
from .experiment import FINETUNING_PANELS, RESULTS
from .stages import BEST, DEV

WEIGHTS = "model.safetensors"
INCOMPLETE = "holds a fine-tuning that is not complete"
REPAIR = "the same kinspan finetune command again writes it anew"


def find_ranker(source: Path) -> Path | None:
    """Returns the ranker's folder: ``source``, or a seed's or an experiment's best by dev MAP; None without one."""
    for folder in (source, source / BEST):
        if (folder / ABOUT).is_file():
            parent = folder.resolve().parent
            if (parent / RUN).is_file() and not (parent / SUMMARY).is_file():
                raise KinspanError(f"{parent} {INCOMPLETE}: run the same command again")
            return folder
    seeds = {path.name for path in source.glob("seed-*") if path.name[5:].isdecimal()}
    if not (source / RESULTS).is_file():
        if seeds:
            raise KinspanError(f"{source} {INCOMPLETE}: run the same command again")
        return None
    results = read_object(source / RESULTS, REPAIR)
    try:
        if lacking := seeds - {f"seed-{run['seed']}" for run in results["seeds"]}:
            raise KinspanError(f"{source / RESULTS} lacks {min(lacking)}: run all seeds again, or delete that folder")
        best = source / f"seed-{max(results['seeds'], key=lambda run: run[DEV][MAP])['seed']}" / BEST
    except (LookupError, TypeError, ValueError) as error:
        raise KinspanError(f"{source / RESULTS} is damaged ({quote_error(error)}): {REPAIR}") from error
    if not (best / ABOUT).is_file():
        raise KinspanError(f"{best}, which has the highest dev MAP, is gone: delete {best.parent} to train it again")
    return best


def read_experiment(ranker: Path) -> JsonObject:
    """Returns the results of a ranker's experiment; empty if it is not complete, or is elsewhere."""
    results = ranker.resolve().parent.parent / RESULTS
    return read_object(results, REPAIR) if results.is_file() else {}


def release_ranker(
    source: Path, output: Path, overrides: CardOverrides | None = None, measured: Mapping[str, Any] | None = None
) -> Path:
    """Writes the release of the ranker in ``source``, as ``find_ranker`` returned it, and returns ``output``.

    measured: ``data``, the name of the data set, and ``figures``, by split, in place of those in the ranker's files
    """
    about = read_object(source / ABOUT, REPAIR)
    if not (source / WEIGHTS).is_file():
        raise KinspanError(f"{source} has no {WEIGHTS}, and cannot be released without it")
    try:
        if measured:
            about["facts"]["Data"], about["figures"] = measured["data"], measured["figures"]
        with replace_release(output) as partial:
            copy_model(source, partial, ignore=shutil.ignore_patterns(ABOUT, CARD, "*.tmp"))
            (partial / FACTS).write_text(json.dumps(about, indent=1) + "\n")
            is_drawn = draw_curve(read_metrics(source.parent), FINETUNING_PANELS, partial / CURVE)
            card = format_card(about, overrides or CardOverrides(), CURVE if is_drawn else "")
            (partial / CARD).write_text(card, encoding="utf-8")
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise KinspanError(f"{source / ABOUT} is damaged ({quote_error(error)}): {REPAIR}") from error
    return output
