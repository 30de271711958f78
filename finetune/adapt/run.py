"""Runs an adaptation, from the corpus to the verdict. Each step skips what is done, so that the same call resumes."""

import json
import logging
import re
import shlex
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_pipeline.core.default_model import DEFAULT_MODEL_NAME, name_installed
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import JsonObject, make_folder, read_object, write_atomically
from finetune.evaluation.bm25 import BM25, count_words
from finetune.evaluation.metrics import MAP
from finetune.evaluation.significance import compute_interval
from finetune.ranking.fusion import single_ranker_fusion, write_fusion
from finetune.ranking.kinds import BI_ENCODER, find_kind
from finetune.training.release import find_ranker, release_ranker
from finetune.training.stages import fingerprint_identity
from pretrain.engine.device import name_device
from pretrain.engine.run_folder import lock_folder
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.pair_model import load_config
from pretrain.release.folder import FACTS, replace_release, set_ranking_length

from .page import render_page
from .questions import TEST, Questions, load_questions, locate_test, name_questions
from .rankers import (
    MAX_LENGTH,
    PRETRAINED,
    Ranker,
    ScoreCache,
    fuse_rankers,
    list_untrained,
    name_base,
    name_model,
    train_rankers,
)
from .verdict import UNJUDGED, Verdict, judge, judge_without_labels

log = logging.getLogger(__name__)

STARTED, RESULT, PAGE, PLANNED = "adapt.json", "result.json", "report.html", "budget.json"
PRETRAINING, RELEASE = "pretrain", "release"
ANSWERS = "answers"  # key in STARTED: a hash of the answers that the pre-training leaves out
FEW_PARAGRAPHS = 200  # with fewer, hardly anything is learned
BATCH = 32  # pairs in an update
MIN_UPDATES = 10
MEASURED_UPDATES = 100  # what warm-up and decay need; their speed turns a time budget into updates
UNITS = {"s": 1, "m": 60, "h": 3600}
SMALL = 384  # maximum hidden size of a small encoder, which takes the higher of these rates
# A wsd schedule stays at its peak, and learns more at half the rate of the triangular recipes (benchmarks/RESULTS.md)
RATE_OF_SMALL, RATE = 1.25e-4, 5e-5


@dataclass(frozen=True)
class Budget:
    """How long to pre-train: seconds, or pairs."""

    text: str
    seconds: float | None = None
    pairs: int | None = None


@dataclass(frozen=True)
class AdaptOptions:
    """The flags of the command."""

    documents: list[str]
    questions: str | None
    columns: str | None
    model: str
    budget: Budget
    output: Path


@dataclass(frozen=True)
class PipelineHooks:
    """Functions of data_pipeline and pretrain, passed in because finetune may not import them.

    prepare:  given documents, a model, a folder and texts, makes or finds the corpus of the documents in the folder,
              without those that contain one of the texts, and returns its counts
    choose:   returns the objective for a corpus
    pretrain: trains with settings in a folder, or resumes, and returns the summary; writes the model to ``release``
    """

    prepare: Callable[[list[str], str, Path, list[str]], dict[str, int]]
    choose: Callable[[Path], str]
    pretrain: Callable[[JsonObject, Path], JsonObject]


def parse_budget(text: str) -> Budget:
    """Parses ``30m``, ``90s``, ``2h`` or ``51200pairs``. Raises KinspanError for anything else."""
    # A comma may only separate thousands: 1,5h might mean one and a half hours
    match = re.fullmatch(r"(\d{1,3}(?:,\d{3})+|\d*\.?\d+)\s*(s|m|h|pairs)", text.strip(), re.ASCII)
    number = float(match[1].replace(",", "")) if match else 0
    if not match or not number:
        raise KinspanError(f"--budget {text}: write a time, such as 30m or 2h, or a number such as 51200pairs")
    if match[2] != "pairs":
        return Budget(text, seconds=number * UNITS[match[2]])
    if number < BATCH * MIN_UPDATES:
        raise KinspanError(f"--budget {text}: give {BATCH * MIN_UPDATES}pairs or more")
    return Budget(text, pairs=int(number))


