"""The model card of a ranker."""

from collections.abc import Mapping
from typing import Any

from huggingface_hub import ModelCardData

from finetune.evaluation.metrics import METRICS, TITLES

_TEXT = """---
{metadata}
---

# {title}

Given a question and a candidate sentence, it scores how well the candidate answers the question.

## Use

```python
from sentence_transformers import CrossEncoder

model = CrossEncoder("path/to/this/folder", max_length={max_length})
model.rank("A question?", ["One candidate.", "Another candidate."])
```

`AutoModelForSequenceClassification` gives the same score as a logit, which is above 0 where the candidate is called an
answer.

## Training

| | |
|---|---|
{training}

## Figures

{figures}

The checkpoint was chosen by its MAP on dev, so that its figures there are too high.

## Licence

None is stated here: those of the starting model and of the data apply. Add `license:` to the block at the top.
"""


def format_card(facts: Mapping[str, Any], max_length: int, figures: Mapping[str, Mapping[str, float]]) -> str:
    """Returns the card: Markdown with the Hub's block of metadata.

    facts:   what it was made of, in words: "Starting model", "Data" and so on
    figures: by split, some or all of ``metrics.METRICS``
    """
    metadata = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="text-ranking",
        tags=["cross-encoder", "answer-sentence-selection", "kinspan"],
    )
    shown = [metric for metric in METRICS if all(metric in of_split for of_split in figures.values())]
    lines = [f"| | {' | '.join(TITLES[metric] for metric in shown)} |", "|---" * (len(shown) + 1) + "|"]
    lines += [f"| {split} | {' | '.join(f'{of[metric]:.4f}' for metric in shown)} |" for split, of in figures.items()]
    return _TEXT.format(
        metadata=metadata.to_yaml().strip(),
        title=f"{facts['Starting model']} fine-tuned on {facts['Data']}",
        training="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
        max_length=max_length,
        figures="\n".join(lines),
    )
