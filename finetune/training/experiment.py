"""An experiment: a model fine-tuned with several seeds, or TANDA's two steps, and what it does on the test set."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.errors import KinspanError
from data_pipeline.files import read_object, write_atomically
from data_pipeline.tokenizers import display_name
from finetune.data.answers import AnswerSet
from finetune.evaluation.metrics import METRICS, TITLES, Figures, means, question_metrics
from finetune.evaluation.trec import write_predictions
from finetune.ranking.score import score_answers
from pretrain.modeling.default_model import DEFAULT_MODEL_NAME, default_model
from pretrain.runtime.ranks import barrier
from pretrain.runtime.stop import listen_for_stop

from .config import FinetuneConfig, check
from .engine import Ranks, join_ranks
from .plan import Stage, plan_stage
from .stages import Data, fingerprint, load_data, target_stage, transfer_stage
from .train import BEST, train_ranker

RESULTS = "results.json"


def run_experiment(
    config: FinetuneConfig, say: Callable[[str], None] = print, transfers: Path | None = None
) -> dict[str, Any]:
    """Fine-tunes with every seed, measures the best ranker of each on the test set, and writes ``results.json``.

    transfers: where TANDA's transferred rankers lie, for experiments that share them; default: in the output folder

    Run by every rank; all get the results. Raises KinspanError for what the user can mend, and Stopped (a SystemExit of
    status 75) where a signal or ``max_hours`` ended a run with a checkpoint.
    """
    check(config)
    with listen_for_stop(config.max_hours):
        return _run_all_seeds(config, say, transfers)


def _run_all_seeds(config: FinetuneConfig, say: Callable[[str], None], transfers: Path | None) -> dict[str, Any]:
    ranks = join_ranks(config)
    say = say if ranks.rank == 0 else _silent
    data = load_data(config)
    for line in data.notes:
        say(line)
    output = Path(config.output_dir)
    config = replace(config, model=config.model or default_model())
    if config.search_folds:
        from .search import searched

        config = searched(config, data, output / "search", ranks, say)
    transfer = transfer_stage(config, data) if data.transfer is not None else None
    for stage in (transfer, target_stage(config, data, 1, str(config.model), "target's fine-tuning")):
        if stage:  # what cannot be trained on is refused before hours of transfer
            plan_stage(config, stage, 1)
    shared = transfers or output
    runs = [_one_seed(config, data, transfer, seed, output, shared, ranks, say) for seed in range(1, config.seeds + 1)]
    results = {
        "model": _model_name(config),
        "data": data.train.name,
        "transfer": data.transfer.name if data.transfer else None,
        "settings": {k: v for k, v in asdict(config).items() if k not in ("output_dir", "local_rank")},
        "counts": {d.split: [d.num_questions, d.num_pairs] for d in (data.train, data.dev, data.test)},
        "seeds": runs,
        **{split: spread([run[split] for run in runs]) for split in ("dev", "test")},
    }
    if ranks.rank == 0:
        write_atomically(output / RESULTS, json.dumps(results, indent=1) + "\n")
        _write_page(config, data, results, output)
    say(as_text(results))
    say(f"page: {output / 'report.html'}")
    return results


def _write_page(config: FinetuneConfig, data: Data, results: dict[str, Any], output: Path) -> None:
    from finetune.reports.study_report import Entry, write_page

    figures = load_figures(output, data.test, config.seeds)
    splits = [(data.train, config.train_filter), (data.dev, config.eval_filter), (data.test, config.eval_filter)]
    if data.transfer is not None:
        splits.insert(0, (data.transfer, config.train_filter))
    title = f"{results['model']} on {results['data']}"
    write_page(output / "report.html", title, data.notes, splits, [Entry(results["model"], config, figures, None, {})])


def _silent(_: str) -> None:
    pass


def _model_name(config: FinetuneConfig) -> str:
    return DEFAULT_MODEL_NAME if config.model == default_model() else display_name(str(config.model))


def _one_seed(
    config: FinetuneConfig,
    data: Data,
    transfer: Stage | None,
    seed: int,
    output: Path,
    transfers: Path,
    ranks: Ranks,
    say: Callable[[str], None],
) -> dict[str, Any]:
    folder = output / f"seed-{seed}"
    say(f"seed {seed}: {folder}")
    start, what = str(config.model), "fine-tuning"
    if transfer is not None:
        there = transfers / f"transfer-{_digest(transfer.identity)}" / f"seed-{seed}"
        train_ranker(config, transfer, seed, there, ranks)
        start, what = str(there / BEST), "adaptation"
    stage = target_stage(config, data, seed, start, what)
    summary = train_ranker(config, stage, seed, folder, ranks)
    scored = _scored(config, data, folder, f"{_model_name(config)}-seed-{seed}", ranks)
    return {"seed": seed, "run": summary, "dev": scored["dev"], "test": scored["test"]}


def _scored(config: FinetuneConfig, data: Data, folder: Path, tag: str, ranks: Ranks) -> dict[str, Any]:
    """The figures of the folder's best ranker, measured where they are not yet, or were of other data.

    Every rank scores: their shares make up the whole.
    """
    path, of = folder / "scores.json", [fingerprint(split) for split in (data.dev, data.test)]
    figures: dict[str, Any] = {}
    with suppress(KinspanError):  # absent or damaged: measured anew
        figures = read_object(path, "")
    if figures.get("of") == of:
        return figures
    figures = {"of": of}
    for split in (data.dev, data.test):
        scores = score_answers(str(folder / BEST), split, config.max_length)
        figures[split.split] = means(question_metrics(split, scores))
        if ranks.rank == 0:
            write_predictions(folder / split.split, split, scores, tag)
    if ranks.rank == 0:
        write_atomically(path, json.dumps(figures, indent=1) + "\n")
    barrier()
    return figures


def _digest(same: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:12]


def spread(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Of each metric mean and standard deviation over the runs (of a sample; 0 of a single one)."""
    out = {}
    for metric in METRICS:
        values = np.array([run[metric] for run in runs])
        out[metric] = {"mean": float(values.mean()), "sd": float(values.std(ddof=1)) if len(values) > 1 else 0.0}
    return out


def as_text(results: dict[str, Any]) -> str:
    """The table that ends an experiment."""
    head = f"{results['model']} on {results['data']}"
    if results["transfer"]:
        head += f", transferred from {results['transfer']}"
    lines = [f"{head}, {len(results['seeds'])} seed(s)", " " * 14 + "".join(f"{TITLES[m]:>18}" for m in METRICS)]
    for split in ("dev", "test"):
        for run in results["seeds"]:
            lines.append(
                f"{split} seed {run['seed']:<3}".ljust(14) + "".join(f"{run[split][m]:18.4f}" for m in METRICS)
            )
        cells = [f"{results[split][m]['mean']:.4f} ({results[split][m]['sd']:.4f})" for m in METRICS]
        lines.append(f"{split} mean".ljust(14) + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def load_figures(output: Path, data: AnswerSet, seeds: int) -> list[Figures]:
    """Of each seed the metrics by question, from its run file."""
    from finetune.evaluation.metrics import run_metrics
    from finetune.evaluation.trec import read_qrels, read_run

    folders = [output / f"seed-{seed}" / data.split for seed in range(1, seeds + 1)]
    return [run_metrics(read_qrels(f / "qrels.txt"), read_run(f / "run.txt")) for f in folders]
