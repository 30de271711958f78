"""Runs an adaptation, from the corpus to the verdict. Each step skips what is done, so that the same call resumes."""

import json
import logging
import shlex
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from data_pipeline.core.default_model import DEFAULT_MODEL_NAME, name_installed
from data_pipeline.core.errors import KinspanError, redact
from data_pipeline.core.files import JsonObject, make_folder, read_object, write_atomically
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.data.passages import Paragraphs, has_labels
from finetune.data.registry import parse_columns
from finetune.evaluation.bm25 import BM25, count_words
from finetune.evaluation.metrics import MAP, MRR_10
from finetune.evaluation.significance import compute_interval
from finetune.ranking.fusion import write_fusion
from finetune.ranking.kinds import BI_ENCODER, CROSS_ENCODER, can_embed, find_kind, refuse_fusion
from finetune.ranking.ranker import find_max_length
from finetune.training.release import find_ranker, release_ranker
from finetune.training.stages import fingerprint_answers, fingerprint_identity
from pretrain.engine.device import name_device, set_threads
from pretrain.engine.run_folder import RUN, lock_folder
from pretrain.modeling.pair_model import load_config
from pretrain.release.folder import FACTS, copy_model, replace_release, set_ranking_length

from .budget import BATCH, Budget
from .page import render_page
from .passages import MAX_PARAGRAPHS, add_search, search_candidates
from .questions import FILES, SAMPLE, TEST, TEST_FILE, Questions, load_questions, make_spec
from .rankers import (
    PRETRAINED,
    CostMeter,
    Ranker,
    ScoreCache,
    finish,
    fuse_rankers,
    list_untrained,
    name_base,
    name_fused,
    plan_trainings,
    train_rankers,
)
from .verdict import LEVEL, SEARCHED, UNJUDGED, Verdict, choose_best, judge, judge_without_labels

log = logging.getLogger(__name__)

STARTED, RESULT, PAGE, PLANNED = "adapt.json", "result.json", "report.html", "budget.json"
PRETRAINING, RELEASE = "pretrain", "release"
LOOKS = "looks"  # key in STARTED: the questions that judged, by a hash of them and of what they judged
ANSWERS = "answers"  # key in STARTED: a hash of the answers that the pre-training leaves out
FEW_PARAGRAPHS = 200  # with fewer, hardly anything is learned
MEASURED_UPDATES = 100  # enough for warm-up and decay; their speed converts a time to updates
WORTH_GOING_ON = 1.25  # times MEASURED_UPDATES: going on for less costs as much as it adds
SMALL = 384  # maximum hidden size of a small encoder, which takes the higher of these rates
# A wsd schedule stays at its peak, and learns more at half the rate of the triangular recipes (benchmarks/RESULTS.md)
RATE_OF_SMALL, RATE = 1.25e-4, 5e-5


@dataclass(frozen=True)
class AdaptOptions:
    documents: list[str]
    questions: str | None
    columns: str | None
    model: str
    budget: Budget
    output: Path
    quality_first: bool = False
    language: str | None = None


@dataclass(frozen=True)
class PipelineHooks:
    """Functions that ``launch.commands.adapt`` describes, passed in because finetune may not import their packages."""

    prepare: Callable[[list[str], str, Path, list[str]], dict[str, int]]
    choose: Callable[[Path], str]
    pretrain: Callable[[JsonObject, Path], JsonObject]
    read: Callable[[list[str]], Paragraphs]


def adapt(options: AdaptOptions, hooks: PipelineHooks) -> JsonObject:
    """Adapts a model to documents, and returns what ``result.json`` holds."""
    output = options.output
    if output.is_dir() and any(output.iterdir()) and not (output / STARTED).exists():
        raise KinspanError(f"--output_dir {output} is not empty and holds no adaptation: choose another folder")
    load_config(options.model)  # fails early if the model cannot be trained
    refuse_fusion(options.model)
    make_folder(output)
    with lock_folder(output):
        if not (output / STARTED).exists():
            write_atomically(output / STARTED, "{}\n")
        return _run_stages(options, _load(options, hooks) if options.questions else None, hooks)