def adapt(options: AdaptOptions, hooks: PipelineHooks) -> JsonObject:
    """Adapts a model to documents, and returns what ``result.json`` holds."""
    output = options.output
    if output.is_dir() and any(output.iterdir()) and not (output / STARTED).exists():
        raise KinspanError(f"--output_dir {output} is not empty and holds no adaptation: choose another folder")
    load_config(options.model)  # fails early if the model cannot be trained
    questions = load_questions(options.questions, options.columns, output) if options.questions else None
    make_folder(output)
    with lock_folder(output):
        if not (output / STARTED).exists():
            write_atomically(output / STARTED, "{}\n")
        return _run_stages(options, questions, hooks)


def _run_stages(options: AdaptOptions, questions: Questions | None, hooks: PipelineHooks) -> JsonObject:
    output, pretrained = options.output, str(options.output / PRETRAINING / RELEASE)
    log.info("device: %s", name_device())
    corpus, objective, notes = _prepare(options, hooks, questions)
    comparison = None
    if questions:
        questions.write(output)
        counts = (f"{split.num_questions:,} {split.split}" for split in questions.splits)
        notes += [f"questions: {', '.join(counts)}", *questions.notes]
    log.info("\n".join(notes))
    if questions:
        comparison = Comparison(options, questions)
        comparison.add(list_untrained(options.model, questions.dev, comparison.cache))
    summary = _pretrain(options, hooks, corpus, objective)
    learned = _list_learned(summary)
    log.info("\n".join(learned))
    if comparison:
        verdict = comparison.decide(pretrained, summary["steps"])
        result = {"questions": comparison.dev.num_questions, **_list_results(comparison, verdict)}
    else:
        log.info("measuring on a hundred questions of SelQA")
        sample = judge_without_labels(options.model, pretrained, output / "scores")
        _copy_release(pretrained, output / RELEASE)
        result = {"verdict": UNJUDGED, "chosen": None, "rankers": [], "weights": "", "sample": sample}
    release = output / RELEASE
    result |= {"notes": notes + learned, "release": str(release) if release.is_dir() else None}
    result |= {"page": str(output / PAGE), "model": result["release"] or options.model}
    result["commands"] = _list_commands(options, questions, result)
    write_atomically(output / RESULT, json.dumps(result, indent=1) + "\n")
    write_atomically(output / PAGE, render_page(result))
    return result


def _prepare(options: AdaptOptions, hooks: PipelineHooks, questions: Questions | None) -> tuple[Path, str, list[str]]:
    """Makes the corpus, and returns it, the objective that suits it, and notes.

    A forum's pre-training pairs questions with their accepted answers. Those of dev and test questions are the labels,
    so documents that contain them are left out.
    """
    corpus = options.output / "corpus"
    counts = hooks.prepare(options.documents, options.model, corpus, [])
    objective, left_out = hooks.choose(corpus), 0
    answers = questions.list_measured() if questions and objective != "ssp" else []
    _claim_answers(options.output, answers)
    if answers:
        corpus = options.output / "corpus-without-answers"
        full_counts, counts = counts, hooks.prepare(options.documents, options.model, corpus, answers)
        objective, left_out = hooks.choose(corpus), full_counts["documents"] - counts["documents"]
    notes = ["documents: {documents:,} with {paragraphs:,} paragraphs and {tokens:,} tokens".format(**counts)]
    if left_out:
        notes.append(f"left out {left_out:,} documents that hold the right answer to a dev or test question")
    if counts["paragraphs"] < FEW_PARAGRAPHS:
        notes.append(f"fewer than {FEW_PARAGRAPHS} paragraphs teach a model next to nothing: give more documents")
    return corpus, objective, notes


def _claim_answers(output: Path, answers: list[str]) -> None:
    """Records which answers the pre-training leaves out. Raises KinspanError if it was begun with others."""
    record, key = read_object(output / STARTED, "delete it"), fingerprint_identity({ANSWERS: answers})
    if record.setdefault(ANSWERS, key) != key:
        raise KinspanError(f"--output_dir {output} was begun with other --questions: choose another folder")
    write_atomically(output / STARTED, json.dumps(record) + "\n")


