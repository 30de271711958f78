"""Measures whether lengths give the label away: a classifier that sees nothing but the lengths of A and B.

For each objective, the area under the ROC curve of gradient-boosted trees that see the number of tokens of A and of
B after the cut, fitted on the pairs of half of the documents and tested on the others'; positives against
hard and against easy negatives. .50 is chance. "paper" draws the lengths freely, where an objective has that choice.

Bar: .50 +- .03 as the objectives are sampled."""

import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from benchmarks import _common
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.packing import cut_longest_first
from data_pipeline.sampling.pairs import EASY, HARD, KINDS, POSITIVE
from data_pipeline.sampling.stream import CHUNK, PairStream
from data_pipeline.tokenizers import load_tokenizer, read_pair_template
from objectives import OBJECTIVES, PAPER_SAMPLING, parse_mixture

EPILOG = """example:
  python benchmarks/lengths.py --corpus corpora/aa-roberta"""


def lengths(stream: PairStream, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens of A and B after the cut ``[n, 2]``, kinds ``[n]`` and the number of A's document ``[n]``."""
    room = stream.max_length - stream.template.num_special
    parts: list[tuple[Any, ...]] = []
    for first in range(0, count, CHUNK):
        for rows in stream.pairs(first, min(CHUNK, count - first)):
            cut = cut_longest_first(tuple(rows.block.count_tokens(s) for s in rows.texts), room)
            parts.append((np.column_stack(cut), rows.kinds, rows.block.document[rows.texts[0].paragraph]))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))  # type: ignore[return-value]


def leak(stream: PairStream, count: int) -> dict[str, float]:
    """The classifier's AUC against each kind of negative that there is."""
    length, kinds, document = lengths(stream, count)
    found = {}
    for kind in (HARD, EASY):
        rows = (kinds == POSITIVE) | (kinds == kind)
        if not (kinds == kind).any():
            continue
        x, label, seen = length[rows], kinds[rows] == POSITIVE, document[rows] % 2 == 0
        model = HistGradientBoostingClassifier(max_iter=60, early_stopping=False, random_state=0)
        model.fit(x[seen], label[seen])
        found[KINDS[kind]] = float(roc_auc_score(label[~seen], model.predict_proba(x[~seen])[:, 1]))
    return found


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", required=True, help=_common.CORPUS_HELP)
    parser.add_argument("--pairs", type=int, default=300_000, help="Pairs of each objective.")
    parser.add_argument("--seed", type=int, default=1, help="Of order and spans.")
    args = parser.parse_args()
    corpus = Corpus(args.corpus)
    template = read_pair_template(load_tokenizer(str(corpus.folder / "tokenizer")))
    rows, figures = [], {}
    for name in OBJECTIVES:
        for sampling in ("matched", "paper") if name in PAPER_SAMPLING else ("matched",):
            mixture = parse_mixture(name, sampling).read_from(corpus)
            auc = leak(PairStream(mixture, template=template, seed=args.seed), args.pairs)
            rows.append((name, sampling, *(f"{auc[k]:.3f}" if k in auc else "-" for k in ("hard", "easy"))))
            figures |= {f"{name}_{sampling}_{kind}": value for kind, value in auc.items()}
    _common.print_table(("lengths alone, AUC", "sampling", "hard", "easy"), rows)
    _common.report("lengths", figures)


if __name__ == "__main__":
    _common.run(main)