def _load(options: AdaptOptions, hooks: PipelineHooks) -> Questions:
    """Returns the labelled questions; those without wrong candidates get them by a search of the documents."""
    given, columns = str(options.questions), parse_columns(options.columns)
    path = Path(given.removeprefix("files="))
    if path.exists() and not has_labels(path, columns):
        read = partial(hooks.read, options.documents)
        return search_candidates(path, columns or {}, read, options.model, options.output, options.language)
    return load_questions(given, options.columns, options.output)


def _add_search(options: AdaptOptions, questions: Questions, num_paragraphs: int, hooks: PipelineHooks) -> Questions:
    """Adds a search of the documents to labelled questions, or a note on why there is none."""
    reason = f"more than {MAX_PARAGRAPHS:,} paragraphs"
    try:
        if num_paragraphs <= MAX_PARAGRAPHS:
            paragraphs = hooks.read(options.documents)
            return add_search(questions, paragraphs, options.model, options.output, options.language)
    except KinspanError as error:
        reason = str(error)
    return replace(questions, notes=[*questions.notes, f"a search of the documents is not measured: {reason}"])


def _run_stages(options: AdaptOptions, questions: Questions | None, hooks: PipelineHooks) -> JsonObject:
    output, pretrained = options.output, str(options.output / PRETRAINING / RELEASE)
    set_threads()
    log.info("device: %s", name_device())
    corpus, objective, num_paragraphs, notes = _prepare(options, hooks, questions)
    comparison = None
    if questions:
        questions.write(output)
        list(plan_trainings(options.model, options.model, questions, 10**9))  # refuses early what cannot be trained
        if not questions.searched.any() and options.questions != SAMPLE:
            questions = _add_search(options, questions, num_paragraphs, hooks)
        count, num_compared = questions.train.num_questions, int(questions.compared.sum())
        compared = f"questions: {count:,}, of which {num_compared:,} compare rankers"
        tested = [f"test questions: {questions.test.num_questions:,}"] if questions.test else []
        notes += [compared, *tested, *questions.notes]
    log.info("\n".join(notes))
    if questions:
        comparison = Comparison(options, questions)
        comparison.add(list_untrained(options.model, questions.scored, comparison.cache))
    summary = _pretrain(options, hooks, corpus, objective)
    learned = _list_learned(summary)
    log.info("\n".join(learned))
    if comparison:
        verdict = comparison.decide(pretrained, summary["steps"])
        result = {"questions": comparison.data.num_questions, **_list_results(comparison, verdict)}
    else:
        log.info("measuring on questions of SelQA")
        sample = judge_without_labels(options.model, pretrained, output / "scores")
        _copy_release(pretrained, output / RELEASE)
        result = {"verdict": UNJUDGED, "chosen": None, "rankers": [], "sample": sample}
    release = output / RELEASE
    result |= {"notes": notes + learned, "release": str(release) if release.is_dir() else None}
    result |= {"page": str(output / PAGE), "model": result["release"] or options.model}
    result["commands"] = _list_commands(options, questions, result)
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    result["size"] = f"{output} takes {size / 1e6:,.0f} MB"
    write_atomically(output / RESULT, json.dumps(result, indent=1) + "\n")
    write_atomically(output / PAGE, render_page(result))
    return result


