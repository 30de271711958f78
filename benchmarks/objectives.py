"""Trains every objective from the same start with the same budget, and says how well each is then done.

all-MiniLM-L6-v2 (or --model), 240 updates of 32 pairs of at most 64 tokens, one process; then
launch/evaluate_pairs.py's figures on held-out documents, where a fresh pair head is at an AUC of .50. Accuracy and F1
depend on the share of positives, one in five or one in two; AUC, and the two "at 1:1", do not.
Beside it table 3 of Di Liello et al., 2022: RoBERTa-Base after the paper's training, for NSP BERT's head, for SOP
ALBERT's.

The same command again goes on where it was; minutes an objective on two cores."""

import subprocess
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from benchmarks import _common
from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from objectives import parse_mixture
from pretrain.modeling.default_model import default_model

EPILOG = """example:
  python launch/prepare.py --input enwiki2015_AA.jsonl.xz --tokenizer bert-base-uncased --output_dir corpora/aa-bert
  python benchmarks/objectives.py --corpus corpora/aa-bert --output runs/objectives"""

TABLE_3 = {"ssp": (91.8, 83.1), "sp": (91.3, 83.3), "psd": (83.5, 61.4), "nsp": (96.9, 97.1), "sop": (93.7, 94.7)}
SETTINGS = {
    "max_steps": 240,
    "global_batch_size": 32,
    "micro_batch_size": 32,
    "max_length": 64,
    "learning_rate": 2.5e-4,
    "mlm_weight": 0.05,
    "eval_steps": 120,
    "eval_pairs": 1000,
    "save_steps": 120,
    "log_steps": 20,
    "deepspeed_config": "ds_configs/zero1.json",
}


def train(name: str, args: Any) -> Path:
    """Runs, or goes on with, one objective's run; returns its release."""
    run = Path(args.output) / name.replace(":", "-").replace("+", "-")
    settings = SETTINGS | {"objective": name, "corpus": args.corpus, "model": args.model, "output_dir": run}
    launch = _common.ROOT / "launch"
    flags = [f"--{key}={value}" for key, value in settings.items()]
    for command in (
        [launch / "pretrain.py", *flags],
        [launch / "release.py", f"--run_dir={run}", f"--output_dir={run / 'release'}"],
    ):
        if subprocess.run([sys.executable, *map(str, command)]).returncode:
            raise KinspanError(f"{name} could not be trained: see above")
    return run / "release"


def figures(model: str, corpus: Corpus, name: str, anchors: int) -> dict[str, Any]:
    """evaluate_pairs' figures of each of the objectives that ``name`` means."""
    from pretrain.evaluation.pair_tests import evaluate_pairs
    from pretrain.modeling.scorer import load_scorer

    result = evaluate_pairs(load_scorer(model), corpus, parse_mixture(name), anchors, SETTINGS["max_length"])
    return result["objectives"]


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", required=True, help=_common.CORPUS_HELP)
    parser.add_argument("--model", default=default_model(), help="Where all start from.")
    parser.add_argument("--output", default="runs/objectives", help="Folder of the runs.")
    parser.add_argument("--objectives", nargs="+", default=_common.names_of_objectives(), help="Which.")
    parser.add_argument("--anchors", type=int, default=1000, help="Held-out anchors that each is judged on.")
    args = parser.parse_args()
    releases = {name: train(name, args) for name in args.objectives}
    rows, report = [], {}
    for trained, release in releases.items():
        for name, found in figures(str(release), Corpus(args.corpus), trained, args.anchors).items():
            label = name if name == trained else f"{name}, trained with {trained}"
            own = found["all"]
            cells = [f"{own[c][0]:.3f}" for c in ("accuracy", "f1", "accuracy_even", "f1_even")]
            kinds = [f"{found[k]['auc'][0]:.3f}" if k in found else "-" for k in ("hard", "easy")]
            auc = "{:.3f} [{:.3f} {:.3f}]".format(*own["auc"])
            paper = "{} / {}".format(*TABLE_3[name]) if name in TABLE_3 else "-"
            rows.append((label, auc, *kinds, *cells, paper))
            report[f"{trained}/{name}"] = {"auc": own["auc"], "accuracy": own["accuracy"], "f1": own["f1"]}
    header = ("objective", "AUC", "hard", "easy", "accuracy", "F1", "accuracy 1:1", "F1 1:1", "table 3: accuracy / F1")
    _common.print_table(header, rows)
    _common.report("objectives", report)


if __name__ == "__main__":
    _common.run(main)
