"""Merges an adapter of LoRA into its base."""

import json
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import REQUIRED, setting

DESCRIPTION = """Adds one adapter of LoRA into its base, which gives a plain model for transformers and
sentence-transformers. Bottlenecks have no place in a plain model."""

EPILOG = """example:
  kinspan adapter merge --adapter runs/lora/release --output_dir releases/beer"""


@dataclass
class MergeConfig:
    adapter: str = setting(REQUIRED)
    """Folder of a released adapter of LoRA."""
    output_dir: str = setting(REQUIRED)
    """Folder for the result; an older release there is replaced."""


def main() -> str:
    config = parse(MergeConfig, DESCRIPTION, EPILOG)
    merge_adapter(config.adapter, Path(config.output_dir))
    return f"wrote {config.output_dir}"


def merge_adapter(folder: str, output: Path) -> None:
    """Writes the plain model that an adapter of LoRA makes of its base."""
    from finetune.ranking import ranker as rankers  # torch takes seconds to import
    from pretrain.modeling.adapters.folder import read_spec
    from pretrain.release.folder import CARD, FACTS, replace_release

    part, base = read_spec(Path(folder))
    if part.kind != "lora":
        raise KinspanError(f"--adapter {folder} is of bottlenecks, which no plain model has a place for")
    ranker, tokenizer = rankers.load_ranker(folder), rankers.load_own_tokenizer(folder)
    trained = rankers.find_trained_length(folder)
    length = trained or rankers.find_max_length(tokenizer, ranker.classifier)
    made_of = {"merged": part.name, "base": {"name": base.name, "fingerprint": base.fingerprint}, "max_length": trained}
    title = f"{base.name} with the adapter {part.name} (LoRA of rank {part.size}) merged into its weights"
    with replace_release(output) as partial:
        partial.mkdir(parents=True)
        rankers.save_ranker(ranker.classifier.config, tokenizer, length, ranker.state_dict(), partial)
        (partial / FACTS).write_text(json.dumps(made_of, indent=1) + "\n")
        (partial / CARD).write_text(f"# {title}\n\nIt loads as a `CrossEncoder` of sentence-transformers.\n")
