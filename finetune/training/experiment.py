"""An experiment fine-tunes a model with several seeds, in one step or in TANDA's two, and measures it on the test set.

A seed's run starts from the base model or, with TANDA, from the transferred model.
"""

import json
import logging
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from data_pipeline.core.default_model import default_model, list_versions
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import JsonObject, hash_file, read_object, write_atomically
from data_pipeline.tokenizers import shorten_name
from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import BM25, score_bm25
from finetune.evaluation.comparison import START, format_mean
from finetune.evaluation.metrics import (
    MAP,
    TITLES,
    Figures,
    compute_means,
    compute_question_metrics,
    compute_run_metrics,
)
from finetune.evaluation.trec import read_qrels, read_run, write_predictions
from finetune.ranking.model import score_answers
from finetune.ranking.ranker import find_max_length
from pretrain.engine.log import read_metrics
from pretrain.engine.ranks import broadcast_from_rank_0
from pretrain.engine.run_folder import SUMMARY
from pretrain.engine.stop import listen_for_stop
from pretrain.modeling.pair_model import holds_no_weights
from pretrain.release.curve import draw_curve
from pretrain.release.folder import fingerprint_model

from .card import AS_STARTED, AS_TRANSFERRED, write_card
from .config import FinetuneConfig, check, choose_metrics, list_metrics, list_seeds
from .search import search_settings
from .setup import Ranks, join_ranks
from .stages import (
    BEST,
    DEV,
    Data,
    TrainingStage,
    fingerprint_answers,
    fingerprint_identity,
    fingerprint_ids,
    load_data,
    make_target_stage,
    make_transfer_stage,
    name_best,
    name_set,
    plan_stage,
)
from .train import train_ranker

log = logging.getLogger(__name__)

TRANSFER_SEED = 1  # one transfer serves all seeds of the target
RESULTS, CURVES, BASELINES = "results.json", "curves.png", "baselines.json"
FINETUNING_PANELS = {"loss": "training loss", MAP: "MAP"}  # of the curves


@dataclass(frozen=True)
class Experiment:
    """The data and settings that all seeds share.

    transfer:  TANDA's first stage, or None
    baselines: figures of each baseline on the last measured split
    """

    config: FinetuneConfig
    data: Data
    transfer: TrainingStage | None
    baselines: dict[str, dict[str, float]]
    output: Path
    ranks: Ranks


def run_experiment(config: FinetuneConfig, baselines: bool = True) -> JsonObject:
    """Fine-tunes with every seed, measures the best ranker of each, and writes ``results.json`` and ``curves.png``.

    Run by every rank. The same call resumes. Raises Stopped (SystemExit, status 75) after a signal or ``max_hours``.
    """
    check(config)
    with listen_for_stop(config.max_hours):
        return _run_all_seeds(config, baselines)


def _run_all_seeds(config: FinetuneConfig, baselines: bool) -> JsonObject:
    ranks, output = join_ranks(config), Path(config.output_dir)
    is_ours = any(any(output.glob(name)) for name in (RESULTS, f"{BASELINES}*", "search", "seed-*", "transfer-*"))
    if output.is_dir() and any(output.iterdir()) and not is_ours:
        raise KinspanError(f"--output_dir {output} is not empty and holds no fine-tuning: choose another folder")
    data = load_data(config)
    model = config.model or default_model()
    config = replace(config, model=model, max_length=config.max_length or find_max_length(model))
    if config.search_folds:
        config = search_settings(config, data, output / "search", ranks)
    transfer = make_transfer_stage(config, data) if data.transfer is not None else None
    for stage in (transfer, make_target_stage(config, data, 1, model, "target's fine-tuning")):
        if stage:  # refuses settings that cannot be trained with before hours of transfer
            plan_stage(stage, 1)
    measured = data.measured[-1]
    baseline_figures = measure_baselines(config, measured, output) if baselines else {}
    experiment = Experiment(config, data, transfer, baseline_figures, output, ranks)
    results = _gather_results(experiment, [_run_seed(experiment, seed) for seed in list_seeds(config)])
    if len(precisions := {seed["run"]["precision"] for seed in results["seeds"]}) > 1:
        log.warning("the seeds were trained in %s", " and ".join(sorted(precisions)))
    if baselines:
        results["baselines"] = {measured.split: baseline_figures}
    if ranks.rank == 0:
        write_atomically(output / RESULTS, json.dumps(results, indent=1) + "\n")
        logged = ((seed, line) for seed in list_seeds(config) for line in read_metrics(output / f"seed-{seed}"))
        lines = ({**line, "split": f"{line['split']}, seed {seed}"} for seed, line in logged)
        draw_curve(lines, FINETUNING_PANELS, output / CURVES)
    log_better_baselines(results)
    return results


