"""Model cards: the block at the top, by which the hub files a model, and the templates below it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from data_pipeline.core.pages import render_template

TEMPLATES = Path(__file__).resolve().parent / "templates"
HERE = "path/to/this/folder"  # in the card's code, if the release is in no repository
QUESTION = "What do cats eat?"  # in the card's code
CANDIDATES = ("Cats are hunters that live on mice and birds.", "The railway opened in 1893.")


@dataclass(frozen=True)
class CardOverrides:
    """Holds what a card says that no file of the run tells, by the hub's names. ``repository``: OWNER/NAME"""

    licence: str = ""
    base_model: str = ""
    datasets: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    repository: str = ""


def make_metadata(
    stated: CardOverrides,
    tags: Iterable[str],
    base_model: str | None = None,
    datasets: Sequence[str] = (),
    library: str | None = "sentence-transformers",
    task: str = "text-ranking",
) -> ModelCardData:
    """Returns the block; what is ``stated`` replaces what the run knows."""
    return ModelCardData(
        license=stated.licence or "unknown",
        base_model=stated.base_model or base_model,
        datasets=list(stated.datasets or datasets) or None,
        language=list(stated.languages) or None,
        library_name=library,
        pipeline_tag=task,
        tags=list(tags),
    )


def render_card(template: str, metadata: ModelCardData, stated: CardOverrides, **values: Any) -> str:
    """Fills one of the templates in ``templates/``."""
    return render_template(
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
