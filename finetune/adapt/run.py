"""An adaptation from its first step to its verdict. Each step finds what is done, so that the same call goes on."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.errors import KinspanError
from data_pipeline.files import make_folder, write_atomically
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import BM25, count_words
from finetune.evaluation.metrics import MAP
from finetune.evaluation.trec import write_lines
from finetune.fuse import describe_weights, fit_fusion, write_fusion
from finetune.reports.release import find_ranker, release_ranker
from pretrain.modeling.pair_model import load_config
from pretrain.release.folder import FACTS, replace_release
from pretrain.runtime.device import describe_device
from pretrain.runtime.lock import lock_folder

from .budget import BATCH, Budget, train_for
from .page import render_page
from .questions import Questions, settle_questions
from .verdict import Verdict, judge
from .ways import Scorer, Way, fuse_ways, list_untrained, name_start, train_ways

STARTED, RESULT, PAGE, LOG, RELEASE = "adapt.json", "result.json", "report.html", "log.txt", "release"
SMALL = 384  # the most hidden units of a small encoder, which takes the higher of these rates
RATE_OF_SMALL, RATE = 2.5e-4, 5e-5
UNJUDGED = (
    "No verdict: without labelled questions nothing can be said about how well it ranks answers to real ones. Label "
    "fifty, and give them as --questions; docs/adapt.md has the form."
)


@dataclass(frozen=True)
class Settings:
    """What the command was given."""

    documents: list[str]
    questions: str | None
    columns: str | None
    model: str
    budget: Budget
    output: Path


@dataclass(frozen=True)
class Runners:
    """What belongs to the floors above and beside: the preparation and the pre-training.

    prepare:  makes or finds the corpus of documents, for a model, in a folder, and returns its counts
    choose:   the objective for a corpus
    pretrain: trains by these settings in a folder, or goes on, and returns the summary; the model is in its ``release``
    hold_out: a corpus's held-out anchors of an objective, each with its five texts, as questions with candidates
    """

    prepare: Callable[[list[str], str, Path], dict[str, int]]
    choose: Callable[[Path], str]
    pretrain: Callable[[dict[str, Any], Path], dict[str, Any]]
    hold_out: Callable[[Path, str], AnswerSet]


Say = Callable[[str], None]


def adapt(settings: Settings, runners: Runners, say: Say) -> dict[str, Any]:
    """Adapts a model to documents, and returns what ``result.json`` holds.

    Raises KinspanError for what the user can mend, and Stopped (a SystemExit of status 75) where a signal ended it.
    """
    output = settings.output
    if output.is_dir() and any(output.iterdir()) and not (output / STARTED).exists():
        raise KinspanError(f"--output_dir {output} is not empty and holds no adaptation: choose another folder")
    make_folder(output)
    with lock_folder(output):
        write_atomically(output / STARTED, json.dumps({"documents": settings.documents}) + "\n")
        return _adapt(settings, runners, say)


def _adapt(settings: Settings, runners: Runners, say: Say) -> dict[str, Any]:
    output = settings.output
    questions = None
    if settings.questions:  # before the work, to see whether they can be used
        questions = settle_questions(settings.questions, settings.columns, output)
    say(f"machine: {describe_device()}; what each step says goes to {output / LOG}")
    with _quietly(output):
        counts = runners.prepare(settings.documents, settings.model, output / "corpus")
    went_in = [
        f"documents: {counts['documents']:,} with {counts['paragraphs']:,} paragraphs and {counts['tokens']:,} tokens"
    ]
    if questions:
        splits = (questions.train, questions.dev, questions.test)
        numbers = ", ".join(
            f"{split.num_questions:,} {split.split} ({split.num_pairs:,} candidates)" for split in splits
        )
        went_in += [f"questions: {numbers}", *(f"  {note}" for note in questions.notes)]
    for line in went_in:
        say(line)
    learned, summary = _pretrain(settings, runners, say)
    for line in learned:
        say(f"  {line}")
    pretrained = str(output / "pretrain" / RELEASE)
    if questions is None:
        return _end_unjudged(settings, runners, pretrained, [went_in, learned], say)
    scorer = Scorer(count_words(questions.texts), output / "scores")
    with _quietly(output):
        ways = list_untrained(settings.model, pretrained, questions.dev, scorer, say)
        ways += train_ways(settings.model, pretrained, questions, summary["steps"], output / "ways", scorer, say)
        ways.append(fuse_ways(ways, questions.dev))
        start = next((way for way in ways if way.name == name_start(settings.model)), ways[0])
        verdict = judge(ways, start, questions.dev, questions.test, scorer)
        _release(verdict, questions, scorer, output / RELEASE)
    return _end(settings, questions, ways, verdict, [went_in, learned], say)


@contextmanager
def _quietly(output: Path) -> Iterator[None]:
    """Sends what is printed to the log; ``say`` still reaches the terminal."""
    with (output / LOG).open("a", encoding="utf-8", buffering=1) as log, redirect_stdout(log):
        yield


def _pretrain(settings: Settings, runners: Runners, say: Say) -> tuple[list[str], dict[str, Any]]:
    """Pre-trains for the budget, and returns what was learned, in words, and the summary of the run."""
    output = settings.output
    objective = runners.choose(output / "corpus")
    say(f"pre-training {shorten_name(settings.model)} on them for {settings.budget.text}, without labels ({objective})")

    def train(updates: int) -> dict[str, Any]:
        return runners.pretrain(_choose_settings(settings, objective, updates), output / "pretrain")

    with _quietly(output):
        summary = train_for(settings.budget, train, output)
    first, last = summary["first_validation"], summary["last_validation"]
    learned = [f"{summary['steps']:,} updates, {summary['pairs']:,} pairs, {summary['wall_seconds'] / 60:.1f} minutes"]
    if first and last and "pair_auc" in last:
        learned.append(
            f"held-out pairs are told apart with an AUC of {last['pair_auc']:.2f} (before: {first['pair_auc']:.2f}; "
            "a guess: 0.50)"
        )
    return learned, summary


def _choose_settings(settings: Settings, objective: str, updates: int) -> dict[str, Any]:
    """Settings of launch/pretrain.py for a first look; the schedule is one that a larger budget goes on with."""
    small = load_config(settings.model).hidden_size <= SMALL
    return {
        "corpus": [str(settings.output / "corpus")],
        "model": settings.model,
        "objective": objective,
        "max_steps": updates,
        "lr_schedule": "wsd",
        "learning_rate": RATE_OF_SMALL if small else RATE,
        "mlm_weight": 0.05,
        "max_length": 64,
        "global_batch_size": BATCH,
        "micro_batch_size": BATCH,
        "eval_pairs": 500,
        "eval_steps": 1_000_000,
        "save_steps": 100,
        "log_steps": 50,
    }


def _end_unjudged(
    settings: Settings, runners: Runners, pretrained: str, told: list[list[str]], say: Say
) -> dict[str, Any]:
    """The end without labels: what is known of the held-out pairs, and the pre-trained model as the release."""
    output = settings.output
    with _quietly(output):
        pairs = runners.hold_out(output / "corpus", runners.choose(output / "corpus"))
        scorer = Scorer(count_words(pairs.answers.unique().to_pylist()), output / "scores")
        ways = list_untrained(settings.model, pretrained, pairs, scorer, say)
        _copy_release(pretrained, output / RELEASE)
    rows = [{"name": way.name, "dev": float(way.measure(pairs).mean()), "test": None} for way in ways]
    result = {"verdict": UNJUDGED, "chosen": None, "ways": rows, "release": str(output / RELEASE)}
    title = (
        f"MAP on {pairs.num_questions:,} held-out anchors, whose text of 5 is found; what the pre-training trains for"
    )
    return _tell(settings, result, told, title, None, say, [_suggest_rank(output)])


def _release(verdict: Verdict, questions: Questions, scorer: Scorer, output: Path) -> None:
    """Writes the release of the chosen way. The start needs none: an older release is then removed."""
    way = verdict.chosen
    if way is verdict.start and way.model != BM25:
        if (output / FACTS).is_file():
            shutil.rmtree(output)
        return
    figures = {"test": {MAP: verdict.figures["start" if way is verdict.start else "chosen"]}}
    about = {"data": "your questions", "figures": figures}
    if way.fitted:
        write_fusion(output, way.fitted, {part.name: part.model for part in way.parts}, scorer.words, about)
    elif way.model == BM25:
        fitted = fit_fusion(questions.dev, {BM25: way.scores})
        write_fusion(output, fitted, {BM25: BM25}, scorer.words, about)
    elif ranker := find_ranker(Path(way.model)):
        release_ranker(ranker, output)
    else:
        _copy_release(way.model, output)


def _copy_release(folder: str, output: Path) -> None:
    with replace_release(output) as partial:
        shutil.copytree(folder, partial)


def _end(
    settings: Settings, questions: Questions, ways: list[Way], verdict: Verdict, told: list[list[str]], say: Say
) -> dict[str, Any]:
    """Writes the result, says it, and returns it."""
    output, chosen = settings.output, verdict.chosen
    of_test = {verdict.start.name: verdict.figures["start"], verdict.best.name: verdict.figures["chosen"]}
    rows = [
        {"name": way.name, "dev": float(way.measure(questions.dev).mean()), "test": of_test.get(way.name)}
        for way in ways
    ]
    released = (output / RELEASE).is_dir()
    result = {
        "verdict": verdict.sentence,
        "chosen": chosen.name,
        "figures": verdict.figures,
        "ways": rows,
        "weights": next((describe_weights(way.fitted) for way in ways if way.fitted), ""),
        "release": str(output / RELEASE) if released else None,
    }
    title = (
        f"MAP; {len(ways)} ways were compared on {questions.dev.num_questions:,} dev questions, and the best one and "
        "the start were then measured on test"
    )
    model = str(output / RELEASE) if released else settings.model
    test = output / "test" / "test.jsonl"
    following = [
        f"kinspan evaluate --model {model} --data files={test}",
        _suggest_rank(output if released else None, model),
    ]
    return _tell(settings, result, told, title, (questions, verdict), say, following)


def _suggest_rank(output: Path | None, model: str = "") -> str:
    return f"kinspan rank --model {output / RELEASE if output else model} --data candidates.jsonl --output_dir ranked"


def _tell(
    settings: Settings,
    result: dict[str, Any],
    told: list[list[str]],
    title: str,
    judged: tuple[Questions, Verdict] | None,
    say: Say,
    following: list[str],
) -> dict[str, Any]:
    output = settings.output
    write_atomically(output / RESULT, json.dumps(result, indent=1) + "\n")
    page = render_page(result, title, told, judged, following)
    write_lines(output / PAGE, [page])
    width = max(len(row["name"]) for row in result["ways"])
    say(f"\n{title}")
    say(f"  {'':<{width}}    dev   test" if judged else "")
    for row in result["ways"]:
        test = "      " if row["test"] is None else f"{row['test']:.3f}"
        say(f"  {row['name']:<{width}}  {row['dev']:.3f}  {test}".rstrip())
    if result.get("weights"):
        say(f"  the fusion adds up: {result['weights']}")
    say(f"\n{result['verdict']}")
    if result["release"]:
        say(f"released: {result['release']}")
    say(f"page: {output / PAGE}")
    say("next:")
    for command in following:
        say(f"  {command}")
    return result