def _pretrain(options: AdaptOptions, hooks: PipelineHooks, corpus: Path, objective: str) -> JsonObject:
    """Pre-trains for the budget, with a schedule that a larger budget can continue, and returns the summary.

    The model's length for ranking becomes that of the fine-tuned models.
    """
    output, config = options.output, load_config(options.model)
    log.info("pre-training %s for %s, objective %s", name_model(options.model), options.budget.text, objective)
    settings = {
        "corpus": [str(corpus)],
        "model": options.model,
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

    def train(updates: int) -> JsonObject:
        short = {} if updates >= MEASURED_UPDATES else {"warmup_steps": updates // 4}
        return hooks.pretrain({**settings, **short, "max_steps": updates}, output / PRETRAINING)

    summary = train_for(options.budget, train, output)
    positions = getattr(config, "max_position_embeddings", MAX_LENGTH)
    positions -= FAMILIES[config.model_type].first_position(config)
    set_ranking_length(output / PRETRAINING / RELEASE, min(MAX_LENGTH, positions))
    return summary


def train_for(budget: Budget, train: Callable[[int], JsonObject], folder: Path) -> JsonObject:
    """Trains for the budget, and returns the summary of the run.

    A time becomes a number of updates by the speed of the first MEASURED_UPDATES, which the run then continues.
    ``folder`` keeps the number, so that the same budget gives it again, and a killed run resumes.

    train: trains up to this total number of updates, and returns the summary
    """
    path = folder / PLANNED
    plan = read_object(path, "delete it") if path.exists() else {"updates": {}, "seconds": None}
    if budget.text not in plan["updates"]:
        if budget.pairs is not None:
            plan["updates"][budget.text] = -(-budget.pairs // BATCH)
        else:
            plan["seconds"] = plan["seconds"] or _measure_update(train(MEASURED_UPDATES))
            plan["updates"][budget.text] = max(MEASURED_UPDATES, round((budget.seconds or 0) / plan["seconds"]))
        write_atomically(path, json.dumps(plan, indent=1) + "\n")
    summary = train(plan["updates"][budget.text])
    write_atomically(path, json.dumps({**plan, "seconds": _measure_update(summary)}, indent=1) + "\n")
    return summary


def _measure_update(summary: JsonObject) -> float:
    """Returns the seconds of an update, validation included."""
    return max(summary["wall_seconds"], 0.1) / summary["steps"]


def _list_learned(summary: JsonObject) -> list[str]:
    """Returns notes on the pre-training."""
    first, last = summary["first_validation"] or {}, summary["last_validation"] or {}
    notes = [f"learned: {summary['steps']:,} updates, {summary['pairs']:,} pairs in {summary['wall_seconds']:,.0f} s"]
    if summary["steps"] <= MEASURED_UPDATES:
        notes.append("so few updates teach little")
    if "pair_auc" in last:
        auc = f"{last['pair_auc']:.2f}, before {first['pair_auc']:.2f}"
        return [*notes, f"AUC on pairs of texts of held-out documents: {auc}; a guess has .50"]
    return [*notes, "how well it learned is not measured: too few documents are held out for pairs"]


class Comparison:
    """The rankers so far, compared on the dev questions."""

    def __init__(self, options: AdaptOptions, questions: Questions) -> None:
        self.options, self.questions, self.dev, self.test = options, questions, questions.dev, questions.test
        self.cache = ScoreCache(count_words(questions.texts), options.output / "scores")
        self.rankers: list[Ranker] = []

    def add(self, rankers: Iterable[Ranker]) -> None:
        for ranker in rankers:
            self.rankers.append(ranker)
            log.info("dev MAP %.3f  %s", ranker.measure(self.dev).mean(), ranker.name)

    def decide(self, pretrained: str, updates: int) -> Verdict:
        """Trains and compares all rankers, judges, and releases the one to use.

        pretrained: the folder of the pre-trained model
        updates:    the pre-training's number of updates
        """
        model, output = self.options.model, self.options.output
        self.add([self.cache.rank(PRETRAINED, pretrained, self.dev)])
        self.add(train_rankers(model, pretrained, self.questions, updates, output / "rankers", self.cache))
        self.add([fuse_rankers(self.rankers, self.dev)])
        log.info("ranking the test questions")
        untrained = [ranker for ranker in self.rankers if ranker.name == name_base(model)]
        base = untrained[0] if untrained else self.rankers[0]  # BM25
        verdict = judge(self.rankers, base, self.dev, self.test, self.cache)
        _release(verdict, self, output / RELEASE)
        return verdict


def _list_results(comparison: Comparison, verdict: Verdict) -> JsonObject:
    """Returns what the verdict says, and MAP of each ranker on dev and test.

    Each row has the difference to the best one on dev, with its 95% interval.
    """
    precision = [ranker.measure(comparison.dev) for ranker in comparison.rankers]
    best = max(precision, key=np.mean)
    rows = []
    for ranker, values in zip(comparison.rankers, precision, strict=True):
        low, high = compute_interval(values - best) if values is not best else (None, None)
        difference = float((values - best).mean())
        figures = {"dev": float(values.mean()), "difference": difference, "low": low, "high": high}
        rows.append({"name": ranker.name, **figures, "test": verdict.test_maps.get(ranker.name)})
    return {
        "rankers": rows,
        "verdict": verdict.sentence,
        "chosen": verdict.chosen.name,
        "figures": verdict.figures,
        "weights": next((ranker.fitted.format_weights() for ranker in comparison.rankers if ranker.fitted), ""),
    }


def _list_commands(options: AdaptOptions, questions: Questions | None, result: JsonObject) -> list[str]:
    """Returns commands to paste: measure the chosen ranker again, index the documents, and answer a question of them.

    If no ranker is chosen, they use the base model if it can rank, and else the default model.
    """
    model = result["release"] if result["chosen"] else None
    if model is None and any(row["name"] == name_base(options.model) for row in result["rankers"]):
        model = options.model
    embeds = find_kind(model or options.model) == BI_ENCODER
    if model is None and embeds:
        model = options.model
    is_default = model is None or name_installed(model) == DEFAULT_MODEL_NAME
    flags = [] if is_default else ["--model" if embeds else "--cross_encoder", model]
    index, (first, *more) = options.output / "index", options.documents
    question = questions.test.questions[0] if questions else "your question"
    commands: list[list[object]] = [
        ["index", "--answers", f"documents={first}", *(flags if embeds else []), "--output_dir", index],
        *(["index", "--add", f"documents={path}", "--output_dir", index] for path in more),
        ["search", "--index", index, *([] if embeds else flags), question],
    ]
    if questions and model:
        test = f"files={locate_test(options.output)}"
        commands.insert(0, ["evaluate", "--model", name_installed(model), "--data", test])
    return [shlex.join(["kinspan", *map(str, command)]) for command in commands]


def _release(verdict: Verdict, comparison: Comparison, output: Path) -> None:
    """Writes the release of the chosen ranker. If that is the base, an older release is only removed."""
    ranker, words, maps = verdict.chosen, comparison.cache.words, verdict.test_maps
    figures = {TEST: {MAP: maps.pop(ranker.name)}, **{f"{TEST}, {name}": {MAP: value} for name, value in maps.items()}}
    about = {"data": name_questions(str(comparison.options.questions)), "figures": figures}
    if ranker.fitted:
        write_fusion(output, ranker.fitted, {part.name: part.model for part in ranker.parts}, words, about)
    elif ranker.model == BM25:
        write_fusion(output, single_ranker_fusion(BM25, ranker.scores), {BM25: BM25}, words, about)
    elif ranker is verdict.base:
        if (output / FACTS).is_file():
            shutil.rmtree(output)
    elif trained := find_ranker(Path(ranker.model)):
        release_ranker(trained, output, measured=about)
    else:
        _copy_release(ranker.model, output)


def _copy_release(folder: str, output: Path) -> None:
    with replace_release(output) as partial:
        shutil.copytree(folder, partial)