def _prepare(
    options: AdaptOptions, hooks: PipelineHooks, questions: Questions | None
) -> tuple[Path, str, int, list[str]]:
    """Makes the corpus (a forum's lacks labelled answers); returns it, objective, number of paragraphs and notes."""
    corpus = options.output / "corpus"
    counts = hooks.prepare(options.documents, options.model, corpus, [])
    num_paragraphs, objective, left_out = counts["paragraphs"], hooks.choose(corpus), 0
    answers = questions.list_right() if questions and objective != "ssp" else []
    record = read_object(options.output / STARTED, "delete it")
    key = fingerprint_identity({ANSWERS: answers})
    if record.setdefault(ANSWERS, key) != key:
        raise KinspanError(f"--output_dir {options.output} was begun with other --questions: choose another folder")
    write_atomically(options.output / STARTED, json.dumps(record) + "\n")
    if answers:
        corpus = options.output / "corpus-without-answers"
        full_counts, counts = counts, hooks.prepare(options.documents, options.model, corpus, answers)
        objective, left_out = hooks.choose(corpus), full_counts["documents"] - counts["documents"]
    notes = ["documents: {documents:,} with {paragraphs:,} paragraphs and {tokens:,} tokens".format(**counts)]
    if left_out:
        notes.append(f"left out {left_out:,} documents that hold the right answer to a question that judges")
    if counts["paragraphs"] < FEW_PARAGRAPHS:
        notes.append(f"fewer than {FEW_PARAGRAPHS} paragraphs teach a model next to nothing: give more documents")
    return corpus, objective, num_paragraphs, notes