def _run_seed(experiment: Experiment, seed: int) -> JsonObject:
    """Trains with one seed, and measures the best ranker on dev and test."""
    config, data, transfer = experiment.config, experiment.data, experiment.transfer
    folder = experiment.output / f"seed-{seed}"
    log.info("seed %s: %s", seed, folder)
    start, what = str(config.model), "fine-tuning"
    if transfer is not None:
        shared = Path(config.transfer_dir or experiment.output)
        transferred = shared / f"transfer-{fingerprint_identity(transfer.identity)}"
        train_ranker(transfer, TRANSFER_SEED, transferred, experiment.ranks)
        start, what = str(transferred / name_best(f"{DEV}-{name_set(config.data)}")), "adaptation"
    stage = make_target_stage(config, data, seed, start, what)
    summary = train_ranker(stage, seed, folder, experiment.ranks)
    measured = _measure(experiment, folder, f"{shorten_name(str(config.model))}-seed-{seed}")
    figures, split = {split.split: measured[split.split] for split in data.measured}, data.measured[-1].split
    if experiment.ranks.rank == 0 and (folder / BEST).is_dir():  # the weights may have been deleted since
        baseline_figures = {f"{split}, {name}": row for name, row in experiment.baselines.items()}
        write_card(folder / BEST, stage, seed, summary["best_step"], figures | baseline_figures)
    return {"seed": seed, "run": summary, **figures}


def _measure(experiment: Experiment, folder: Path, tag: str) -> JsonObject:
    """Returns the metrics of the folder's best ranker by split, and writes its predictions.

    tag: the system's name in the TREC run
    """
    data, config = experiment.data, experiment.config

    def measure() -> JsonObject:
        figures = {}
        for split in data.measured:
            scores = score_answers(str(folder / BEST), split, config.max_length)
            figures[split.split] = compute_means(compute_question_metrics(split, scores, list_metrics(config)))
            if experiment.ranks.rank == 0:
                write_predictions(folder / split.split, split, scores, tag)
        return figures

    fingerprints = [name(split) for split in data.measured for name in (fingerprint_answers, fingerprint_ids)]
    if not all((folder / split.split / "qrels.txt").is_file() for split in data.measured):
        (folder / "scores.json").unlink(missing_ok=True)
    return _measure_once(folder / "scores.json", [*fingerprints, hash_file(folder / SUMMARY)], measure)


def _measure_once(path: Path, key: Sequence[object], measure: Callable[[], JsonObject]) -> JsonObject:
    """Returns the results in ``path``; measures them on all ranks if it has none, or those of another key.

    key: everything that the results depend on
    """

    def read() -> JsonObject:
        with suppress(KinspanError):  # a missing or damaged file is written anew
            cached = read_object(path, "")
            return cached if cached.get("of") == key else {}
        return {}

    results = broadcast_from_rank_0(read)  # a rank that read another file would score alone, and wait for ever
    if not results:
        results = {"of": key, **measure()}
        path.parent.mkdir(parents=True, exist_ok=True)
        broadcast_from_rank_0(lambda: write_atomically(path, json.dumps(results, indent=1) + "\n"))
    return results


def measure_baselines(config: FinetuneConfig, data: AnswerSet, folder: Path) -> dict[str, dict[str, float]]:
    """Returns the mean metrics of each baseline on a split; they are measured once, and kept in ``folder``.

    The untrained base model ranks at its own length, by its head or by the similarity of its embeddings; with neither
    it has no row. Run by every rank.
    """
    model, metrics = str(config.model), list_metrics(config)

    def measure() -> JsonObject:
        scores = {BM25: score_bm25(data)}
        try:
            if not holds_no_weights(model):
                scores[START] = score_answers(model, data)
        except KinspanError as error:
            log.warning("%s has no row: %s", START, error)
        return {name: compute_means(compute_question_metrics(data, values, metrics)) for name, values in scores.items()}

    log.info("for comparison, %s and %s on %s", BM25, START, data.split)
    key = [fingerprint_model(model), fingerprint_answers(data), fingerprint_ids(data), *metrics]
    results = _measure_once(folder / BASELINES, key, measure)
    return {name: figures for name, figures in results.items() if name != "of"}


