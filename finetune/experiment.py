"""An experiment: a model fine-tuned with several seeds, or TANDA's two steps, and what it does on the test set."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.errors import KinspanError
from data_pipeline.tokenizers import display_name
from pretrain.checkpoint import barrier, write_atomically
from pretrain.defaults import DEFAULT_MODEL_NAME, default_model

from .answers import AnswerSet, filtered
from .config import FinetuneConfig, check, identity
from .engine import join_ranks
from .groups import with_noise
from .metrics import METRICS, TITLES, Figures, means, question_metrics
from .readers import load_split
from .score import score_answers
from .statistics import count_lines
from .train import BEST, Ranks, Stage, train_ranker
from .trec import write_predictions

RESULTS = "results.json"


@dataclass(frozen=True)
class Data:
    """The filtered splits of the target, and the training split of the transfer set."""

    train: AnswerSet
    dev: AnswerSet
    test: AnswerSet
    transfer: AnswerSet | None
    notes: list[str]


def parse_columns(text: str | None) -> dict[str, str] | None:
    """``question=query,label=relevant`` as a dictionary."""
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and equals and column for name, equals, column in pairs):
        raise KinspanError(f"--columns {text}: write question=query,answer=passage,label=relevant")
    return {name: column for name, _, column in pairs}


def load_data(config: FinetuneConfig) -> Data:
    """Reads and filters what the settings name. Raises KinspanError."""
    columns, negatives = parse_columns(config.columns), tuple(config.negative_labels)
    notes: list[str] = []

    def read(spec: str, split: str, mode: str) -> AnswerSet:
        data, said = load_split(spec, split, columns, negatives)
        data = filtered(data, mode)
        notes.extend([*said, *count_lines(data.name, split, mode, data)])
        return data

    train = read(config.data, "train", config.train_filter)
    dev, test = (read(config.data, split, config.eval_filter) for split in ("dev", "test"))
    transfer = read(config.transfer, "train", config.train_filter) if config.transfer else None
    for data in (train, transfer):
        if data is not None and not 0 < data.labels.sum() < data.num_pairs:
            raise KinspanError(f"{data.name} train: all candidates have one label: there is nothing to learn")
    return Data(train, dev, test, transfer, notes)


def fingerprint(data: AnswerSet) -> str:
    """Names a split by its content."""
    digest = hashlib.sha256("\0".join(data.questions).encode())
    for array in (data.starts, data.labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    for chunk in range(0, data.num_pairs, 100_000):
        digest.update("\0".join(data.answers.slice(chunk, 100_000).to_pylist()).encode())
    return digest.hexdigest()[:16]


def model_fingerprint(name_or_dir: str) -> str:
    """Names a starting point: a folder by its weights and config, a hub name by itself."""
    folder = Path(name_or_dir)
    if not folder.is_dir():
        return name_or_dir
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), folder / "config.json"]):
        if path.is_file():
            digest.update(path.name.encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def run_experiment(
    config: FinetuneConfig, say: Callable[[str], None] = print, transfers: Path | None = None
) -> dict[str, Any]:
    """Fine-tunes with every seed, measures the best ranker of each on the test set, and writes ``results.json``.

    transfers: where TANDA's transferred rankers lie, for experiments that share them; default: in the output folder

    Run by every rank; all get the results. Raises KinspanError for what the user can mend.
    """
    check(config)
    ranks = Ranks(*join_ranks(config))
    say = say if ranks.rank == 0 else _silent
    data = load_data(config)
    for line in data.notes:
        say(line)
    output = Path(config.output_dir)
    config = replace(config, model=config.model or default_model())
    if config.search_folds:
        from .search import searched

        config = searched(config, data, output / "search", ranks, say)
    runs = [_one_seed(config, data, seed, output, ranks, transfers, say) for seed in range(1, config.seeds + 1)]
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
    from .study_report import Entry, write_page

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
    seed: int,
    output: Path,
    ranks: Ranks,
    transfers: Path | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    folder = output / f"seed-{seed}"
    say(f"seed {seed}: {folder}")
    start, what = str(config.model), "fine-tuning"
    if data.transfer is not None:
        stage = transfer_stage(config, data)
        there = (transfers or output) / f"transfer-{_digest(stage.identity)}" / f"seed-{seed}"
        train_ranker(config, stage, seed, there, ranks)
        start, what = str(there / BEST), "adaptation"
    stage = target_stage(config, data, seed, start, what)
    summary = train_ranker(config, stage, seed, folder, ranks)
    figures, scored = {}, folder / "scores.json"
    if ranks.rank == 0 and not scored.is_file():
        for split in (data.dev, data.test):
            scores = score_answers(str(folder / BEST), split, config.max_length)
            figures[split.split] = means(question_metrics(split, scores))
            write_predictions(folder / split.split, split, scores, f"{_model_name(config)}-seed-{seed}")
        write_atomically(scored, json.dumps(figures, indent=1) + "\n")
    barrier()
    return {"seed": seed, "run": summary, **json.loads(scored.read_text())}


def _digest(same: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:12]


def transfer_stage(config: FinetuneConfig, data: Data) -> Stage:
    """TANDA's first step: the general set, stopped by the target's dev MAP (Garg et al., 2020, section 5.2)."""
    assert data.transfer is not None
    target_alone = ("learning_rate", "epochs", "max_steps", "eval_steps", "negatives_per_positive", "label_noise")
    same = identity(config, transfer=fingerprint(data.transfer), dev=fingerprint(data.dev))
    same["model"] = model_fingerprint(str(config.model))
    return Stage(
        "transfer",
        str(config.model),
        data.transfer,
        data.dev,
        data.test if config.test_every_validation else None,
        config.transfer_learning_rate,
        config.transfer_epochs,
        config.transfer_steps,
        config.transfer_eval_steps,
        config.transfer_negatives,
        {k: v for k, v in same.items() if k not in target_alone},
    )


def target_stage(config: FinetuneConfig, data: Data, seed: int, start: str, what: str) -> Stage:
    train = data.train
    if config.label_noise:
        train = replace(train, labels=with_noise(train.labels, config.label_noise, seed))
    facts = {"train": fingerprint(train), "dev": fingerprint(data.dev), "start": model_fingerprint(start)}
    return Stage(
        what,
        start,
        train,
        data.dev,
        data.test if config.test_every_validation else None,
        config.learning_rate,
        config.epochs,
        config.max_steps,
        config.eval_steps,
        config.negatives_per_positive,
        identity(config, **facts),
    )


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
    lines = [f"{head}, {len(results['seeds'])} seed(s)", " " * 12 + "".join(f"{TITLES[m]:>18}" for m in METRICS)]
    for split in ("dev", "test"):
        for run in results["seeds"]:
            lines.append(
                f"{split} seed {run['seed']:<3}".ljust(12) + "".join(f"{run[split][m]:18.4f}" for m in METRICS)
            )
        cells = [f"{results[split][m]['mean']:.4f} ({results[split][m]['sd']:.4f})" for m in METRICS]
        lines.append(f"{split} mean".ljust(12) + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def load_figures(output: Path, data: AnswerSet, seeds: int) -> list[Figures]:
    """Of each seed the metrics by question, from its run file."""
    from .metrics import run_metrics
    from .trec import read_qrels, read_run

    folders = [output / f"seed-{seed}" / data.split for seed in range(1, seeds + 1)]
    return [run_metrics(read_qrels(f / "qrels.txt"), read_run(f / "run.txt")) for f in folders]
