"""What the page needs of a data set beside the rows: its questions, which of them are contaminated, and the baselines.

``python -m benchmarks.evidence.sets SETTINGS.json`` writes SET.json of every set, before the first row runs.
"""

import json
import sys
from pathlib import Path
from typing import Any

from data_pipeline.corpus import Corpus
from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import score_bm25
from finetune.evaluation.contamination import find_contamination, flag_questions
from finetune.evaluation.metrics import MAP, MRR, compute_question_metrics
from finetune.ranking.bi_encoder import score_by_similarity
from finetune.studies.study_file import make_config
from finetune.training.stages import load_data
from pretrain.modeling.default_model import default_model

from .results import Store, is_described, pack_figures


def describe_set(spec: str, corpus: Corpus, num_workers: int) -> dict[str, Any]:
    """Returns counts, the contaminated questions of the test set, and the figures of what needs no training.

    contaminated: numbers of the questions with a right answer in the corpus, and with any such candidate
    """
    data = load_data(make_config({"data": spec, "model": default_model()}))
    test = data.test
    assert test is not None
    found = find_contamination(test, corpus, num_workers)
    baselines = {"BM25": score_bm25(test), "cosine": score_by_similarity(default_model(), test, 128)[0]}
    return {
        "questions": {split.split: split.num_questions for split in (data.train, *data.measured)},
        "pairs": {split.split: split.num_pairs for split in (data.train, *data.measured)},
        "train_positives": int(data.train.labels.sum()),
        "corpus": {"fingerprint": corpus.manifest.fingerprint, "totals": corpus.manifest.totals},
        "contaminated": {
            "answer": flag_questions(test, found.rows).nonzero()[0].tolist(),
            "candidate": flag_questions(test, found.rows, positives_alone=False).nonzero()[0].tolist(),
        },
        "baselines": {name: _measure(test, scores) for name, scores in baselines.items()},
    }


def _measure(data: AnswerSet, scores: Any) -> dict[str, Any]:
    figures = compute_question_metrics(data, scores)
    return pack_figures(figures[MAP], figures[MRR], scores)


def main() -> None:
    """Writes what is not there yet."""
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    corpus, store = Corpus(told["places"]["corpus"]), Store(Path(told["results"]))
    for name, spec in told["places"]["data"].items():
        if not is_described(store, name, corpus.manifest.fingerprint):
            print(f"{spec}: baselines, and which questions the corpus answers word for word", flush=True)
            store.write(name, describe_set(spec, corpus, told["threads"]))


if __name__ == "__main__":
    main()
