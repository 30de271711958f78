"""Writes adapters that were put together without training."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from huggingface_hub import ModelCardData
from safetensors import SafetensorError

from data_pipeline.errors import KinspanError
from data_pipeline.files import describe_write_error
from pretrain.modeling.adapters.combine import average, stack, write_tensors
from pretrain.modeling.adapters.folder import move_base, read_adapter
from pretrain.modeling.adapters.parts import describe_parts

FACTS = "kinspan.json"  # what a release was made of; a folder without it is no release

_CARD = """---
{metadata}
---

# {title}

{parts}: the {how} of {names}, adapters beside the frozen encoder **{base}** (fingerprint `{fingerprint}`), put together
without training.
"""


@contextmanager
def replace_folder(output: Path) -> Iterator[Path]:
    """Gives an empty folder beside ``output``, which takes its place once the block has filled it.

    Raises KinspanError where ``output`` holds something that is not a release, or cannot be written.
    """
    output = output.absolute()
    if output.exists() and not (output.is_dir() and ((output / FACTS).exists() or not any(output.iterdir()))):
        raise KinspanError(f"--output_dir {output} holds something that is no release: choose another folder")
    partial = output.with_name(output.name + ".tmp")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        shutil.rmtree(output, ignore_errors=True)
        os.replace(partial, output)
    except (OSError, SafetensorError) as error:
        raise KinspanError(f"--output_dir {describe_write_error(output, error)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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
    with replace_folder(output) as partial:
        write_tensors(made, partial, base)
        facts = {"how": how, "of": names, "weights": list(weights), "base": base.fingerprint}
        (partial / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
        metadata = ModelCardData(pipeline_tag="text-ranking", tags=["adapter", "kinspan"]).to_yaml().strip()
        card = _CARD.format(
            metadata=metadata,
            title=f"{made.name}: an adapter of {base.name}",
            parts=describe_parts(made.parts),
            how=how,
            names=", ".join(names),
            base=base.name,
            fingerprint=base.fingerprint[:16],
        )
        (partial / "README.md").write_text(card, encoding="utf-8")