def _pretrain(options: AdaptOptions, hooks: PipelineHooks, corpus: Path, objective: str) -> JsonObject:
    """Pre-trains for the budget, with a schedule that a larger budget can continue, and returns the summary."""
    output, config = options.output, load_config(options.model)
    log.info("pre-training %s for %s, objective %s", shorten_name(options.model), options.budget.text, objective)
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
        begun = output / PRETRAINING / RUN
        planned = read_object(begun, "delete it")["total_steps"] if begun.is_file() else updates
        if updates < planned:
            raise KinspanError(f"--budget {options.budget.text} pays for {updates:,} of the {planned:,} updates begun")
        if planned < min(updates, MEASURED_UPDATES):  # too short for a schedule that can be continued
            shutil.rmtree(output / PRETRAINING)
        short = {} if updates >= MEASURED_UPDATES else {"warmup_steps": updates // 4}
        return hooks.pretrain({**settings, **short, "max_steps": updates}, output / PRETRAINING)

    summary = train_for(options.budget, train, output)
    set_ranking_length(output / PRETRAINING / RELEASE, find_max_length(options.model))
    return summary


def train_for(budget: Budget, train: Callable[[int], JsonObject], folder: Path) -> JsonObject:
    """Trains for the budget, and returns the summary of the run.

    A time becomes a number of updates by the speed of the first MEASURED_UPDATES, which the run then continues.
    ``folder`` keeps the number, so that the same budget gives it again, and a killed run resumes.
    """
    path = folder / PLANNED
    plan = read_object(path, "delete it") if path.exists() else {"updates": {}, "seconds": None}
    if budget.text not in plan["updates"]:
        if budget.pairs is not None:
            plan["updates"][budget.text] = -(-budget.pairs // BATCH)
        else:
            plan["seconds"] = plan["seconds"] or _measure_update(train(MEASURED_UPDATES))
            paid = round((budget.seconds or 0) / plan["seconds"])
            plan["updates"][budget.text] = paid if paid > WORTH_GOING_ON * MEASURED_UPDATES else MEASURED_UPDATES
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
    """The rankers so far, compared on the labelled questions by scores out of fold."""

    def __init__(self, options: AdaptOptions, questions: Questions) -> None:
        self.options, self.questions, self.data = options, questions, questions.judging
        self.cache = ScoreCache(count_words(questions.texts, options.language), options.output / "scores")
        self.meter = CostMeter(self.data, self.cache.words)
        self.rankers: list[Ranker] = []

    def add(self, rankers: Iterable[Ranker]) -> None:
        for trained in rankers:
            ranker = replace(trained, scores=self.questions.sink_missed(trained.scores))
            self.rankers.append(ranker)
            cost = self.meter.measure(ranker)
            log.info("MAP %.3f, %.0f ms a question: %s", ranker.measure(self.data).mean(), cost.ms, ranker.name)

    def decide(self, pretrained: str, updates: int) -> Verdict:
        """Trains and compares all rankers, judges, and releases the one to use; ``updates``: those of pre-training."""
        model, output, questions = self.options.model, self.options.output, self.questions
        runs = output / "rankers"
        self.add([self.cache.rank(PRETRAINED, CROSS_ENCODER, pretrained, questions.scored)])
        starts = {f"{ranker.role} {ranker.model}": ranker for ranker in self.rankers}
        self.add(train_rankers(plan_trainings(model, pretrained, questions, updates), starts, questions, runs))
        self.add(fuse_rankers(self.rankers, questions))
        base = next((ranker for ranker in self.rankers if ranker.name == name_base(model)), self.rankers[0])

        def measure_test(test: AnswerSet, ranker: Ranker) -> np.ndarray:
            log.info("ranking the test questions: %s", ranker.name)
            scores = self.cache.score_ranker(finish(ranker, questions, runs), test)
            return replace(ranker, scores=scores).measure(test)

        ms = {ranker.name: self.meter.measure(ranker).ms for ranker in self.rankers}
        others = [ranker for ranker in self.rankers if ranker is not base]
        tested = choose_best(others, self.data, ms, self.options.quality_first)  # if there are test questions
        level = LEVEL / self._count_looks(questions.test or self.data, tested.name if questions.test else "")
        on_test = partial(measure_test, questions.test) if questions.test else None
        verdict = judge(self.rankers, base, self.data, ms, level, self.options.quality_first, on_test)
        _release(verdict, finish(verdict.chosen, questions, runs), self)
        return verdict

    def _count_looks(self, judging: AnswerSet, tested: str) -> int:
        """Returns how often any of these questions have judged, this time included: other rankers, or another one that
        was ``tested``, the only ranker that test questions judge."""
        path = self.options.output / STARTED
        record = read_object(path, "delete it")
        scores = np.concatenate([ranker.scores[: self.data.num_pairs] for ranker in self.rankers]).round(4).tolist()
        look = fingerprint_identity({"of": fingerprint_answers(judging), "by": scores, "tested": tested})
        looks = record.setdefault(LOOKS, {})
        looks[look] = list(judging.questions)
        write_atomically(path, json.dumps(record) + "\n")
        return sum(not set(judging.questions).isdisjoint(questions) for questions in looks.values())


def _list_results(comparison: Comparison, verdict: Verdict) -> JsonObject:
    """Returns what the verdict says and, for each ranker, its MAP, gain over the base model, and cost."""
    data, base = comparison.data, verdict.base.measure(comparison.data)
    questions, rows = comparison.questions, list[JsonObject]()
    for ranker in comparison.rankers:
        values, cost = ranker.measure(data), comparison.meter.measure(ranker)
        low, high = (None, None) if ranker is verdict.base else compute_interval(values - base)
        figures = {"map": float(values.mean()), "gain": float((values - base).mean()), "low": low, "high": high}
        training = {"updates": ranker.updates, "folds": ranker.training.num_folds} if ranker.training else {}
        costs = {"p": verdict.p.get(ranker.name), **cost._asdict(), "search": ranker.measure_search(questions)}
        rows.append({"name": ranker.name, **figures, **costs, **training, "weights": dict(ranker.weights)})
    sentence = verdict.sentence
    if questions.searched.any():
        mrr = {row["name"]: row["search"][MRR_10] for row in rows}
        chosen, count = verdict.chosen.name, int(questions.searched.sum())
        best = max(mrr, key=lambda name: (mrr[name], name == chosen))
        sentence += SEARCHED.format(questions=count, name=chosen, mrr=mrr[chosen], best=best, high=mrr[best])
    return {
        "rankers": sorted(rows, key=lambda row: -row["map"]),
        "verdict": sentence,
        "chosen": verdict.chosen.name,
        "base": verdict.base.name,
        "figures": verdict.figures,
    }


def _list_commands(options: AdaptOptions, questions: Questions | None, result: JsonObject) -> list[str]:
    """Returns commands to paste. If no ranker is chosen, they use the base model if it ranks, and else the default."""
    model = result["release"] if result["chosen"] else None
    kind = find_kind(model or options.model)
    if model is None and (kind == BI_ENCODER or name_base(options.model) in [row["name"] for row in result["rankers"]]):
        model = options.model
    is_default = model is None or name_installed(model) == DEFAULT_MODEL_NAME
    embedding = ["--model", model] if model and not is_default and can_embed(model) else []
    ranking: list[object] = ["--cross_encoder", model] if not is_default and kind != BI_ENCODER else []
    mrr = {row["name"]: row["search"].get(MRR_10, 0) for row in result["rankers"]}
    is_base = result["chosen"] == result.get("base")
    if ranking or (is_base and mrr.get(name_fused(options.model), 0) > mrr.get(result["chosen"], 0)):
        ranking += ["--first_stage", "fusion"]  # as a re-ranker's candidates were found, or better than the base model
    index, stems = options.output / "index", ["--language", options.language] if options.language else []
    is_sample = options.questions == SAMPLE  # no questions about the documents
    question = "your question" if is_sample or not questions else questions.judging.questions[0]
    commands: list[list[object]] = [
        ["index", "--documents", *map(redact, options.documents), *embedding, *stems, "--output_dir", index],
        ["search", "--index", index, *ranking, question],
    ]
    if questions and questions.test and model:
        by_search = [] if is_sample else ["--documents", *map(redact, options.documents)]  # of all their paragraphs
        test = ["--model", name_installed(model), "--data", f"files={options.output / TEST_FILE}"]
        commands.append(["evaluate", *by_search, *test, *stems])
    return [shlex.join(["kinspan", *map(str, command)]) for command in commands]


def _release(verdict: Verdict, ranker: Ranker, comparison: Comparison) -> None:
    """Writes the release of the chosen ranker. If that is the base model, an older release is only removed."""
    output, figures = comparison.options.output / RELEASE, verdict.figures
    if verdict.chosen is verdict.base and ranker.role != BM25:
        if (output / FACTS).is_file():
            shutil.rmtree(output)
        return
    split = TEST if comparison.questions.test else "out of fold"
    by_name = {verdict.best.name: figures["chosen"], verdict.base.name: figures["base"], BM25: figures["bm25"]}
    measured = {split: {MAP: by_name.pop(ranker.name)}}
    measured |= {f"{split}, {name}": {MAP: value} for name, value in by_name.items()}
    name, _, place = make_spec(str(comparison.options.questions)).partition("=")
    about = {"data": name if name != FILES else Path(place).resolve().name, "figures": measured}
    models = {part.role: part.model for part in ranker.parts or (ranker,)}
    if find_kind(comparison.options.model) == BI_ENCODER:
        models.setdefault(BI_ENCODER, comparison.options.model)  # finds what the others rank
    weights = ranker.weights or {ranker.role: 1.0}
    if list(weights) == [BI_ENCODER] or list(models) == [CROSS_ENCODER]:
        if trained := find_ranker(Path(ranker.model)):
            release_ranker(trained, output, measured=about)
        else:
            _copy_release(ranker.model, output)
        return
    write_fusion(
        output,
        bi_encoder=models.get(BI_ENCODER),
        cross_encoder=models.get(CROSS_ENCODER),
        weights=weights,
        by_rank=ranker.by_rank,
        words=comparison.cache.words,
        about=about,
    )


def _copy_release(folder: str, output: Path) -> None:
    with replace_release(output) as partial:
        copy_model(folder, partial)
