"""An adaptation from its first step to its verdict. Each step finds what is done, so that the same call goes on."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import make_folder, read_object, write_atomically
from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import BM25, count_words
from finetune.evaluation.metrics import MAP
from finetune.evaluation.significance import compute_interval
from finetune.fuse import describe_weights, single_ranker_fusion, write_fusion
from finetune.ranking.bi_encoder import is_bi_encoder
from finetune.reports.release import find_ranker, release_ranker
from finetune.training.fingerprints import fingerprint_identity
from pretrain.engine.device import describe_device
from pretrain.engine.lock import LOCK, lock_folder
from pretrain.engine.stop import Stopped
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.pair_model import load_config
from pretrain.release.folder import FACTS, replace_release, set_ranking_length

from .budget import BATCH, FEWEST_UPDATES, Budget, train_for
from .duration import Forecast
from .page import Shown, list_commands, measure_again, render_page, render_text
from .questions import TEST, Questions, load_questions, name_questions
from .sample import TRIAL, measure_sample
from .telling import Say, Teller, log_steps
from .verdict import UNJUDGED, Verdict, judge
from .ways import (
    MAX_LENGTH,
    PRETRAINED,
    Scorer,
    Way,
    describe_way,
    find_start,
    fuse_ways,
    list_untrained,
    name_model,
    name_start,
    train_ways,
)

ANSWERS = "answers"  # in STARTED, those that the pre-training goes without
STARTED, RESULT, PAGE, LOG = "adapt.json", "result.json", "report.html", "log.txt"
PRETRAINING, RELEASE = "pretrain", "release"
FEW_PARAGRAPHS = 200  # below these hardly anything is learned
SPANS = "it learns which spans of text are of one paragraph, without labels"
ACCEPTED = "it learns which answer a question of the forum accepted"
SMALL = 384  # the most hidden units of a small encoder, which takes the higher of these rates
# A wsd schedule stays at its peak, and learns more at half the rate of the triangular recipes (benchmarks/RESULTS.md)
RATE_OF_SMALL, RATE = 1.25e-4, 5e-5


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


def adapt(settings: Settings, runners: Runners, say: Say) -> dict[str, Any]:
    """Adapts a model to documents, and returns what ``result.json`` holds.

    Raises KinspanError for what the user can mend, and Stopped (a SystemExit of status 75) where a signal ended it.
    """
    output = settings.output
    if output.is_dir() and any(output.iterdir()) and not (output / STARTED).exists():
        raise KinspanError(f"--output_dir {output} is not empty and holds no adaptation: choose another folder")
    load_config(settings.model)  # before the work, to see whether it can be trained
    questions = load_questions(settings.questions, settings.columns, output) if settings.questions else None
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
    with log_steps(output / LOG, Forecast(settings.budget, questions), say) as teller:
        say = teller.say
        say("reading the documents ...")
        corpus, objective, told = _prepare(settings, runners, questions)
        if questions:
            questions.write(output)
            told += questions.describe()
        say("\n".join(told))
        compared = _rank_untrained(settings, questions, teller) if questions else None
        summary = _pretrain(settings, runners, corpus, objective, teller)
        told += (learned := _describe_pretraining(summary))
        say("\n".join(learned))
        if compared:
            verdict = _compare_ways(compared, summary["steps"], teller)
            dev = compared.questions.dev
            result = {"questions": dev.num_questions, **_list_results(compared.ways, dev, verdict)}
            released, shown = (output / RELEASE).is_dir(), (compared.questions.test, verdict.tested)
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
        test, question = _name_test(output), questions.test.questions[0]
    return list_commands(settings.documents, model, test, output, question, bool(model and is_bi_encoder(model)))


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
        return corpus, objective, _describe_documents(totals)
    corpus = settings.output / "corpus-without-answers"
    kept = runners.prepare(settings.documents, settings.model, corpus, answers)
    left_out = totals["documents"] - kept["documents"]
    note = (
        f"  {left_out:,} more hold the right answer to a dev or test question. They are left out: a model that was "
        "trained on these answers would rank them too well, and look better than it is"
    )
    return corpus, runners.choose(corpus), [*_describe_documents(kept), note]


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


def _describe_documents(totals: dict[str, int]) -> list[str]:
    lines = ["documents: {documents:,} with {paragraphs:,} paragraphs and {tokens:,} tokens".format(**totals)]
    if totals["paragraphs"] < FEW_PARAGRAPHS:
        lines.append(
            f"  fewer than {FEW_PARAGRAPHS} paragraphs teach a model next to nothing, however long it trains: give "
            "more documents"
        )
    return lines


def _describe_pretraining(summary: dict[str, Any]) -> list[str]:
    first, last = summary["first_validation"] or {}, summary["last_validation"] or {}
    lines = [f"learned: {summary['steps']:,} updates, {summary['pairs']:,} pairs in {summary['wall_seconds']:,.0f} s"]
    if summary["steps"] == FEWEST_UPDATES:
        lines.append(f"  {FEWEST_UPDATES} updates are the minimum, and teach little")
    if "pair_auc" in last:
        before, after = first["pair_auc"], last["pair_auc"]
        lines.append(
            f"  on held-out documents it tells texts that belong together from others with an AUC of {after:.2f}, "
            f"before {before:.2f}; AUC is the share of such comparisons that are right, and a guess has .50"
        )
    else:
        lines.append("  how well it learned is not measured: too few documents are held out for pairs")
    return lines


def _name_test(output: Path) -> Path:
    return output / TEST / f"{TEST}.jsonl"


def _name_pretrained(output: Path) -> str:
    return str(output / PRETRAINING / RELEASE)


def _pretrain(settings: Settings, runners: Runners, corpus: Path, objective: str, teller: Teller) -> dict[str, Any]:
    """Pre-trains for the budget with settings for a first look, and a schedule that a larger budget goes on with.

    The model then ranks by as many tokens as fine-tuned ones do. Returns the summary of the run.
    """
    output, config = settings.output, load_config(settings.model)
    name, budget = name_model(settings.model), settings.budget.text
    taught = SPANS if objective == "ssp" else ACCEPTED
    teller.begin_stage(f"pre-training {name} on the documents for {budget}: {taught} (objective {objective})")
    if not (output / PRETRAINING).exists():
        teller.say("  first the model is loaded, and measured on held-out pairs if the documents give some ...")
    common = {
        "corpus": [str(corpus)],
        "model": settings.model,
        "objective": objective,
        "lr_schedule": "wsd",
        "learning_rate": RATE_OF_SMALL if config.hidden_size <= SMALL else RATE,
        "mlm_weight": 0.05,
        "max_length": 64,
        "global_batch_size": BATCH,
        "micro_batch_size": BATCH,
        "eval_pairs": 500,
        "eval_steps": 1_000_000,
    }
    summary = train_for(
        settings.budget,
        lambda updates: runners.pretrain({**common, "max_steps": updates}, output / PRETRAINING),
        output,
    )
    teller.forecast.updates = summary["steps"]
    positions = getattr(config, "max_position_embeddings", MAX_LENGTH) - FAMILIES[config.model_type].first_position(
        config
    )
    set_ranking_length(Path(_name_pretrained(output)), min(MAX_LENGTH, positions))
    return summary


def _measure_unlabelled(settings: Settings, pairs: AnswerSet | None, say: Say) -> tuple[dict[str, Any], Shown]:
    """Measures the model on held-out pairs, and on questions that are shipped. Returns figures, and what to show."""
    pretrained, folder = _name_pretrained(settings.output), settings.output / "scores"
    sample = measure_sample(settings.model, pretrained, folder, say)
    ways = []
    if pairs:
        scorer = Scorer(count_words(pairs.answers.unique().to_pylist()), folder)
        ways = [*list_untrained(settings.model, pairs, scorer, print), scorer.rank(PRETRAINED, pretrained, pairs)]
    result = {"questions": pairs.num_questions if pairs else 0, **_list_results(ways, pairs, None)}
    return {**result, "sample": sample.describe()}, (sample.data, sample.shown)


@dataclass(frozen=True)
class _Compared:
    """The ways of ranking that are known so far."""

    settings: Settings
    questions: Questions
    scorer: Scorer
    say: Say
    ways: list[Way] = field(default_factory=list)

    @property
    def start(self) -> Way:
        return find_start(self.ways, self.settings.model)

    def add(self, found: Iterable[Way]) -> None:
        """Adds ways as they are found, and tells how well each ranks the dev questions."""
        for way in found:
            self.ways.append(way)
            self.say(f"  {describe_way(way, self.start, self.questions.dev)}")


def _rank_untrained(settings: Settings, questions: Questions, teller: Teller) -> _Compared:
    """Ranks the dev questions by what needs no training."""
    output, say = settings.output, teller.say
    compared = _Compared(settings, questions, Scorer(count_words(questions.texts), output / "scores"), say)
    say("ranking the dev questions; MAP, mean average precision, is 1 where all right answers come first:")
    compared.add(list_untrained(settings.model, questions.dev, compared.scorer, say))
    if len(compared.ways) > 1:
        command = measure_again(settings.model, _name_test(output))
        teller.advice = f"  to see in a minute or two which of these is better on the test questions:\n  {command}"
    return compared


def _compare_ways(compared: _Compared, updates: int, teller: Teller) -> Verdict:
    """Trains and compares all ways, and releases the one to use."""
    settings, questions, scorer = compared.settings, compared.questions, compared.scorer
    output, pretrained = settings.output, _name_pretrained(settings.output)
    compared.add([scorer.rank(PRETRAINED, pretrained, questions.dev)])
    compared.add(
        train_ways(settings.model, pretrained, questions, updates, output / "ways", scorer, teller.begin_stage)
    )
    compared.add([fuse_ways(compared.ways, questions.dev)])
    teller.begin_stage("ranking the test questions by the best way, the model as it is and BM25")
    verdict = judge(compared.ways, compared.start, questions.dev, questions.test, scorer)
    _release(verdict, compared, output / RELEASE)
    return verdict


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
        read = {"cut": way.cut, "length": way.length}
        rows.append({"name": way.name, **figures, **read, "test": of_test.get(way.name)})
    return rows


def _release(verdict: Verdict, compared: _Compared, output: Path) -> None:
    """Writes the release of the chosen way. The start needs none: an older release is then removed."""
    way, words = verdict.chosen, compared.scorer.words
    maps = verdict.test_maps
    figures = {TEST: {MAP: maps.pop(way.name)}, **{f"{TEST}, {name}": {MAP: value} for name, value in maps.items()}}
    about = {"data": name_questions(str(compared.settings.questions)), "figures": figures}
    if way.fitted:
        write_fusion(output, way.fitted, {part.name: part.model for part in way.parts}, words, about)
    elif way.model == BM25:
        write_fusion(output, single_ranker_fusion(BM25, way.scores), {BM25: BM25}, words, about)
    elif way is verdict.start:
        if (output / FACTS).is_file():
            shutil.rmtree(output)
    elif ranker := find_ranker(Path(way.model)):
        release_ranker(ranker, output, measured=about)
    else:
        _copy_release(way.model, output)


def _copy_release(folder: str, output: Path) -> None:
    with replace_release(output) as partial:
        shutil.copytree(folder, partial)
