"""How well a model tells the held-out pairs of an objective apart: accuracy, F1 and AUC with confidence intervals."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from launch._cli import parse, run
from objectives import parse_mixture

DESCRIPTION = """Validation as in table 3 of Di Liello et al., 2022: the same held-out pairs for every model.

Scores a release, any sequence classifier of 1 or 2 labels, BERT by its next-sentence head or ALBERT by its order
head. Texts are decoded for a model of another tokenizer than the corpus's; a corpus of RoBERTa's decodes exactly, one
of uncased BERT's in lower case.
Prints accuracy, F1 and AUC over all pairs, and of positives against hard and easy negatives alone, with 95% confidence
intervals (bootstrap over anchors), the same at one positive in two, and last a line of JSON."""

EPILOG = """examples:
  python launch/evaluate_pairs.py --model releases/ssp --corpus corpora/docs --objective ssp
  python launch/evaluate_pairs.py --model bert-base-uncased --corpus corpora/docs --objective nsp"""

COLUMNS = {
    "accuracy": "accuracy",
    "f1": "F1",
    "auc": "AUC",
    "accuracy_even": "accuracy at 1:1",
    "f1_even": "F1 at 1:1",
}
ROWS = {"all": "all pairs", "hard": "positive against hard", "easy": "positive against easy"}


@dataclass
class EvaluatePairsConfig:
    """Flags of this entry."""

    model: str = field(metadata={"help": "A release, another weights folder, or a hub name."})
    corpus: str = field(metadata={"help": "Corpus folder; one and the same for all models that are compared."})
    objective: str = field(metadata={"help": "As in launch/pretrain.py; of a mixture each part, without its weight."})
    sampling: Literal["matched", "paper"] = field(default="matched", metadata={"help": "As in launch/pretrain.py."})
    anchors: int = field(default=1000, metadata={"help": "Held-out anchors: the first of the order."})
    max_length: int | None = field(default=None, metadata={"help": "Tokens of a pair; default: each objective's own."})
    batch_size: int = field(default=64, metadata={"help": "Pairs in one forward pass."})
    seed: int = field(default=0, metadata={"help": "Of the order of anchors, their spans and the bootstrap."})


def as_text(result: dict[str, Any]) -> str:
    """Everything but the line of JSON."""
    tokenizer = {
        "corpus": "the model's tokenizer is the corpus's: ids as they are",
        "model": "the model's tokenizer is another: texts were decoded, and encoded anew",
    }
    lines = [f"{result['model']}: {result['head']}; above 0 is called positive", tokenizer[result["tokenizer"]]]
    for name, figures in result["objectives"].items():
        pairs = figures["pairs"]
        counts = ", ".join(f"{count:,} {kind}" for kind, count in pairs.items() if count)
        lines += [
            "",
            f"{name}: the first {figures['anchors']:,} of {figures['anchors_held_out']:,} held-out anchors of seed "
            f"{result['seed']}, {sum(pairs.values()):,} pairs ({counts}) of up to {figures['max_length']} tokens",
            " " * 24 + "".join(f"{title:<20}" for title in COLUMNS.values()).rstrip(),
        ]
        for group, title in ROWS.items():
            if group in figures:
                lines.append(f"{title:<24}" + "".join(f"{_interval(figures[group][c]):<20}" for c in COLUMNS).rstrip())
        lines += [f"{f'accuracy on {kind}':<24}{_interval(value)}" for kind, value in figures["kinds"].items()]
    return "\n".join(lines)


def _interval(figure: list[float]) -> str:
    return "{:.3f} [{:.3f} {:.3f}]".format(*figure)


def main() -> None:
    config = parse(EvaluatePairsConfig, DESCRIPTION, EPILOG)
    for name in ("anchors", "batch_size", "max_length"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise KinspanError(f"--{name} {value}: must be above 0")
    if not 0 <= config.seed < 2**63:
        raise KinspanError(f"--seed {config.seed}: must be from 0 to 2^63 - 1")
    corpus, objectives = Corpus(config.corpus), parse_mixture(config.objective, config.sampling)
    from pretrain.evaluation.pair_tests import evaluate_pairs
    from pretrain.modeling.scorer import load_scorer  # after what needs no model to be checked

    result = evaluate_pairs(
        load_scorer(config.model),
        corpus,
        objectives,
        config.anchors,
        config.max_length,
        config.batch_size,
        config.seed,
    )
    print(as_text(result))
    print(json.dumps(result))


if __name__ == "__main__":
    run(main)
