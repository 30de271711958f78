"""Finds, and makes, the best ranker for documents of one's own, in one command."""

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import REQUIRED, check_needed, setting
from data_pipeline.prepare.readers.files import find_input_files
from finetune.adapt.budget import parse_budget
from finetune.adapt.questions import expect_questions
from finetune.data.registry import PUBLIC
from launch._cli import parse, run
from objectives import OBJECTIVES
from pretrain.modeling.default_model import default_model

if TYPE_CHECKING:
    from finetune.data.answers import AnswerSet

DESCRIPTION = """Adapts a model to documents, and says whether that was worth it.

It prepares the documents and pre-trains the model on them for --budget. With --questions it then fine-tunes three
rankers, and compares on the dev questions: BM25, the untrained model, the pre-trained one, the fine-tuned ones, and a
learned fusion. The best is measured once on the test questions, beside the untrained model and BM25, and released only
if it is better: "keep your model" is a result too. Without --questions it cannot judge rankers for your documents; it
shows how the model ranks a hundred questions of SelQA.

Run it again to go on after an interruption, or with a larger --budget. OUTPUT_DIR gets release/, a ranker for kinspan
rank, evaluate, search and serve; report.html; and log.txt."""

DATA_SETS = fill(
    f"Public data sets are read as they are distributed, each as NAME=FOLDER: {', '.join(PUBLIC)}. kinspan evaluate "
    "--help lists the files of each.",
    120,
    break_on_hyphens=False,
)
EPILOG = f"""examples:
  kinspan adapt --documents docs/ --output_dir adapted
  kinspan adapt --documents docs/ --questions labelled/ --budget 30m --output_dir adapted
  kinspan adapt --documents articles.jsonl.gz --questions wikiqa=WikiQACorpus --budget 51200pairs --output_dir adapted

labelled/ has train.jsonl, dev.jsonl and test.jsonl with a line for each right (1) or wrong (0) candidate of a question:
  {{"question": "Who wrote Faust?", "answer": "Faust is a play by Goethe.", "label": 1}}
It may also be a single file, which is split in three by a hash of the questions.

{DATA_SETS}"""

MANY_ANSWERED = 100  # questions with an accepted answer, from which on these are the pairs of a forum's pre-training
HELD_OUT = 0.05  # of the documents, so that there are some where documents are few
ANCHORS = 200  # held out, which stand in for questions where there are none


@dataclass
class AdaptConfig:
    """Flags of this entry."""

    documents: list[str] = setting(REQUIRED, "The documents: anything that kinspan prepare --input takes.")
    output_dir: str = setting(REQUIRED, "Folder for the results. The same command again goes on.")
    questions: str | None = setting(
        None,
        "Labelled questions: a folder or file, or a public data set such as wikiqa=FOLDER; see below.",
    )
    columns: str | None = setting(
        None, "Names of the columns of --questions, as question=query,answer=passage,label=relevant."
    )
    model: str | None = setting(
        None,
        "The model to adapt, a folder or a hub name. Without it: all-MiniLM-L6-v2, which is installed.",
        is_model=True,
    )
    budget: str = setting(
        "30m",
        "How long to pre-train: a time, such as 30m or 2h, or a number of pairs, 3200pairs or more. With --questions, "
        "fine-tuning comes on top: three rankers, each for at most a quarter as many updates, or 40 if that is more.",
    )


def main() -> None:
    config = parse(AdaptConfig, DESCRIPTION, EPILOG)
    check_needed(config, "questions", "columns")
    budget = parse_budget(config.budget)
    say = partial(print, flush=True, file=sys.stdout)  # this one: steps print elsewhere
    find_input_files(config.documents, allow_skipped=True)  # first, since torch takes seconds to import
    if config.questions:
        expect_questions(config.questions)
    say("loading PyTorch and the questions ..." if config.questions else "loading PyTorch ...")
    from finetune.adapt.run import Runners, Settings, adapt

    model, output = config.model or default_model(), Path(config.output_dir)
    settings = Settings(config.documents, config.questions, config.columns, model, budget, output)
    adapt(settings, Runners(partial(prepare_documents, say), choose_objective, pretrain, hold_out), say)


def prepare_documents(say: Any, documents: list[str], model: str, folder: Path, but: list[str]) -> dict[str, int]:
    """Makes the corpus, or finds it, and returns its totals; what it goes without is said.

    but: texts; a document that holds one is left out
    """
    from data_pipeline.prepare.cleaning import Rules
    from data_pipeline.prepare.pipeline import prepare
    from data_pipeline.prepare.summary import check_trainable, describe_dropped, describe_oddities, describe_rejected

    rules = Rules(validation_share=HELD_OUT)
    quiet = not sys.stderr.isatty()
    result = prepare(
        documents, model, folder, OBJECTIVES, rules, allow_skipped=True, may_allow=False, decontaminate=but, quiet=quiet
    )
    if result.skipped:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in result.skipped.most_common(5))
        say(f"left out files that cannot be read: {kinds}")
    if not result.reused and (rejected := describe_rejected(folder, result.tally)):
        say(rejected)
    if not but:  # else it was said before
        if result.reused:
            say(f"the documents are prepared: {folder / 'report.html'} says what was left out of them")
        if dropped := describe_dropped(result.tally):
            say(f"{dropped}: {folder / 'report.html'} says why, with examples")
        for oddity in describe_oddities(result.tally):
            say(oddity)
    check_trainable(result.manifest, f"--documents {' '.join(documents)}", has_flags=False)
    return result.manifest.totals


def choose_objective(corpus: Path) -> str:
    """Questions with their accepted answers, where a corpus has enough of them, and else spans of paragraphs."""
    from data_pipeline.corpus import Corpus

    shards = Corpus(corpus).manifest.shards
    answered = sum(shard.usable.get("title_answer", {}).get("train", {}).get("anchors", 0) for shard in shards)
    return "title_answer" if answered >= MANY_ANSWERED else "ssp"


def pretrain(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Pre-trains or goes on, releases the model into the folder's ``release``, and returns the summary."""
    from data_pipeline.core.files import read_object
    from launch.commands._stages import prepare_pretraining
    from pretrain.finished import SUMMARY

    prepare_pretraining(settings, folder)()
    return read_object(folder / SUMMARY, f"delete {folder}")


def hold_out(corpus: Path, objective: str) -> "AnswerSet | None":
    """Held-out anchors as questions, whose candidates are their five texts, of which one is right; None without any."""
    import numpy as np

    from data_pipeline.corpus import Corpus
    from data_pipeline.sampling.pairs import POSITIVE
    from data_pipeline.tokenizers import load_tokenizer
    from pretrain.evaluation.held_out import decode_texts, select_held_out
    from serve.rerank import make_candidates

    opened = Corpus(corpus)
    try:
        pairs = select_held_out(opened, OBJECTIVES[objective], ANCHORS)
    except KinspanError as error:
        print(error)
        return None
    first, second = decode_texts(pairs, load_tokenizer(opened.tokenizer_folder))
    count, size = pairs.kinds.shape
    candidates = make_candidates(first[::size], [second[n * size : (n + 1) * size] for n in range(count)])
    labels = (pairs.kinds.ravel() == POSITIVE).astype(np.int8)
    return replace(candidates, name="held-out pairs", split="validation", labels=labels)


if __name__ == "__main__":
    run(main)
