"""Turns documents into a corpus: the first thing to run on documents of your own."""

import sys
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from data_pipeline.errors import KinspanError
from data_pipeline.prepare.cleaning import STEPS, Rules, check_rules
from data_pipeline.prepare.pipeline import prepare
from data_pipeline.prepare.readers import FORMATS, PYTHON_DOCS, get_reader
from data_pipeline.prepare.summary import check_trainable, find_lacks, format_counts
from data_pipeline.prepare.write import SHARD_TOKENS
from data_pipeline.tokenizers import load_tokenizer
from launch._cli import parse, run
from objectives import OBJECTIVES
from pretrain.modeling.default_model import default_model
from pretrain.planning.defaults import default_corpus_folder
from pretrain.runtime.settings import ABOVE_0, FROM_0_TO_BELOW_1, NOT_BELOW_0, WORKERS, setting

DESCRIPTION = f"""Turns documents into a corpus of token ids that launch/pretrain.py samples from.

Input: {FORMATS};
files, globs, folders, URLs such as s3://bucket/folder, and hf:NAME for a data set of the Hugging Face hub.
  .jsonl, .parquet  a document per line or row: "paragraphs" (list of strings) or "text", optional "id", "title"
  .txt              a document per file, blank lines between paragraphs
  .xml.bz2          a dump of Wikipedia; Posts.xml: a forum of StackExchange; see docs/corpora.md for all of them
Without --input: the documentation of Python and of the pinned packages ({PYTHON_DOCS})."""

EPILOG = """examples:
  python launch/prepare.py --input 'docs/*.jsonl.gz' --tokenizer roberta-base --output_dir corpora/docs --num_workers 8
  python launch/prepare.py --input books/ --tokenizer path/to/model --output_dir corpora/books"""


@dataclass
class PrepareConfig:
    """Flags of this entry."""

    input: list[str] = setting([PYTHON_DOCS], "Files, globs, folders or URLs.")
    reader: str = setting(
        "", "Reader of all inputs, where their names do not tell it: bookcorpus, stackexchange-code, or my_reader.py."
    )
    tokenizer: str | None = setting(
        None, "Hub name or folder of the model that is to be trained. Without it: all-MiniLM-L6-v2."
    )
    output_dir: str | None = setting(
        None, "Folder for the corpus. Without --input and this: one in the user's cache.", old_name="output"
    )
    num_workers: int = setting(1, "Processes that tokenise.", within=WORKERS)
    min_paragraph_chars: int = setting(60, "Paragraphs with fewer characters are dropped.", within=NOT_BELOW_0)
    min_document_chars: int = setting(
        200, "Documents of which fewer characters are kept are dropped.", within=NOT_BELOW_0
    )
    languages: list[str] = setting([], "Documents in other languages are dropped: en, or several codes of ISO 639.")
    skip_step: list[str] = setting([], f"Steps of cleaning to leave out: {', '.join(step.name for step in STEPS)}.")
    clean_with: list[str] = setting([], "Python files with steps of cleaning of your own, see docs/corpora.md.")
    validation_share: float = setting(0.02, "Share of documents held out for validation.", within=FROM_0_TO_BELOW_1)
    shard_tokens: int = setting(SHARD_TOKENS, "About how many tokens a shard holds.", within=ABOVE_0)
    allow_damaged: bool = setting(False, "Go without the rest of a file that cannot be read to its end.")
    allow_skipped: bool = setting(
        False, "Go without the files in folders that are of no known format, and without links that lead nowhere."
    )
    licence: str = setting("", "Licence of the input, for the manifest and model cards.")


def _default_output(config: PrepareConfig, tokenizer: str) -> str:
    if config.input != [PYTHON_DOCS]:
        raise KinspanError("--output_dir is missing: name the folder to write the corpus to")
    return str(default_corpus_folder(load_tokenizer(tokenizer)))


def main() -> None:
    config = parse(PrepareConfig, DESCRIPTION, EPILOG)
    rules = Rules(
        config.min_paragraph_chars,
        config.min_document_chars,
        config.validation_share,
        languages=config.languages,
        skip_steps=config.skip_step,
        clean_with=config.clean_with,
    )
    check_rules(rules)
    if config.reader:
        get_reader(config.reader)
    inputs = [f"{config.reader}:{name}" for name in config.input] if config.reader else config.input
    tokenizer = config.tokenizer or default_model()
    output = config.output_dir or _default_output(config, tokenizer)
    result = prepare(
        inputs,
        tokenizer,
        output,
        OBJECTIVES,
        rules,
        config.num_workers,
        config.shard_tokens,
        config.licence,
        allow_damaged=config.allow_damaged,
        allow_skipped=config.allow_skipped,
    )
    if result.reused:
        print(f"{output} already holds this corpus: nothing to do")
    else:
        print(format_counts(result))
        speed = result.tally.counts["characters read"] / 1e6 / result.seconds
        print(f"{len(result.manifest.shards)} shard(s) in {output}, {result.seconds:.1f} s ({speed:.2f} MB/s)")
    for lack in find_lacks(result.manifest, OBJECTIVES):
        print(f"note: {lack}")
    check_trainable(result.manifest, output)


if __name__ == "__main__":
    run(main)
