"""Measures what a short continued pre-training forgets of an encoder of sentence embeddings.

Each pair of a learning rate and a masked-LM weight trains all-MiniLM-L6-v2 by SSP for as many updates as the
quickstart, on batches of as many pairs. Then two figures stand side by side: the AUC of held-out pairs, which is what
the run itself improves, and the MAP of the cosine of mean embeddings on the dev set of WikiQA, without fine-tuning,
which is what the start could do before. The dev set, so that settings may be chosen by it.

The figures are kept in results/forgetting.json, which the page of the study shows; seeds that have run are skipped."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks import _common
from data_pipeline.errors import KinspanError

from .findings import format_figure
from .results import Store
from .tables import format_table

FORGETTING = "forgetting"  # the file of the figures, without .json
SETTINGS = ["2.5e-4:0.05", "1e-4:0.05", "5e-5:0.05", "2.5e-4:0.2", "1e-4:0.2"]
EPILOG = """example:
  python -m benchmarks.evidence.forgetting --corpus corpora/evidence --data wikiqa=WikiQACorpus
  python -m benchmarks.evidence.forgetting --corpus corpora/evidence --data wikiqa=WikiQACorpus --settings 5e-5:1"""


def train(corpus: str, rate: float, weight: float, length: int, seed: int, folder: Path) -> dict[str, float]:
    """Trains on one core and releases into ``folder``; returns the figures of the validation after the last update."""
    import torch

    from pretrain.config import PretrainConfig
    from pretrain.modeling.default_model import default_model
    from pretrain.release.release import release
    from pretrain.run import pretrain

    torch.set_num_threads(1)
    shutil.rmtree(folder, ignore_errors=True)
    config = PretrainConfig(
        objective="ssp",
        corpus=corpus,
        model=default_model(),
        output_dir=str(folder / "run"),
        max_steps=240,
        global_batch_size=32,
        micro_batch_size=32,
        max_length=length,
        learning_rate=rate,
        mlm_weight=weight,
        eval_steps=1_000_000,  # at the start and at the end
        eval_pairs=1000,
        save_steps=1_000_000,
        seed=seed,
        deepspeed_config="ds_configs/zero1.json",
    )
    figures = pretrain(config)["last_validation"]
    release(folder / "run", folder / "release")
    shutil.rmtree(folder / "run")
    return {name: figures[name] for name in ("pair_auc", "mlm_loss")}


def measure_cosine(model: str, data: str) -> float:
    """The dev MAP of the cosine of mean embeddings."""
    from finetune.evaluation.metrics import MAP, compute_question_metrics
    from finetune.ranking.bi_encoder import score_by_similarity
    from finetune.studies.study_file import make_config
    from finetune.training.stages import load_data

    dev = load_data(make_config({"data": data, "model": model})).dev
    scores, _ = score_by_similarity(model, dev, _common.MAX_LENGTH)
    return float(np.mean(compute_question_metrics(dev, scores)[MAP]))


def list_forgetting(kept: dict[str, Any] | None) -> str:
    """What a run of the quickstart's length forgets, by its rate and masked-LM weight; empty where it was not measured.

    kept: as forgetting.py writes it
    """
    if not kept:
        return ""
    runs: dict[tuple[float, float, int], list[dict[str, Any]]] = {}
    for line in kept["lines"]:
        runs.setdefault((line["rate"], line["mlm_weight"], line["max_length"]), []).append(line)
    rows = [["none: the start as it is", "", "", "", "", "", format_figure(kept["start"])]]
    for (rate, weight, length), lines in runs.items():
        auc, loss, cosine = (np.array([line[name] for line in lines]) for name in ("pair_auc", "mlm_loss", "cosine"))
        spread = f" ({format_figure(cosine.std(ddof=1))})" if len(lines) > 1 else ""
        cells = [f"{rate:g}", f"{weight:g}", str(length), str(len(lines)), format_figure(auc.mean())]
        rows.append([*cells, f"{loss.mean():.2f}", format_figure(cosine.mean()) + spread])
    header = ["rate", "MLM weight", "tokens of a pair", "seeds", "AUC of pairs", "MLM loss", "cosine, dev MAP (sd)"]
    return format_table(header, rows)


def parse_settings(text: str) -> tuple[float, float]:
    """``RATE:WEIGHT``."""
    try:
        rate, weight = map(float, text.split(":"))
    except ValueError:
        raise KinspanError(f"--settings {text}: write RATE:WEIGHT, such as {SETTINGS[0]}") from None
    return rate, weight


def main() -> None:
    flags = _common.parser(__doc__, EPILOG)
    flags.prog = "python -m benchmarks.evidence.forgetting"
    flags.add_argument("--corpus", required=True, help=_common.CORPUS_HELP)
    flags.add_argument("--data", required=True, help="wikiqa=FOLDER: the answers whose dev set is ranked.")
    flags.add_argument("--settings", nargs="+", default=SETTINGS, help="Rate and masked-LM weight of each run.")
    flags.add_argument("--max_length", type=int, default=48, help="Tokens of a pair.")
    flags.add_argument("--seeds", type=int, default=2, help="Runs of each, with seeds 101, 102, ...")
    flags.add_argument("--work", type=Path, default=Path("runs/forgetting"), help="Folder of weights under way.")
    args = flags.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    settings = [parse_settings(text) for text in args.settings]
    from pretrain.modeling.default_model import default_model

    store = Store()
    kept = store.read(FORGETTING) or {"start": measure_cosine(default_model(), args.data), "lines": []}
    todo = [
        {"rate": rate, "mlm_weight": weight, "max_length": args.max_length, "seed": seed}
        for seed in range(101, 101 + args.seeds)
        for rate, weight in settings
    ]
    todo = [name for name in todo if not any(name.items() <= line.items() for line in kept["lines"])]
    for name in tqdm(todo, unit=" runs", disable=None):
        figures = train(args.corpus, name["rate"], name["mlm_weight"], args.max_length, name["seed"], args.work)
        kept["lines"].append({**name, **figures, "cosine": measure_cosine(str(args.work / "release"), args.data)})
        store.write(FORGETTING, kept)
    print(list_forgetting(kept))


if __name__ == "__main__":
    _common.run(main)
