"""Adapters of one base put together: stacked, averaged, or merged into the base."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import REQUIRED, setting

DESCRIPTION = """Makes one folder of several adapters of the same base, without training.

stack: one after another in every layer, the last one's pair head on top; bottlenecks and fusions.
average: the weighted mean of adapters of one shape, pair heads included; of LoRA, of what is added to the weights.
merge: one adapter of LoRA added into its base, which gives a plain model for transformers and sentence-transformers;
bottlenecks have no place in a plain model.

A fusion is trained: kinspan pretrain --adapter fusion --adapters A B C."""

EPILOG = """examples:
  kinspan adapter combine --adapters adapters/beer/release adapters/travel/release --how average \\
      --weights 2 1 --output_dir adapters/both
  kinspan adapter combine --adapters adapters/beer/release --how merge --output_dir releases/beer"""


@dataclass
class CombineConfig:
    """Flags of this entry."""

    adapters: list[str] = setting(REQUIRED)
    """Folders of released adapters."""
    how: Literal["stack", "average", "merge"] = setting(REQUIRED)
    """See above."""
    output_dir: str = setting(REQUIRED)
    """Folder for the result; an older release there is replaced."""
    weights: list[float] = setting([])
    """For average: one for each adapter. Without it: all alike."""


def main() -> str:
    config = parse(CombineConfig, DESCRIPTION, EPILOG)
    if config.weights and config.how != "average":
        raise KinspanError("--weights goes with --how average alone")
    if config.how == "merge" and len(config.adapters) > 1:
        raise KinspanError("--how merge takes one adapter: average several of LoRA first")
    output = Path(config.output_dir)
    if config.how == "merge":
        merge_adapter(config.adapters[0], output)
    else:
        from pretrain.release.adapter import write_combined  # torch takes seconds to import

        write_combined([Path(folder) for folder in config.adapters], config.how, config.weights, output)
    return f"wrote {output}"


def merge_adapter(folder: str, output: Path) -> None:
    """Writes the plain model that an adapter of LoRA makes of its base. Raises KinspanError for any other adapter."""
    from finetune.ranking.ranker import (  # torch takes seconds to import
        find_max_length,
        find_trained_length,
        load_own_tokenizer,
        load_ranker,
        save_ranker,
    )
    from pretrain.modeling.adapters.folder import read_spec
    from pretrain.release.folder import replace_release

    parts, base = read_spec(Path(folder))
    if parts[0].kind != "lora":
        raise KinspanError(f"--adapters {folder} is of bottlenecks, which no plain model has a place for: rank with it")
    ranker = load_ranker(folder)
    with replace_release(output) as partial:
        partial.mkdir(parents=True)
        tokenizer = load_own_tokenizer(folder)
        trained = find_trained_length(folder)
        length = trained or find_max_length(tokenizer, ranker.classifier)
        save_ranker(ranker.classifier.config, tokenizer, length, ranker.state_dict(), partial)
        of = {"name": base.name, "fingerprint": base.fingerprint}
        facts = {"merged": parts[0].name, "base": of, "max_length": trained}
        (partial / "kinspan.json").write_text(json.dumps(facts, indent=1) + "\n")
        (partial / "README.md").write_text(
            f"# {base.name}-{parts[0].name}\n\n{base.name} with the adapter {parts[0].name} (LoRA of rank "
            f"{parts[0].size}) merged into its weights, by kinspan. It loads as a `CrossEncoder` of "
            "sentence-transformers.\n"
        )
