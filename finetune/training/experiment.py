"""An experiment fine-tunes a model with several seeds, in one step or in TANDA's two, and measures it on the test set.

A seed's run is a list of stages, each of which starts where the one before it ended.
"""

import json
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.core.default_model import default_model
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import hash_file, read_object, write_atomically
from finetune.evaluation.comparison import format_mean
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
from finetune.ranking.ranker import find_trained_length
from pretrain.engine.log import complete_lines
from pretrain.engine.ranks import barrier, broadcast_from_rank_0
from pretrain.engine.run_folder import SUMMARY
from pretrain.engine.stop import listen_for_stop
from pretrain.release.curve import draw_curve

from .baselines import log_better_baselines, measure_baselines
from .card import AS_STARTED, AS_TRANSFERRED, add_baselines, describe_surroundings, name_model, write_card
from .config import FinetuneConfig, check, choose_metrics, get_max_length, list_metrics, list_seeds
from .engine import Ranks, join_ranks
from .fingerprints import fingerprint_answers, fingerprint_identity, fingerprint_ids
from .plan import BEST, DEV, TrainingStage, name_best, plan_stage
from .search import search_settings
from .stages import Data, load_data, log_high_rates, make_target_stage, make_transfer_stage, name_set
from .train import train_ranker

log = logging.getLogger(__name__)

TRANSFER_SEED = 1  # one transfer serves all seeds of the target
RESULTS, CURVES = "results.json", "curves.png"


@dataclass(frozen=True)
class Experiment:
    """The data and settings that all seeds share.

    transfer:  TANDA's first stage, or None
    output:    the folder of the experiment
    """

    config: FinetuneConfig
    data: Data
    transfer: TrainingStage | None
    output: Path
    ranks: Ranks


def run_experiment(config: FinetuneConfig, baselines: bool = True) -> dict[str, Any]:
    """Fine-tunes with every seed, measures the best ranker of each, and writes ``results.json`` and ``curves.png``.

    baselines: measure BM25 and the start too; a study has rows of its own for them

    Every rank runs this function, and all return the results. The same call again resumes. Raises KinspanError for
    what the user can mend, and Stopped (a SystemExit of status 75) where a signal or ``max_hours`` ended a run with a
    checkpoint.
    """
    check(config)
    with listen_for_stop(config.max_hours):
        return _run_all_seeds(config, baselines)


def _run_all_seeds(config: FinetuneConfig, baselines: bool) -> dict[str, Any]:
    ranks = join_ranks(config)
    _check_output(Path(config.output_dir))
    data = load_data(config)
    output = Path(config.output_dir)
    model = config.model or default_model()
    trained = find_trained_length(model)
    config = replace(config, model=model, max_length=config.max_length or trained or get_max_length(config))
    if trained and config.max_length != trained:
        log.warning("--max_length %s: %s was trained on %s tokens", config.max_length, model, trained)
    log_high_rates(config)
    if config.search_folds:
        config = search_settings(config, data, output / "search", ranks)
    transfer = make_transfer_stage(config, data) if data.transfer is not None else None
    for stage in (transfer, make_target_stage(config, data, 1, str(config.model), "target's fine-tuning")):
        if stage:  # settings that cannot be trained with are refused here, before hours of transfer
            plan_stage(config, stage, 1)
    experiment = Experiment(config, data, transfer, output, ranks)
    results = _gather_results(experiment, [_run_seed(experiment, seed) for seed in list_seeds(config)])
    measured = data.measured[-1]
    if baselines:
        results["baselines"] = {measured.split: measure_baselines(config, measured, output)}
    if ranks.rank == 0:
        for seed in list_seeds(config) if baselines else ():
            add_baselines(output / f"seed-{seed}" / BEST, results["baselines"])
        write_atomically(output / RESULTS, json.dumps(results, indent=1) + "\n")
        _draw_curves(config, output)
    log_better_baselines(results)
    return results


def _check_output(output: Path) -> None:
    """Raises KinspanError where the folder holds something, and nothing of an experiment."""
    if not output.is_dir() or not any(output.iterdir()):
        return
    if not any(any(output.glob(name)) for name in (RESULTS, "search", "seed-*", "transfer-*")):
        raise KinspanError(f"--output_dir {output} is not empty and holds no fine-tuning: choose another folder")


def _name_splits(data: Data) -> list[str]:
    return [split.split for split in data.measured]


def _run_seed(experiment: Experiment, seed: int) -> dict[str, Any]:
    """Trains with one seed, and measures the best ranker on dev and test."""
    config, data, transfer = experiment.config, experiment.data, experiment.transfer
    folder = experiment.output / f"seed-{seed}"
    log.info("seed %s: %s", seed, folder)
    start, what = str(config.model), "fine-tuning"
    if transfer is not None:
        shared = Path(config.transfer_dir or experiment.output)
        transferred = shared / f"transfer-{fingerprint_identity(transfer.identity)}"
        train_ranker(config, transfer, TRANSFER_SEED, transferred, experiment.ranks)
        start, what = str(transferred / name_best(f"{DEV}-{name_set(config.data)}")), "adaptation"
    stage = make_target_stage(config, data, seed, start, what)
    summary = train_ranker(config, stage, seed, folder, experiment.ranks)
    measured = _measure(experiment, folder, f"{name_model(config)}-seed-{seed}")
    if experiment.ranks.rank == 0 and (folder / BEST).is_dir():  # who is done may have deleted the weights
        figures = {split: measured[split] for split in _name_splits(data)}
        write_card(folder / BEST, config, stage, seed, summary["best_step"], figures)
    return {"seed": seed, "run": summary, **{split: measured[split] for split in _name_splits(data)}}


