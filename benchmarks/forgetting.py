"""Measures what a short continued pre-training forgets of an encoder of sentence embeddings.

Each pair of a learning rate and a masked-LM weight trains all-MiniLM-L6-v2 by SSP for as many updates as the
quickstart, on batches of as many pairs. Then two figures stand side by side: the AUC of held-out pairs, which is what
the run itself improves, and the MAP of the cosine of mean embeddings on the dev set of WikiQA, without fine-tuning,
which is what the start could do before. The dev set, so that settings may be chosen by it.

Seeds that have run are kept in --output_dir and skipped; no bar, for what may be lost is a choice."""

import json
import os
import shutil
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from benchmarks import _common
from data_pipeline.errors import KinspanError

SETTINGS = ["2.5e-4:0.05", "1e-4:0.05", "5e-5:0.05", "2.5e-4:0.2", "1e-4:0.2"]
EPILOG = """example:
  python benchmarks/forgetting.py --corpus corpora/evidence --data wikiqa=WikiQACorpus
  python benchmarks/forgetting.py --corpus corpora/evidence --data wikiqa=WikiQACorpus --settings 5e-5:1 --seeds 1"""


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
    import numpy as np

    from finetune.evaluation.metrics import MAP, compute_question_metrics
    from finetune.ranking.bi_encoder import score_by_similarity
    from finetune.studies.study_file import make_config
    from finetune.training.stages import load_data

    dev = load_data(make_config({"data": data, "model": model})).dev
    scores, _ = score_by_similarity(model, dev, _common.MAX_LENGTH)
    return float(np.mean(compute_question_metrics(dev, scores)[MAP]))


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def parse_settings(text: str) -> tuple[float, float]:
    """``RATE:WEIGHT``."""
    try:
        rate, weight = map(float, text.split(":"))
    except ValueError:
        raise KinspanError(f"--settings {text}: write RATE:WEIGHT, such as {SETTINGS[0]}") from None
    return rate, weight


def say_row(name: str, lines: list[dict[str, Any]]) -> list[str]:
    """Means over seeds; of the cosine with the standard deviation."""
    cosines = [line["cosine"] for line in lines]
    spread = f" ({stdev(cosines):.3f})" if len(cosines) > 1 else ""
    means = [f"{mean(line[figure] for line in lines):.3f}" for figure in ("pair_auc", "mlm_loss")]
    return [name, str(len(lines)), *means, f"{mean(cosines):.3f}{spread}"]


def main() -> None:
    flags = _common.parser(__doc__, EPILOG)
    flags.add_argument("--corpus", required=True, help=_common.CORPUS_HELP)
    flags.add_argument("--data", required=True, help="wikiqa=FOLDER: the answers whose dev set is ranked.")
    flags.add_argument("--settings", nargs="+", default=SETTINGS, help="Rate and masked-LM weight of each run.")
    flags.add_argument("--max_length", type=int, default=48, help="Tokens of a pair.")
    flags.add_argument("--seeds", type=int, default=2, help="Runs of each, with seeds 101, 102, ...")
    flags.add_argument("--output_dir", type=Path, default=Path("runs/forgetting"), help="Figures and weights.")
    args = flags.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    settings = {text: parse_settings(text) for text in args.settings}
    from pretrain.modeling.default_model import default_model

    rows = [["all-MiniLM-L6-v2 as it is", "", "", "", f"{measure_cosine(default_model(), args.data):.3f}"]]
    args.output_dir.mkdir(parents=True, exist_ok=True)
    kept = args.output_dir / "results.jsonl"
    for seed in range(101, 101 + args.seeds):
        for rate, weight in settings.values():
            name = {"rate": rate, "mlm_weight": weight, "max_length": args.max_length, "seed": seed}
            if any(name.items() <= line.items() for line in read_lines(kept)):
                continue
            folder = args.output_dir / "weights"
            figures = train(args.corpus, rate, weight, args.max_length, seed, folder)
            line = {**name, **figures, "cosine": measure_cosine(str(folder / "release"), args.data)}
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    lines = [line for line in read_lines(kept) if line["max_length"] == args.max_length]
    for text, (rate, weight) in settings.items():
        own = [line for line in lines if (line["rate"], line["mlm_weight"]) == (rate, weight)]
        rows.append(say_row(text, [line for line in own if line["seed"] < 101 + args.seeds]))
    _common.print_table(["rate:MLM weight", "seeds", "pair AUC", "MLM loss", "cosine, dev MAP (sd)"], rows)
    _common.report("forgetting", {"lines": lines})


if __name__ == "__main__":
    _common.run(main)
