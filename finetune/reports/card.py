"""The model card of a ranker."""

import textwrap
from collections.abc import Mapping
from typing import Any

from finetune.evaluation.metrics import TITLES
from pretrain.release.curve import CURVE
from pretrain.release.metadata import UNKNOWN, Stated, describe_licence, make_metadata, make_results
from pretrain.release.siamese import format_siamese_usage
from pretrain.release.usage import format_usage

TEST, WIDTH = "test", 120
CROSS_ENCODER, BI_ENCODER = "cross-encoder", "bi-encoder"
# Of a ranker that was best at step 0: by its figures alone it passes for a trained one
AS_STARTED = (
    "no update improved the dev MAP, so this is the model that training started from; a head that it lacked is random"
)

_TEXT = """---
{metadata}
---

# {title}

{what}

## Use

{usage}

{else_}

## Training

| | |
|---|---|
{training}

{curve}## Figures

{figures}

The checkpoint was chosen by its MAP on dev, so that its figures there are too high.

## Licence

{licence}
"""

_WHAT = {
    CROSS_ENCODER: "Given a question and a candidate sentence, it scores how well the candidate answers the question.",
    BI_ENCODER: "It turns questions and answers into vectors of length 1, each text alone: a right answer has a high "
    "cosine to its question. Made to find answers among many.",
}
_ELSE = {
    CROSS_ENCODER: "`AutoModelForSequenceClassification` gives the same score as a logit, which is above 0 where the "
    "candidate is called an answer.",
    BI_ENCODER: "`AutoModel` gives the hidden states of which the vector is the mean, over all tokens but padding: "
    "special tokens count.",
}


def format_card(about: Mapping[str, Any], stated: Stated, with_curve: bool = False) -> str:
    """Returns the card: Markdown with the Hub's block of metadata.

    about:      what ``facts.describe_ranker`` returns
    with_curve: the training curves lie beside the card
    """
    facts, figures = about["facts"], about["figures"]
    kind = about.get("kind", CROSS_ENCODER)
    task = "text-ranking" if kind == CROSS_ENCODER else "sentence-similarity"
    title = f"{facts['Starting model']} fine-tuned on {facts['Data']}"
    split = TEST if TEST in figures else next(iter(figures))
    datasets = about["datasets"]
    metadata = make_metadata(
        stated,
        title,
        [kind, "answer-sentence-selection", "kinspan"],
        base_model=about["base_model"],
        datasets=datasets,
        results=make_results(
            figures[split], TITLES, f"{facts['Data']} {split}", next(iter(datasets), UNKNOWN), split=split, task=task
        ),
        task=task,
    )
    shown = [metric for metric in TITLES if all(metric in of_split for of_split in figures.values())]
    lines = [f"| | {' | '.join(TITLES[metric] for metric in shown)} |", "|---" * (len(shown) + 1) + "|"]
    lines += [f"| {split} | {' | '.join(f'{of[metric]:.4f}' for metric in shown)} |" for split, of in figures.items()]
    return _TEXT.format(
        metadata=metadata,
        title=title,
        what=textwrap.fill(_WHAT[kind], WIDTH),
        else_=textwrap.fill(_ELSE[kind], WIDTH),
        usage=format_usage(stated, about["max_length"]) if kind == CROSS_ENCODER else format_siamese_usage(stated),
        training="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
        curve=f"![Training curves]({CURVE})\n\n" if with_curve else "",
        figures="\n".join(lines),
        licence=describe_licence(stated),
    )
