"""Figures that other commands wrote, for the model index of a release's card."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from data_pipeline.core.errors import KinspanError, quote_error
from finetune.evaluation.metrics import METRICS, RECALLS, RETRIEVAL_METRICS, TITLES
from pretrain.release.metadata import UNKNOWN, CardOverrides, make_results

from .facts import HUB_NAMES

BM25 = "BM25"
PAIR_FIGURES = {"auc": "roc_auc", "accuracy": "accuracy", "f1": "f1"}  # and the hub's names of them
PAIR_TITLES = {"roc_auc": "AUC", "accuracy": "accuracy", "f1": "F1"}


def read_results(paths: list[str], stated: CardOverrides) -> CardOverrides:
    """Adds entries of the model index from files: what kinspan evaluate pairs and kinspan evaluate print with
    ``--json`` (the last line counts), and the results.json of kinspan finetune.

    Raises KinspanError, naming the file, where it cannot be read or holds none of these.
    """
    results, measured = list(stated.results), list(stated.measured)
    for name in paths:
        try:
            found = _read_last_object(Path(name))
            results += (entries := list(_parse(found)))
            if not entries:
                raise KinspanError(f"a card has no place for its figures: measure one of {', '.join(TITLES.values())}")
            measured.append((name, _find_fingerprint(found)))
        except OSError as error:
            raise KinspanError(f"--results {name} cannot be read: {error.strerror}") from error
        except KinspanError as error:
            raise KinspanError(f"--results {name}: {error}") from error
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            raise KinspanError(
                f"--results {name} holds no figures of kinspan evaluate pairs --json, kinspan evaluate --json or "
                f"kinspan finetune ({quote_error(error)})"
            ) from error
    return replace(stated, results=tuple(results), measured=tuple(measured))


def _find_fingerprint(found: dict[str, Any]) -> str:
    """The fingerprint of the model that was measured, or fine-tuned and then measured."""
    if "fingerprints" not in found:
        raise KinspanError("an older version wrote it, which does not tell of which weights: measure again")
    return str(found["fingerprints"]["model"])


def _read_last_object(path: Path) -> dict[str, Any]:
    """The JSON object that the file is, or that its last line is."""
    text = path.read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(text.strip().splitlines()[-1])


def _parse(found: dict[str, Any]) -> Iterator[EvalResult]:
    if "objectives" in found:
        yield from _parse_pairs(found)
    elif "systems" in found:
        yield from _parse_comparison(found)
    else:
        yield from _parse_experiment(found)


def _parse_pairs(found: dict[str, Any]) -> Iterator[EvalResult]:
    """Of evaluate_pairs: figures over all pairs of each objective."""
    for name, measured in found["objectives"].items():
        figures = {hub: measured["all"][own][0] for own, hub in PAIR_FIGURES.items()}
        pairs = sum(measured["pairs"].values())
        title = f"{pairs:,} held-out pairs of the corpus {found['corpus']['name']} ({name})"
        yield from make_results(figures, PAIR_TITLES, title, split="validation", task="text-classification")


def _parse_comparison(found: dict[str, Any]) -> Iterator[EvalResult]:
    """Of evaluate: the one model that was measured."""
    systems = [system for system in found["systems"] if system["name"] != BM25]
    if len(systems) != 1:
        raise KinspanError(
            f"holds figures of {len(systems)} models, and it is not known which is this one: measure one"
        )
    name, _, place = found["data"].partition("=")
    dataset = HUB_NAMES.get(name, place if name == "hub" else UNKNOWN)
    title = f"{name} {found['split']}, {found['filter']}"
    yield from make_results(systems[0], TITLES, title, dataset, found["split"])


def _parse_experiment(found: dict[str, Any]) -> Iterator[EvalResult]:
    """Of finetune: the mean over its seeds, of rankers that were fine-tuned from this release."""
    split = "test" if "test" in found else "dev"
    shown = RETRIEVAL_METRICS if RECALLS[0] in found[split] else METRICS
    figures = {metric: found[split][metric]["mean"] for metric in shown}
    count = len(found["seeds"])
    title = f"{found['data']} {split}, after fine-tuning on it (mean of {count} seed{'s' * (count > 1)})"
    yield from make_results(figures, TITLES, title, HUB_NAMES.get(found["data"], UNKNOWN), split)
