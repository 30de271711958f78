"""Merges a LoRA adapter into its base model."""

import json
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.core.command_line import parse
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import REQUIRED, setting

DESCRIPTION = """Merges a LoRA adapter into its base model, and writes a plain model for transformers and
sentence-transformers. Bottleneck adapters cannot be merged."""

EPILOG = """example:
  kinspan adapter merge --adapter runs/lora/release --output_dir releases/beer"""


@dataclass
class MergeConfig:
    adapter: str = setting(REQUIRED)
    """Folder of a released LoRA adapter."""
    output_dir: str = setting(REQUIRED)
    """Folder for the merged model; an older release there is replaced."""


def main() -> str:
    config = parse(MergeConfig, DESCRIPTION, EPILOG)
    folder = config.adapter
    from finetune.ranking import ranker as rankers  # torch takes seconds to import
    from pretrain.modeling.adapters.folder import read_spec
    from pretrain.release.folder import CARD, FACTS, replace_release

    part, base = read_spec(Path(folder))
    if part.kind != "lora":
        raise KinspanError(f"--adapter {folder} is a bottleneck adapter, which cannot be merged")
    ranker, tokenizer = rankers.load_ranker(folder), rankers.load_own_tokenizer(folder)
    length = rankers.find_max_length(folder)
    facts = {"merged": part.name, "base": {"name": base.name, "fingerprint": base.fingerprint}, "max_length": length}
    title = f"{base.name} with the adapter {part.name} (LoRA of rank {part.size}) merged into its weights"
    with replace_release(Path(config.output_dir)) as partial:
        rankers.save_ranker(ranker.classifier.config, tokenizer, length, ranker.state_dict(), partial)
        (partial / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
        (partial / CARD).write_text(f"# {title}\n\nIt loads as a `CrossEncoder` of sentence-transformers.\n")
    return f"wrote {config.output_dir}"
