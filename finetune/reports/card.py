"""The model card of a ranker."""

from collections.abc import Mapping
from typing import Any

from finetune.evaluation.metrics import TITLES
from pretrain.release.metadata import CardOverrides, make_metadata, render_card

CROSS_ENCODER, BI_ENCODER = "cross-encoder", "bi-encoder"
# Of a ranker that was best at step 0: by its figures alone it passes for a trained one
AS_STARTED = (
    "no update improved the dev MAP, so this is the starting model (a new head of a cross-encoder is random; a "
    "bi-encoder does not use the head of its start)"
)
AS_TRANSFERRED = "no update of the adaptation improved the dev MAP, so this is the transferred model"


def format_card(about: Mapping[str, Any], stated: CardOverrides, curve: str = "") -> str:
    """Returns the card: Markdown with the hub's block of metadata.

    about: what ``facts.describe_ranker`` returns
    curve: the picture of the training curves that lies beside the card; empty: there is none
    """
    facts, figures, datasets = about["facts"], about["figures"], about["datasets"]
    kind = about.get("kind", CROSS_ENCODER)
    task = "text-ranking" if kind == CROSS_ENCODER else "sentence-similarity"
    title = f"{facts['Starting model']} fine-tuned on {facts['Data']}"
    metadata = make_metadata(
        stated,
        [kind, "answer-sentence-selection", "kinspan"],
        base_model=about["base_model"],
        datasets=datasets,
        task=task,
    )
    return render_card(
        "ranker.md",
        metadata,
        stated,
        title=title,
        kind=kind,
        max_length=about["max_length"],
        facts=facts,
        figures=figures,
        metrics=[metric for metric in TITLES if all(metric in of_split for of_split in figures.values())],
        titles=TITLES,
        curve=curve,
    )
