"""An adaptation from its first step to its verdict. Each step finds what is done, so that the same call goes on."""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import TextIOBase
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from data_pipeline.errors import KinspanError
from data_pipeline.files import make_folder, read_object, write_atomically
from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import BM25, count_words
from finetune.evaluation.metrics import MAP
from finetune.evaluation.significance import compute_interval
from finetune.fuse import describe_weights, fit_fusion, write_fusion
from finetune.ranking.bi_encoder import is_bi_encoder
from finetune.reports.release import find_ranker, release_ranker
from finetune.training.fingerprints import fingerprint_identity
from pretrain.modeling.pair_model import load_config
from pretrain.release.folder import FACTS, replace_release
from pretrain.runtime.device import describe_device
from pretrain.runtime.lock import LOCK, lock_folder
from pretrain.runtime.stop import Stopped

from .budget import BATCH, FEWEST_UPDATES, Budget, train_for
from .duration import Forecast
from .page import Shown, list_commands, render_page, render_text
from .questions import TEST, Questions, settle_questions
from .sample import TRIAL, measure_sample
from .verdict import UNJUDGED, Verdict, judge
from .ways import Scorer, Way, fuse_ways, list_untrained, name_model, name_start, train_ways

ANSWERS = "answers"  # in STARTED, those that the pre-training goes without
STARTED, RESULT, PAGE, LOG = "adapt.json", "result.json", "report.html", "log.txt"
PRETRAINING, RELEASE = "pretrain", "release"
QUIET = 60.0  # seconds without a line after which an update of the log is told
UPDATE = re.compile(r"\bstep (\d+)/(\d+)\b")  # as the logs of both trainings have it
SMALL = 384  # the most hidden units of a small encoder, which takes the higher of these rates
RATE_OF_SMALL, RATE = 2.5e-4, 5e-5


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

    prepare:  makes or finds the corpus of documents, for a model, in a folder, without the documents that hold one of
              these texts, and returns its counts
    choose:   the objective for a corpus
    pretrain: trains by these settings in a folder, or goes on, and returns the summary; the model is in its ``release``
    hold_out: a corpus's held-out anchors of an objective, each with its five texts, as questions with candidates; None
              where too few documents are held out
    """

    prepare: Callable[[list[str], str, Path, list[str]], dict[str, int]]
    choose: Callable[[Path], str]
    pretrain: Callable[[dict[str, Any], Path], dict[str, Any]]
    hold_out: Callable[[Path, str], AnswerSet | None]


Say = Callable[[str], None]


def adapt(settings: Settings, runners: Runners, say: Say) -> dict[str, Any]:
    """Adapts a model to documents, and returns what ``result.json`` holds.

    Raises KinspanError for what the user can mend, and Stopped (a SystemExit of status 75) where a signal ended it.
    """
    output = settings.output
    if output.is_dir() and any(output.iterdir()) and not (output / STARTED).exists():
        raise KinspanError(f"--output_dir {output} is not empty and holds no adaptation: choose another folder")
    load_config(settings.model)  # before the work, to see whether it can be trained
    questions = settle_questions(settings.questions, settings.columns, output) if settings.questions else None
    make_folder(output)
    with lock_folder(output), _undo_refused(output):
        if (output / STARTED).exists():
            say(f"going on with what {output} holds")
        else:
            write_atomically(output / STARTED, "{}\n")
        try:
            return _adapt(settings, questions, runners, say)
        except Stopped:
            say("stopped; the same command again goes on")
            raise


@contextmanager
def _undo_refused(output: Path) -> Iterator[None]:
    """Empties the folder again where a new adaptation is refused before it trains: it holds nothing to go on with."""
    is_new = not (output / STARTED).exists()
    try:
        yield
    except KinspanError:
        if is_new and not (output / PRETRAINING).exists():
            for path in set(output.iterdir()) - {output / LOCK}:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


def _adapt(settings: Settings, questions: Questions | None, runners: Runners, say: Say) -> dict[str, Any]:
    output = settings.output
    say(f"machine: {describe_device()}; the log of every step is {output / LOG}")
    with _log_steps(output, Forecast(settings.budget, questions), say) as teller:
        say = teller.say
        say("reading the documents ...")
        corpus, objective, told = _prepare(settings, runners, questions)
        if questions:
            questions.write(output)
        told += questions.describe() if questions else []
        say("\n".join(told))
        name, budget = name_model(settings.model), settings.budget.text
        teller.begin_stage(f"pre-training {name} on the documents for {budget}, without labels ({objective})")
        if not (output / PRETRAINING).exists():
            say("  first the model is loaded, and measured on held-out pairs ...")
        summary = _pretrain(settings, runners, corpus, objective)
        teller.forecast.updates = summary["steps"]
        told += (learned := _describe_pretraining(summary))
        say("\n".join(learned))
        if questions:
            ways, verdict = _compare_ways(settings, questions, summary["steps"], teller)
            result = {"questions": questions.dev.num_questions, **_list_results(ways, questions.dev, verdict)}
            released, shown = (output / RELEASE).is_dir(), (questions.test, verdict.tested)
        else:
            teller.begin_stage("measuring it on held-out texts of the documents, and on a hundred questions of SelQA")
            result, shown = _measure_unlabelled(settings, runners.hold_out(corpus, objective), say)
            released = True
            _copy_release(_name_pretrained(output), output / RELEASE)
    result |= {"told": told, "release": str(output / RELEASE) if released else None, "page": str(output / PAGE)}
    result |= {"model": result["release"] or settings.model, "trial": TRIAL}
    result |= {"commands": _list_commands(settings, questions, result)}
    write_atomically(output / RESULT, json.dumps(result, indent=1) + "\n")
    write_atomically(output / PAGE, render_page(result, shown))
    say(render_text(result))
    return result


def _list_commands(settings: Settings, questions: Questions | None, result: dict[str, Any]) -> list[str]:
    """The commands to go on with: by the ranker that the verdict names, or without labels by the model as it is."""
    output, start_ranks = settings.output, any(row["name"] == name_start(settings.model) for row in result["ways"])
    model = settings.model if start_ranks or is_bi_encoder(settings.model) else None
    if result["chosen"] and result["release"]:
        model = result["release"]
    test, question = None, "your question"
    if questions:
        test, question = output / TEST / f"{TEST}.jsonl", questions.test.questions[0]
    return list_commands(settings.documents, model, test, output, question, bool(model and is_bi_encoder(model)))


@contextmanager
def _log_steps(output: Path, forecast: Forecast, say: Say) -> Iterator["_Teller"]:
    """Sends what is printed to the log, and yields what tells a line; in long silences the updates are told, too."""
    with (output / LOG).open("a", encoding="utf-8", buffering=1) as log:
        teller = _Teller(log, forecast, say)
        with redirect_stdout(teller):
            yield teller


class _Teller(TextIOBase):
    """Writes to the log, and tells how long the rest will take: once in detail, and after QUIET seconds of silence with
    the number of the update that a line of the log is of."""

    def __init__(self, log: TextIO, forecast: Forecast, tell_user: Say) -> None:
        self.log, self.forecast, self.tell_user, self.told = log, forecast, tell_user, time.monotonic()
        self.is_forecast = False

    def say(self, line: str) -> None:
        self.tell_user(line)
        self.told = time.monotonic()

    def begin_stage(self, line: str) -> None:
        """Tells what begins, and how long it will take where that is known."""
        self.forecast.begin_stage()
        self.say(f"{line}; about {seconds}" if (seconds := self.forecast.tell_stage()) else line)

    def write(self, text: str) -> int:
        if update := UPDATE.search(text):
            self.forecast.count(int(update[1]), int(update[2]))
            left = self.forecast.tell_all()
            if left and not self.is_forecast:
                self.is_forecast = True
                self.say(f"  at the present speed about {left} are left ({self.forecast.list_kinds()})")
            elif time.monotonic() - self.told > QUIET:
                self.say(f"  {update[1]} of {update[2]} updates" + (f"; about {left} left in all" if left else ""))
        return self.log.write(text)

    def flush(self) -> None:
        self.log.flush()


def _prepare(settings: Settings, runners: Runners, questions: Questions | None) -> tuple[Path, str, list[str]]:
    """Makes the corpus. Returns it, the objective that suits it, and what is told.

    A forum's pre-training is on questions with their accepted answers. Those of dev and test questions are its labels,
    so that their documents are left out.
    """
    corpus = settings.output / "corpus"
    totals = runners.prepare(settings.documents, settings.model, corpus, [])
    objective = runners.choose(corpus)
    answers = questions.list_measured() if questions and objective != "ssp" else []
    _refuse_other_answers(settings.output, answers)
    if not answers:
        return corpus, objective, [_describe_documents(totals)]
    corpus = settings.output / "corpus-without-answers"
    kept = runners.prepare(settings.documents, settings.model, corpus, answers)
    left_out = totals["documents"] - kept["documents"]
    note = f"  {left_out:,} more hold an answer to a dev or test question, and are left out: it would be known by heart"
    return corpus, runners.choose(corpus), [_describe_documents(kept), note]


def _refuse_other_answers(output: Path, answers: list[str]) -> None:
    """Keeps which answers the pre-training goes without. Raises KinspanError where it was begun without others."""
    begun, now = read_object(output / STARTED, "delete it"), fingerprint_identity({"answers": answers})
    if begun.setdefault(ANSWERS, now) != now:
        raise KinspanError(
            f"--output_dir {output} was begun with other --questions, or with none: the documents that hold answers to "
            "the dev and test questions are left out of the pre-training, and these are others now; choose another "
            "--output_dir, or give what it was begun with"
        )
    write_atomically(output / STARTED, json.dumps(begun) + "\n")


def _describe_documents(totals: dict[str, int]) -> str:
    return "documents: {documents:,} with {paragraphs:,} paragraphs and {tokens:,} tokens".format(**totals)


def _describe_pretraining(summary: dict[str, Any]) -> list[str]:
    first, last = summary["first_validation"] or {}, summary["last_validation"] or {}
    lines = [f"learned: {summary['steps']:,} updates, {summary['pairs']:,} pairs in {summary['wall_seconds']:,.0f} s"]
    if summary["steps"] == FEWEST_UPDATES:
        lines.append(f"  {FEWEST_UPDATES} updates are the minimum, and teach little")
    if "pair_auc" in last:
        before, after = first["pair_auc"], last["pair_auc"]
        lines.append(
            f"  held-out pairs are told apart with an AUC of {after:.2f}, before {before:.2f}; a guess has .50"
        )
    else:
        lines.append("  how well it learned is not measured: the held-out documents are too few for pairs")
    return lines


def _name_pretrained(output: Path) -> str:
    return str(output / PRETRAINING / RELEASE)


def _pretrain(settings: Settings, runners: Runners, corpus: Path, objective: str) -> dict[str, Any]:
    """Pre-trains for the budget with settings for a first look, and a schedule that a larger budget goes on with.

    Returns the summary of the run.
    """
    small = load_config(settings.model).hidden_size <= SMALL
    common = {
        "corpus": [str(corpus)],
        "model": settings.model,
        "objective": objective,
        "lr_schedule": "wsd",
        "learning_rate": RATE_OF_SMALL if small else RATE,
        "mlm_weight": 0.05,
        "max_length": 64,
        "global_batch_size": BATCH,
        "micro_batch_size": BATCH,
        "eval_pairs": 500,
        "eval_steps": 1_000_000,
    }
    return train_for(
        settings.budget,
        lambda updates: runners.pretrain({**common, "max_steps": updates}, settings.output / PRETRAINING),
        settings.output,
    )


def _measure_unlabelled(settings: Settings, pairs: AnswerSet | None, say: Say) -> tuple[dict[str, Any], Shown]:
    """Measures the model on held-out pairs, and on questions that are shipped. Returns figures, and what to show."""
    pretrained, folder = _name_pretrained(settings.output), settings.output / "scores"
    sample = measure_sample(settings.model, pretrained, folder, say)
    ways = []
    if pairs:
        scorer = Scorer(count_words(pairs.answers.unique().to_pylist()), folder)
        ways = list_untrained(settings.model, pretrained, pairs, scorer, print)  # has been told
    result = {"questions": pairs.num_questions if pairs else 0, **_list_results(ways, pairs, None)}
    return {**result, "sample": sample.describe()}, (sample.data, sample.shown)


def _compare_ways(
    settings: Settings, questions: Questions, updates: int, teller: "_Teller"
) -> tuple[list[Way], Verdict]:
    """Trains and compares all ways, and releases the one to use."""
    output, pretrained = settings.output, _name_pretrained(settings.output)
    scorer = Scorer(count_words(questions.texts), output / "scores")
    teller.say("ranking the dev questions by what needs no fine-tuning")
    ways = list_untrained(settings.model, pretrained, questions.dev, scorer, teller.say)
    ways += train_ways(settings.model, pretrained, questions, updates, output / "ways", scorer, teller.begin_stage)
    ways.append(fuse_ways(ways, questions.dev))
    start = next((way for way in ways if way.name == name_start(settings.model)), ways[0])
    teller.begin_stage("ranking the test questions by the best way, the model as it is and BM25")
    verdict = judge(ways, start, questions.dev, questions.test, scorer)
    _release(verdict, questions, scorer, output / RELEASE)
    return ways, verdict


def _list_results(ways: list[Way], data: AnswerSet | None, verdict: Verdict | None) -> dict[str, Any]:
    """Returns the figures of the ways on these questions, and what the verdict says."""
    return {
        "ways": _list_rows(ways, data, verdict.test_maps if verdict else {}) if data else [],
        "verdict": verdict.sentence if verdict else UNJUDGED,
        "chosen": verdict.chosen.name if verdict else None,
        "figures": verdict.figures if verdict else None,
        "weights": next((describe_weights(way.fitted) for way in ways if way.fitted), ""),
    }


def _list_rows(ways: list[Way], data: AnswerSet, of_test: dict[str, float]) -> list[dict[str, Any]]:
    """MAP of each way on these questions and on test, and the difference to the best one with its 95% interval."""
    precision = [way.measure(data) for way in ways]
    best = max(precision, key=np.mean)
    rows = []
    for way, own in zip(ways, precision, strict=True):
        low, high = compute_interval(own - best) if own is not best else (None, None)
        figures = {"dev": float(own.mean()), "difference": float((own - best).mean()), "low": low, "high": high}
        rows.append({"name": way.name, **figures, "test": of_test.get(way.name)})
    return rows


def _release(verdict: Verdict, questions: Questions, scorer: Scorer, output: Path) -> None:
    """Writes the release of the chosen way. The start needs none: an older release is then removed."""
    way = verdict.chosen
    about = {"data": "your questions", "figures": {"test": {MAP: verdict.test_maps[way.name]}}}
    if way.fitted:
        write_fusion(output, way.fitted, {part.name: part.model for part in way.parts}, scorer.words, about)
    elif way.model == BM25:
        write_fusion(output, fit_fusion(questions.dev, {BM25: way.scores}), {BM25: BM25}, scorer.words, about)
    elif way is verdict.start:
        if (output / FACTS).is_file():
            shutil.rmtree(output)
    elif ranker := find_ranker(Path(way.model)):
        release_ranker(ranker, output)
    else:
        _copy_release(way.model, output)


def _copy_release(folder: str, output: Path) -> None:
    with replace_release(output) as partial:
        shutil.copytree(folder, partial)
