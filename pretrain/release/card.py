"""Model cards: the block of metadata that the hub reads, and the card of a pre-training run."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import ModelCardData

from data_pipeline.core.pages import render_template
from objectives import OBJECTIVES
from pretrain.engine.log import find_warnings
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.siamese.model import TEMPERATURE

TEMPLATES = Path(__file__).resolve().parent / "templates"
EXAMPLE_FOLDER = "path/to/this/folder"  # in the card's code, unless the user names a repository
QUESTION = "What do cats eat?"  # in the card's code
CANDIDATES = ("Cats are hunters that live on mice and birds.", "The railway opened in 1893.")
Facts = dict[str, Any]  # the contents of run.json, or of a release's kinspan.json
Kind = Literal["cross-encoder", "bi-encoder", "adapter"]
_FIGURES = (
    *("pair_loss", "pair_mrr", "pair_r1", "pair_auc", "pair_accuracy", "pair_f1", "pair_f1_hard", "pair_f1_easy"),
    *("mlm_loss", "mlm_accuracy", "rtd_loss", "rtd_recall"),
)
_PART_FIGURES = ("pair_loss", "pair_auc", "pair_accuracy", "pair_f1")  # shown for each part of a mixture
_LOSSES = {"rtd": ("mlm", "rtd", "pair"), "mlm": ("mlm", "pair"), "none": ("pair",)}  # by token loss


@dataclass(frozen=True)
class CardOverrides:
    """Holds what a user sets on a card, in the hub's terms. ``repository``: OWNER/NAME"""

    licence: str = ""
    base_model: str = ""
    datasets: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    repository: str = ""


def make_metadata(
    overrides: CardOverrides,
    tags: Iterable[str],
    base_model: str | None = None,
    datasets: Sequence[str] = (),
    library: str | None = "sentence-transformers",
    task: str = "text-ranking",
) -> ModelCardData:
    """Returns the block of metadata. ``overrides`` take precedence over the other arguments."""
    return ModelCardData(
        license=overrides.licence or "unknown",
        base_model=overrides.base_model or base_model,
        datasets=list(overrides.datasets or datasets) or None,
        language=list(overrides.languages) or None,
        library_name=library,
        pipeline_tag=task,
        tags=list(tags),
    )


def render_card(template: str, metadata: ModelCardData, overrides: CardOverrides, **values: Any) -> str:
    """Returns the text of one of the templates in ``templates/``, filled in."""
    return render_template(
        TEMPLATES,
        template,
        {"commas": "{:,}".format, "percent": "{:.0%}".format},
        metadata=metadata.to_yaml().strip(),
        overrides=overrides,
        where=overrides.repository or EXAMPLE_FOLDER,
        question=QUESTION,
        candidates=CANDIDATES,
        **values,
    )


def format_card(
    facts: Facts,
    model_type: str,
    overrides: CardOverrides,
    kind: Kind = "cross-encoder",
    curve: str = "",
    title: str = "",
    tag: str = "",
    **more: Any,
) -> str:
    """Returns the card of a pre-training run: Markdown with the hub's block of metadata.

    facts:      from run.json, with the first and the last validation, see ``release.release``
    curve:      file name of the picture of the training curves; empty if there is none
    title, tag: an adapter's title and kind, for which ``more`` has base, part and size
    """
    token_loss, is_siamese = facts.get("token_loss", "mlm"), kind == "bi-encoder"
    objectives = [objective["name"].partition(":")[0] for objective in facts["objectives"]]
    first, last = ((facts[f"{which}_validation"] or [None])[0] for which in ("first", "last"))
    share = (last or {}).get("share_positive", 0)
    use = "sentence-transformers" if is_siamese else "answer-sentence-selection"
    metadata = make_metadata(
        overrides,
        [kind, use, *([tag] if tag else objectives), "kinspan"],
        base_model=None if facts.get("from_scratch") else facts["model"].get("hub_name"),
        library=None if kind == "adapter" else "sentence-transformers",
        task="sentence-similarity" if is_siamese else "text-ranking",
    )
    return render_card(
        "card.md",
        metadata,
        overrides,
        facts=facts,
        title=title or "-".join([facts["model"]["name"], *objectives, *(["siamese"] if is_siamese else [])]),
        kind=kind,
        family=FAMILIES[model_type],
        objective=", ".join(name.upper() if name in OBJECTIVES else name for name in objectives),
        with_generator=token_loss == "rtd",
        weights={name: facts["settings"][f"{name}_weight"] for name in _LOSSES[token_loss]},
        temperature=TEMPERATURE,
        max_length=facts["max_length"],
        curve=curve,
        warnings=find_warnings(facts),
        first=first,
        last=last,
        figures=_list_figures(facts, first, last) if last else [],
        is_validated=last is None or last["step"] == facts["step"],  # a run may validate less often than it saves
        positive_share=share,
        chance_loss=-sum(p * math.log(p) for p in (share, 1 - share) if p),  # in nats
        **more,
    )


def _list_figures(facts: Facts, first: Facts, last: Facts) -> list[str]:
    """Returns the names of the figures that the card shows: of all pairs, then of each part of a mixture."""
    parts = facts.get("parts") or [objective["name"] for objective in facts["objectives"]]
    corpora = [corpus["name"] for corpus in facts["corpus"].get("corpora", [])]
    part_figures = [f"{name}/{figure}" for name in dict.fromkeys([*corpora, *parts]) for figure in _PART_FIGURES]
    return [name for name in (*_FIGURES, *part_figures) if name in first and name in last]