def _measure(experiment: Experiment, folder: Path, tag: str) -> dict[str, Any]:
    """Returns the metrics of the folder's best ranker; measures them where that was not yet done, or of other data.

    tag: the system's name in the TREC run

    Every rank runs this function, since each scores a share of the pairs.
    """
    data, path, run = experiment.data, folder / "scores.json", folder / SUMMARY
    measured_on = [name(split) for split in data.measured for name in (fingerprint_answers, fingerprint_ids)]
    metrics = list_metrics(experiment.config)

    def read() -> dict[str, Any]:
        with suppress(KinspanError, KeyError):  # a file that is absent or damaged is written anew
            known = read_object(path, "")
            is_whole = all((folder / split.split / "qrels.txt").is_file() for split in data.measured)
            # Else of a run that this folder held before, or its predictions were deleted
            return known if is_whole and known["run"] == hash_file(run) else {}
        return {}

    figures = broadcast_from_rank_0(read)  # a rank that read another file would score alone, and wait for ever
    if figures.get("of") == measured_on:
        return figures
    figures = {"of": measured_on}
    for split in data.measured:
        scores = score_answers(str(folder / BEST), split, experiment.config.max_length)
        figures[split.split] = compute_means(compute_question_metrics(split, scores, metrics))
        if experiment.ranks.rank == 0:
            write_predictions(folder / split.split, split, scores, tag)
    if experiment.ranks.rank == 0:
        write_atomically(path, json.dumps({"run": hash_file(run), **figures}, indent=1) + "\n")
    barrier()
    return figures


def _gather_results(experiment: Experiment, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns what ``results.json`` holds; ``runs`` has what ``_run_seed`` returned for each seed."""
    config, data = experiment.config, experiment.data
    return {
        "model": name_model(config),
        "data": data.train.name,
        "transfer": data.transfer.name if data.transfer else None,
        **describe_surroundings(config, data, experiment.ranks.world),
        "settings": {k: v for k, v in asdict(config).items() if k not in ("output_dir", "local_rank")},
        "counts": {d.split: [d.num_questions, d.num_pairs] for d in (data.train, *data.measured)},
        "seeds": runs,
        **{split: summarize_seeds([run[split] for run in runs]) for split in _name_splits(data)},
    }


def _draw_curves(config: FinetuneConfig, output: Path) -> None:
    """Draws the training loss and the MAP of each seed over the updates."""
    lines = [
        {**line, "split": f"{line['split']}, seed {seed}"}
        for seed in list_seeds(config)
        for line in map(json.loads, complete_lines(output / f"seed-{seed}" / "metrics.jsonl"))
    ]
    draw_curve(lines, {"loss": "training loss", MAP: "MAP"}, output / CURVES)


def summarize_seeds(runs: list[dict[str, float]]) -> dict[str, dict[str, float | None]]:
    """Returns the mean and the sample's standard deviation of each metric over the runs.

    A single run has no deviation, and neither have runs that are equal in all metrics, see ``drop_equal_seeds``.
    """
    if all(run[metric] == runs[0][metric] for run in runs for metric in runs[0]):
        runs = runs[:1]
    out = {}
    for metric in runs[0]:
        values = np.array([run[metric] for run in runs])
        out[metric] = {"mean": float(values.mean()), "sd": float(values.std(ddof=1)) if len(values) > 1 else None}
    return out


def format_results(results: dict[str, Any]) -> str:
    """Returns the table that ends an experiment."""
    metrics = choose_metrics(results["settings"]["loss"])
    head = f"{results['model']} on {results['data']}"
    if results["transfer"]:
        head += f", transferred from {results['transfer']}"
    lines = [f"{head}, {len(results['seeds'])} seed(s)", " " * 14 + "".join(f"{TITLES[m]:>18}" for m in metrics)]
    for split in (name for name in ("dev", "test") if name in results):
        for run in results["seeds"]:
            lines.append(
                f"{split} seed {run['seed']:<3}".ljust(14) + "".join(f"{run[split][m]:18.4f}" for m in metrics)
            )
        cells = [format_mean(results[split][m]) for m in metrics]
        lines.append(f"{split} mean".ljust(14) + "".join(f"{cell:>18}" for cell in cells))
        for name, means in results.get("baselines", {}).get(split, {}).items():
            lines.append(f"{split} {name}".ljust(14) + "".join(f"{means[m]:18.4f}" for m in metrics))
    kept = AS_TRANSFERRED if results["transfer"] else AS_STARTED
    lines += [f"seed {run['seed']}: {kept}" for run in results["seeds"] if run["run"]["best_step"] == 0]
    return "\n".join(lines)


def read_figures(config: FinetuneConfig, split: str) -> list[Figures]:
    """Returns the metrics of every question for each seed, computed from the run files of the experiment's folder."""
    folders = [Path(config.output_dir) / f"seed-{seed}" / split for seed in list_seeds(config)]
    metrics = list_metrics(config)
    return [compute_run_metrics(read_qrels(f / "qrels.txt"), read_run(f / "run.txt"), metrics) for f in folders]
