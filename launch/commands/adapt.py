"""Pre-trains on documents, and finds the best ranker for them, in one command."""

import logging
import os
import shutil
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

from data_pipeline.core.command_line import parse
from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import prefix_errors
from data_pipeline.core.settings import REQUIRED, setting
from data_pipeline.prepare.readers.files import find_input_files
from finetune.adapt.budget import parse_budget
from finetune.adapt.questions import make_spec
from finetune.data.registry import PUBLIC, expect_data
from finetune.evaluation.config import LANGUAGE_HELP
from objectives import OBJECTIVES
from serve.answers import read_paragraphs

log = logging.getLogger(__name__)

DESCRIPTION = """Adapts a model to documents, and measures whether that made it better.

It prepares the documents and pre-trains the model on them for --budget. With --questions it then fine-tunes a
bi-encoder and two cross-encoders by cross-validation, so that each question is ranked by models that have not seen it,
and compares them with BM25, the untrained model, and fusions. The best is released only if its gain over the untrained
model is shown, on the test questions if there are some: at most one verdict in twenty is wrong where no ranker is
better, and "keep your model" is a result too. Without --questions it cannot judge rankers for your documents; it shows
how the model ranks questions of SelQA. --questions selqa-sample gives 60 and 300 of these, to try the command.

Run it again to resume it, or with a larger --budget. OUTPUT_DIR gets report.html, result.json and, unless your model is
kept, release/, a ranker for kinspan rank, evaluate, search and serve."""

EPILOG = f"""examples:
  kinspan adapt --documents docs/ --output_dir adapted
  kinspan adapt --documents docs/ --questions labelled/ --budget 30m --output_dir adapted
  kinspan adapt --documents articles.jsonl.gz --questions wikiqa=WikiQACorpus --budget 51200pairs --output_dir adapted

The questions are a file with a line for each right (1) or wrong (0) candidate of a question:
  {{"question": "Who wrote Faust?", "answer": "Faust is a play by Goethe.", "label": 1}}
or for each right one alone, without "label": a paragraph of the documents, which are then searched for wrong ones;
or a folder with train.jsonl, and dev.jsonl, which is added to it, and test.jsonl; or a public data set as NAME=FOLDER:
{fill(", ".join(PUBLIC), 120, break_on_hyphens=False)}. kinspan evaluate --help lists the files of each."""

MIN_ANSWERED = 100  # a corpus with this many accepted answers is pre-trained on pairs of question and answer
HELD_OUT = 0.05  # share of validation documents: larger than the default, as documents may be few


@dataclass
class AdaptConfig:
    documents: list[str] = setting(REQUIRED)
    """The documents: anything that kinspan prepare --input takes."""
    output_dir: str = setting(REQUIRED)
    """Folder for the results. Run the same command again to resume."""
    questions: str | None = setting(None)
    """Labelled questions: a folder or file, or a public data set such as wikiqa=FOLDER; see below."""
    columns: str | None = setting(None, needs="questions")
    """Names of the columns of --questions, as question=query,answer=passage,label=relevant."""
    model: str | None = setting(None, is_model=True)
    """The model to adapt, a folder or a hub name. Without it: all-MiniLM-L6-v2, which is installed."""
    budget: str = setting("30m")
    """How long to pre-train: a time, such as 30m or 2h, or a number of pairs, 320pairs or more. With --questions,
    fine-tuning takes about as long again."""
    quality_first: bool = setting(False, needs="questions")
    """Choose a ranker that is up to .01 better even if it takes ten times as long for a question."""
    language: str | None = setting(None, needs="questions", help=LANGUAGE_HELP)


def main() -> str:
    config = parse(AdaptConfig, DESCRIPTION, EPILOG)
    find_input_files(config.documents)  # raises before torch is imported, which takes seconds
    if config.questions:
        with prefix_errors(f"--questions {config.questions}"):
            expect_data(make_spec(config.questions))
    budget, model = parse_budget(config.budget), config.model or default_model()
    from finetune.adapt.page import format_result
    from finetune.adapt.run import AdaptOptions, PipelineHooks, adapt

    options = AdaptOptions(config.documents, config.questions, config.columns, model, budget, Path(config.output_dir))
    options = replace(options, quality_first=config.quality_first, language=config.language)
    return format_result(adapt(options, PipelineHooks(prepare_documents, choose_objective, pretrain, read_paragraphs)))


def prepare_documents(documents: list[str], model: str, folder: Path, without: list[str]) -> dict[str, int]:
    """Prepares the corpus unless it exists, without documents of a text or id in ``without``; returns its totals."""
    from data_pipeline.browse import check_left_out
    from data_pipeline.corpus import Corpus
    from data_pipeline.prepare.cleaning import Rules
    from data_pipeline.prepare.pipeline import prepare
    from data_pipeline.prepare.read import MAX_REJECTED_WITHOUT_FLAG
    from data_pipeline.prepare.summary import check_trainable, list_notes

    rules = Rules(validation_share=HELD_OUT)
    make = partial(prepare, max_rejected=MAX_REJECTED_WITHOUT_FLAG, quiet=not sys.stderr.isatty())
    num_workers = len(os.sched_getaffinity(0))
    result = make(documents, model, folder, OBJECTIVES, rules, num_workers, decontaminate=without)
    check_left_out(without, Corpus(folder), "--questions")
    for note in list_notes(result.tally, result.read_tally):
        log.info(note)
    check_trainable(result.manifest, f"--documents {' '.join(documents)}")
    return result.manifest.totals


def choose_objective(corpus: Path) -> str:
    """Returns title_answer if the corpus has enough questions with accepted answers, else ssp."""
    from data_pipeline.corpus import Corpus

    shards = Corpus(corpus).manifest.shards
    answered = sum(shard.usable.get("title_answer", {}).get("train", {}).get("anchors", 0) for shard in shards)
    return "title_answer" if answered >= MIN_ANSWERED else "ssp"


def pretrain(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Pre-trains or resumes, releases the model into the folder's ``release``, and returns the summary.

    Of the checkpoints, the one before the rate's decay is kept, from which a longer training continues.
    """
    from data_pipeline.core.files import read_object
    from launch.commands._stages import prepare_pretraining
    from pretrain.engine.run_folder import CHECKPOINTS, SUMMARY

    prepare_pretraining({**settings, "keep_checkpoints": 1}, folder)()
    checkpoints = sorted((folder / CHECKPOINTS).glob("step-*"))
    for checkpoint in [*checkpoints[:-2], *checkpoints[1:][-1:]]:
        shutil.rmtree(checkpoint)
    return read_object(folder / SUMMARY, f"delete {folder}")
