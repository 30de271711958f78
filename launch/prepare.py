"""Documents -> corpus, the first thing to run on documents of your own."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from data_pipeline.errors import KinspanError
from data_pipeline.prepare.encode import Rules
from data_pipeline.prepare.pipeline import Prepared, prepare
from data_pipeline.prepare.readers import FORMATS, PYTHON_DOCS
from data_pipeline.prepare.write import SHARD_TOKENS
from data_pipeline.tokenizers import load_tokenizer
from launch._cli import parse, run
from objectives import OBJECTIVES
from pretrain.modeling.default_model import default_model
from pretrain.planning.defaults import default_corpus_folder

DESCRIPTION = f"""Turns documents into a corpus of token ids that launch/pretrain.py samples from.

Input: {FORMATS}; files, globs or folders.
  .jsonl, .parquet  a document a line or row: "paragraphs" (list of strings) or "text", optional "id", "title"
  .txt              a document a file, blank lines between paragraphs
Without --input: the documentation that comes with Python and the installed packages ({PYTHON_DOCS})."""

EPILOG = """examples:
  python launch/prepare.py --input 'docs/*.jsonl.gz' --tokenizer roberta-base --output corpora/docs --num_workers 8
  python launch/prepare.py --input books/ --tokenizer path/to/model --output corpora/books"""


@dataclass
class PrepareConfig:
    """Flags of this entry."""

    input: list[str] = field(
        default_factory=lambda: [PYTHON_DOCS], metadata={"help": "Files, globs or folders.", "nargs": "+"}
    )
    tokenizer: str | None = field(
        default=None,
        metadata={"help": "Hub name or folder: that of the model to train. Default: all-MiniLM-L6-v2's."},
    )
    output: str | None = field(default=None, metadata={"help": "Folder to write. Default: the user's cache."})
    num_workers: int = field(default=1, metadata={"help": "Processes that tokenise."})
    min_paragraph_chars: int = field(default=60, metadata={"help": "Shorter paragraphs are dropped."})
    min_document_chars: int = field(default=200, metadata={"help": "Documents with less kept text are dropped."})
    validation_share: float = field(default=0.02, metadata={"help": "Share of documents held out for validation."})
    shard_tokens: int = field(default=SHARD_TOKENS, metadata={"help": "Tokens of a shard, about."})
    licence: str = field(default="", metadata={"help": "Licence of the input, for the manifest and model cards."})


def table(result: Prepared) -> str:
    """What was read, kept and dropped, and why."""
    counts = result.tally.counts
    rows = [
        ("documents read", counts["documents read"]),
        ("  kept", counts["documents kept"]),
        ("    of these held out for validation", counts["documents held out for validation"]),
        ("  dropped: no paragraph is long enough", counts["documents without a long enough paragraph"]),
        ("  dropped: too short", counts["documents too short"]),
        ("records rejected (see rejected.jsonl)", counts["records rejected"]),
        ("paragraphs read", counts["paragraphs read"]),
        ("  kept", counts["paragraphs kept"]),
        ("  dropped: too short", counts["paragraphs too short"]),
        ("  dropped: in a dropped document", counts["paragraphs of dropped documents"]),
        ("sentences kept", counts["sentences kept"]),
        ("tokens kept", counts["tokens kept"]),
    ]
    for name, splits in _usable(result).items():
        rows.append((f"anchors for {name}, training", splits["train"]))
        rows.append((f"anchors for {name}, validation", splits["validation"]))
    return "\n".join(f"{name:<40} {number:>14,}" for name, number in rows)


def _usable(result: Prepared) -> dict[str, dict[str, int]]:
    shards = result.manifest.shards
    return {
        name: {split: sum(s.usable[name][split]["anchors"] for s in shards) for split in ("train", "validation")}
        for name in shards[0].usable
    }


def _default_output(config: PrepareConfig, tokenizer: str) -> str:
    if config.input != [PYTHON_DOCS]:
        raise KinspanError("--output is missing: name the folder to write the corpus to")
    return str(default_corpus_folder(load_tokenizer(tokenizer)))


def main() -> None:
    config = parse(PrepareConfig, DESCRIPTION, EPILOG)
    rules = Rules(config.min_paragraph_chars, config.min_document_chars, config.validation_share)
    tokenizer = config.tokenizer or default_model()
    output = config.output or _default_output(config, tokenizer)
    result = prepare(
        config.input,
        tokenizer,
        output,
        OBJECTIVES,
        rules,
        config.num_workers,
        config.shard_tokens,
        config.licence,
    )
    if result.reused:
        print(f"{output} already holds this corpus: nothing to do")
        return
    print(table(result))
    speed = result.tally.counts["characters read"] / 1e6 / result.seconds
    print(f"{len(result.manifest.shards)} shard(s) in {output}, {result.seconds:.1f} s ({speed:.2f} MB/s)")


if __name__ == "__main__":
    run(main)