def log_better_baselines(results: JsonObject) -> None:
    """Warns of each baseline that beats the mean of the seeds; ``results``: the content of results.json, or empty."""
    for split, baselines in results.get("baselines", {}).items():
        metric = choose_metrics(results["settings"]["loss"])[0]
        mean = results[split][metric]["mean"]
        for name, figures in baselines.items():
            if mean < figures[metric]:
                log.warning("%s %.4f on %s is below %.4f of %s", metric, mean, split, figures[metric], name)


def _gather_results(experiment: Experiment, runs: list[JsonObject]) -> JsonObject:
    """Returns the content of ``results.json``; ``runs``: what ``_run_seed`` returned for each seed."""
    config, data = experiment.config, experiment.data
    splits = {split.split: split for split in (data.train, *data.measured)}
    transfer = {"transfer": data.transfer} if data.transfer is not None else {}
    return {
        "model": shorten_name(str(config.model)),
        "data": data.dev.name,
        "transfer": data.transfer.name if data.transfer else None,
        "versions": list_versions(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"processor, {platform.machine()}",
        "ranks": experiment.ranks.world,
        "fingerprints": {
            "model": fingerprint_model(str(config.model)),
            **{name: fingerprint_answers(split) for name, split in (splits | transfer).items()},
        },
        "settings": {k: v for k, v in asdict(config).items() if k not in ("output_dir", "local_rank")},
        "counts": {name: [split.num_questions, split.num_pairs] for name, split in splits.items()},
        "seeds": runs,
        **{split.split: summarize_seeds([run[split.split] for run in runs]) for split in data.measured},
    }


def summarize_seeds(runs: list[dict[str, float]]) -> dict[str, dict[str, float | None]]:
    """Returns each metric's mean and sample deviation over the runs; of one run, or of copies of one, no deviation."""
    if all(run == runs[0] for run in runs):
        runs = runs[:1]
    out = {}
    for metric in runs[0]:
        values = np.array([run[metric] for run in runs])
        out[metric] = {"mean": float(values.mean()), "sd": float(values.std(ddof=1)) if len(values) > 1 else None}
    return out


def format_results(results: JsonObject) -> str:
    """Returns the table that ends an experiment."""
    metrics = choose_metrics(results["settings"]["loss"])
    head = f"{results['model']} on {results['data']}"
    if results["transfer"]:
        head += f", transferred from {results['transfer']}"

    def line(title: str, cells: Sequence[str]) -> str:
        return title.ljust(14) + "".join(f"{cell:>18}" for cell in cells)

    lines = [f"{head}, {len(results['seeds'])} seed(s)", line("", [TITLES[m] for m in metrics])]
    for split in (name for name in ("dev", "test") if name in results):
        rows = {f"seed {run['seed']:<3}": run[split] for run in results["seeds"]}
        lines += [line(f"{split} {name}", [f"{row[m]:.4f}" for m in metrics]) for name, row in rows.items()]
        lines.append(line(f"{split} mean", [format_mean(results[split][m]) for m in metrics]))
        baselines = results.get("baselines", {}).get(split, {})
        lines += [line(f"{split} {name}", [f"{row[m]:.4f}" for m in metrics]) for name, row in baselines.items()]
    kept = AS_TRANSFERRED if results["transfer"] else AS_STARTED
    lines += [f"seed {run['seed']}: {kept}" for run in results["seeds"] if run["run"]["best_step"] == 0]
    return "\n".join(lines)


def read_figures(config: FinetuneConfig, split: str) -> list[Figures]:
    """Returns the metrics of every question for each seed, computed from the run files of the experiment's folder."""
    folders = [Path(config.output_dir) / f"seed-{seed}" / split for seed in list_seeds(config)]
    metrics = list_metrics(config)
    return [compute_run_metrics(read_qrels(f / "qrels.txt"), read_run(f / "run.txt"), metrics) for f in folders]
