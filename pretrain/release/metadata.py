"""Model cards: the block at the top, by which the hub files a model, and the templates below it."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.pages import render_template

from .folder import fingerprint_model

UNKNOWN = "unknown"  # the hub's own word for a licence, or a data set, that nobody has named
TEMPLATES = Path(__file__).resolve().parent / "templates"
HERE = "path/to/this/folder"  # stands in the card's code where the release is in no repository
QUESTION = "What do cats eat?"  # of the card's code
CANDIDATES = ("Cats are hunters that live on mice and birds.", "The railway opened in 1893.")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*|code|multilingual")
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_FEWEST_DIGITS = 4


@dataclass(frozen=True)
class CardOverrides:
    """What a card says that no file of the run tells; what is left out here stays unsaid.

    base_model: the hub's name of the model that training started from, where the run does not know it
    repository: OWNER/NAME on the hub, which the card's code then loads
    results:    figures that were measured elsewhere, for the model index
    measured:   the files of these figures, and of each the fingerprint of the model that they are of
    """

    licence: str = ""
    base_model: str = ""
    datasets: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    repository: str = ""
    results: tuple[EvalResult, ...] = ()
    measured: tuple[tuple[str, str], ...] = ()


def check_stated(stated: CardOverrides) -> None:
    """Raises KinspanError for what the hub would refuse, before anything is written or sent."""
    if stated.licence and not _LICENCE.fullmatch(stated.licence):
        raise KinspanError(f"--licence {stated.licence!r} is no name that the hub knows: apache-2.0, mit, cc-by-sa-4.0")
    for code in stated.languages:
        if not _LANGUAGE.fullmatch(code):
            raise KinspanError(f"--language {code!r} is no ISO 639 code: en, de, multilingual, ...")
    named = [("base_model", stated.base_model)] if stated.base_model else []
    for flag, name in [*named, *(("datasets", name) for name in stated.datasets)]:
        try:
            validate_repo_id(name)
        except HFValidationError as error:
            raise KinspanError(f"--{flag} {name!r} is no name on the hub, such as OWNER/NAME: {error}") from error


def check_measured(stated: CardOverrides, folder: Path) -> None:
    """Raises KinspanError where figures are not of the model in ``folder``."""
    own = fingerprint_model(str(folder)) if stated.measured else ""
    for name, fingerprint in stated.measured:
        if fingerprint != own:
            raise KinspanError(
                f"--results {name}: these figures are of another model (fingerprint {fingerprint}, and this is {own}): "
                "release without --results, measure that, and release again"
            )


def make_metadata(
    stated: CardOverrides,
    model_name: str,
    tags: Iterable[str],
    base_model: str | None = None,
    datasets: Sequence[str] = (),
    results: Sequence[EvalResult] = (),
    library: str | None = "sentence-transformers",
    task: str = "text-ranking",
) -> ModelCardData:
    """The block. Base model and data sets that are ``stated`` replace what the run knows; results add up."""
    measured = [result for result in (*results, *stated.results) if is_finite(result.metric_value)]
    return ModelCardData(
        license=stated.licence or UNKNOWN,
        base_model=stated.base_model or base_model,
        datasets=list(stated.datasets or datasets) or None,
        language=list(stated.languages) or None,
        library_name=library,
        pipeline_tag=task,
        tags=list(tags),
        model_name=model_name if measured else None,
        eval_results=measured or None,
        metrics=list(dict.fromkeys(result.metric_type for result in measured)) or None,
    )


def make_results(
    figures: Mapping[str, float],
    titles: Mapping[str, str],
    name: str,
    dataset: str = UNKNOWN,
    split: str | None = None,
    task: str = "text-ranking",
) -> list[EvalResult]:
    """An entry of the model index for each figure that has a title. ``dataset``: the hub's name of what it was measured
    on"""
    return [
        EvalResult(
            task_type=task,
            dataset_type=dataset,
            dataset_name=name,
            dataset_config=re.sub(r"\W+", "-", name).strip("-"),  # figures of equal type, split and config are merged
            dataset_split=split,
            metric_type=key,
            metric_name=title,
            metric_value=round(figures[key], _FEWEST_DIGITS),
        )
        for key, title in titles.items()
        if key in figures and is_finite(figures[key])
    ]


def is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def render_card(template: str, metadata: ModelCardData, stated: CardOverrides, **values: Any) -> str:
    """Fills one of the templates in ``templates/``.

    Raises KinspanError where the hub's library cannot read the card's block back, such as for an odd model name.
    """
    text = render_template(
        TEMPLATES,
        template,
        {"commas": "{:,}".format, "percent": "{:.0%}".format},
        metadata=metadata.to_yaml().strip(),
        stated=stated,
        where=stated.repository or HERE,
        question=QUESTION,
        candidates=CANDIDATES,
        **values,
    )
    try:
        ModelCard(text)
    except Exception as error:  # YAML's, and the library's own of each field
        raise KinspanError(f"the model card cannot be read back: {quote_error(error)}") from error
    return text
