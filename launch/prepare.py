"""Turns documents into a corpus of token ids."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_HERE = Path(__file__).resolve().parent  # kept off the path, where launch/pretrain.py would hide pretrain/
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from data_pipeline.core.command_line import parse
from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import FROM_0_TO_1, FROM_0_TO_BELOW_1, NOT_BELOW_0, WORKERS, setting
from data_pipeline.prepare.benchmark import read_benchmark
from data_pipeline.prepare.cleaning import STEPS, Rules
from data_pipeline.prepare.pipeline import BOILERPLATE, prepare
from data_pipeline.prepare.read import MAX_REJECTED, MAX_REJECTED_HELP
from data_pipeline.prepare.readers import FORMATS, PYTHON_DOCS, get_reader
from data_pipeline.prepare.summary import check_trainable, format_corpus, list_notes, list_unusable
from data_pipeline.tokenizers import load_tokenizer
from finetune.data.registry import NAMES, load_split
from launch.kinspan import run
from objectives import OBJECTIVES
from pretrain.planning.corpora import default_corpus_folder

DESCRIPTION = f"""Turns documents into a corpus of token ids that kinspan pretrain samples from.

Input: {FORMATS};
files, globs, folders, URLs such as s3://bucket/folder, and hf:NAME for a data set on the Hugging Face hub.
  .jsonl, .parquet  a document per line or row: "paragraphs" (list of strings) or "text", optional "id", "title"
  .txt              a document per file, blank lines between paragraphs; docs/corpora.md describes all formats
Without --input: the documentation of Python and of the pinned packages ({PYTHON_DOCS}).

Run the same command again to resume; unfinished work is in OUTPUT_DIR/partial. The result is the same for any number
of workers, on one machine, on Slurm and on Ray. OUTPUT_DIR/summary.txt counts what was dropped, with examples."""

EPILOG = """examples:
  kinspan prepare --input docs/ --output_dir corpora/docs
  kinspan prepare --input 'docs/*.jsonl.gz' --tokenizer roberta-base --output_dir corpora/docs --num_workers 8
  kinspan prepare --input /data/web --tokenizer path/to/model --output_dir /data/corpora/web --duplicates near \\
      --executor slurm --num_workers 64 --sbatch partition=cpu time=08:00:00 account=nlp"""


@dataclass
class PrepareConfig:
    BASIC = (  # the settings that --help shows
        *("input", "reader", "tokenizer", "output_dir", "num_workers", "languages", "title_texts", "duplicates"),
        *("validation_share", "decontaminate", "licence"),
    )

    input: list[str] = setting([PYTHON_DOCS])
    """Files, globs, folders or URLs."""
    reader: str = setting("")
    """Reader for all inputs, if their names do not show the format: a suffix such as txt or jsonl; bookcorpus,
    wikiextractor; or my_reader.py."""
    tokenizer: str | None = setting(None, is_model=True)
    """Hub name or folder of the model to train, whose tokenizer is used. Without it: all-MiniLM-L6-v2."""
    output_dir: str | None = setting(None)
    """Folder for the corpus. Without it and without --input: a folder in the user's cache."""
    num_workers: int = setting(1, WORKERS)
    """Number of tasks that run at the same time, each in its own process."""
    executor: Literal["local", "slurm", "ray"] = setting("local")
    """Where tasks run: on this machine; as jobs of Slurm; or on the Ray cluster that RAY_ADDRESS names. For slurm and
    ray, all machines must see the folders."""
    sbatch: list[str] = setting([])
    """Options of sbatch for Slurm's jobs, each NAME=VALUE, such as partition=cpu time=08:00:00."""
    min_paragraph_chars: int = setting(60, NOT_BELOW_0)
    """Paragraphs with fewer characters are dropped; Chinese, Japanese and Korean ones count as 3."""
    min_document_chars: int = setting(200, NOT_BELOW_0)
    """Documents with fewer characters after cleaning are dropped."""
    languages: list[str] = setting([])
    """Keep documents in these languages only: ISO 639 codes such as en."""
    keep_code: bool = setting(False)
    """Keep blocks of code: of Markdown, reStructuredText and HTML in the paragraphs before them; of forum posts."""
    skip_step: list[str] = setting([], help=f"Cleaning steps to skip: {', '.join(step.name for step in STEPS)}.")
    clean_with: list[str] = setting([])
    """Python files with additional cleaning steps, see docs/corpora.md."""
    title_texts: bool = setting(False)
    """Keep titles as texts too, for the objectives title_sentence and title_body; a forum's questions always do."""
    validation_share: float = setting(0.02, FROM_0_TO_BELOW_1)
    """Share of documents held out for validation."""
    duplicates: Literal["exact", "near", "keep"] = setting("exact")
    """Which repeated documents and paragraphs to drop. exact: those that repeat earlier ones word for word; near: also
    documents that share about .8 of their 5-grams with an earlier one (two fifths more time); keep: none."""
    boilerplate: int = setting(BOILERPLATE, NOT_BELOW_0)
    """A paragraph that occurs in this many documents or more is dropped from all. 0: only --duplicates applies. With
    --duplicates keep none is dropped."""
    decontaminate: list[str] = setting([])
    """Drop documents that contain a sentence of at least 8 words from these test sets: files of sentences (.txt, .tsv,
    .jsonl), or the test splits of data sets, such as wikiqa=FOLDER; of data sets, also a whole text of fewer words."""
    max_rejected: float = setting(MAX_REJECTED, FROM_0_TO_1, help=MAX_REJECTED_HELP)
    licence: str = setting("")
    """Licence of the input, for the manifest and model cards."""


def main() -> Iterator[str]:
    config = parse(PrepareConfig, DESCRIPTION, EPILOG)
    of_rules = ("min_paragraph_chars", "min_document_chars", "validation_share", "languages", "clean_with")
    rules = Rules(**{name: getattr(config, name) for name in (*of_rules, "title_texts")}, skip_steps=config.skip_step)
    if config.reader:
        get_reader(config.reader)  # raises before anything is read if there is no such reader
    inputs = [f"{config.reader}:{name}" for name in config.input] if config.reader else config.input
    tokenizer = config.tokenizer or default_model()
    if not config.output_dir and config.input != [PYTHON_DOCS]:
        raise KinspanError("--output_dir is missing: name the folder to write the corpus to")
    output = config.output_dir or str(default_corpus_folder(load_tokenizer(tokenizer)))
    names = ("num_workers", "licence", "max_rejected", "duplicates", "boilerplate", "keep_code", "executor", "sbatch")
    options = {name: getattr(config, name) for name in names}
    texts: list[str] = []
    for name in config.decontaminate:
        test = load_split(name, "test") if name.partition("=")[0] in NAMES else None
        texts += [*test.questions, *test.answers.to_pylist()] if test else read_benchmark(name)
    result = prepare(inputs, tokenizer, output, OBJECTIVES, rules, decontaminate=texts, **options)
    if result.reused:
        yield f"{output} already holds this corpus: nothing to do"
    else:
        yield format_corpus(result.manifest)
        speed = result.tally.counts["characters read"] / 1e6 / result.seconds
        yield f"{len(result.manifest.shards)} shard(s) in {output}, {result.seconds:.1f} s ({speed:.3g} MB/s)"
    for note in [*list_notes(result.tally, result.read_tally), *list_unusable(result.manifest, OBJECTIVES)]:
        yield f"note: {note}"
    check_trainable(result.manifest, f"the corpus in {output}")


if __name__ == "__main__":
    run(main)
