"""Writes adapters that were put together without training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from huggingface_hub import ModelCardData

from pretrain.modeling.adapters.combine import average, stack, write_tensors
from pretrain.modeling.adapters.folder import move_base, read_adapter
from pretrain.modeling.adapters.parts import describe_parts

from .folder import CARD, FACTS, replace_release
from .metadata import Stated, render_card


def write_combined(
    folders: Sequence[Path], how: Literal["stack", "average"], weights: Sequence[float], output: Path
) -> None:
    """Writes the stack or the average of adapters as an adapter of its own.

    weights: of an average; none: all alike

    Raises KinspanError where they do not go together.
    """
    adapters = [read_adapter(folder) for folder in folders]
    made = stack(adapters, output) if how == "stack" else average(adapters, weights, output)
    first = adapters[0]
    base = move_base(first.base, first.folder, output)
    names = [adapter.name for adapter in adapters]
    with replace_release(output) as partial:
        partial.mkdir(parents=True)
        write_tensors(made, partial, base)
        facts = {"how": how, "of": names, "weights": list(weights), "base": base.fingerprint}
        (partial / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
        card = render_card(
            "combined.md",
            ModelCardData(pipeline_tag="text-ranking", tags=["adapter", "kinspan"]),
            Stated(),
            title=f"{made.name}: an adapter of {base.name}",
            parts=describe_parts(made.parts),
            how=how,
            names=names,
            base=base,
        )
        (partial / CARD).write_text(card, encoding="utf-8")
