"""How a row of a matrix is measured, and what its study must know of a data set beside the rows."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import read_object
from data_pipeline.corpus import Corpus
from finetune.data.answers import AnswerSet
from finetune.evaluation.bm25 import BM25, count_words, score_bm25, score_bm25_by
from finetune.evaluation.contamination import find_contamination, flag_questions
from finetune.evaluation.metrics import MAP, MRR, compute_question_metrics
from finetune.evaluation.trec import read_scores
from finetune.fuse import fit_fusion, measure_map
from finetune.ranking.bi_encoder import score_by_similarity
from finetune.ranking.encode import encode_pairs
from finetune.ranking.ranker import load_own_tokenizer, load_ranker
from finetune.ranking.score import score_pairs
from finetune.training.fingerprints import fingerprint_answers
from finetune.training.groups import make_generator
from finetune.training.stages import Data, load_data
from pretrain.engine.run_folder import SUMMARY
from pretrain.modeling.default_model import default_model

from .kinds import find_kinds
from .lines import ResultStore, pack_figures
from .matrix import hash_settings
from .rows import HEAD, StudyRow
from .study_file import make_config

MAX_LENGTH = 128  # tokens of a question and a candidate, the default of fine-tuning
# Of the random numbers that draw a share of the training questions, or a number of training and of dev questions
SHARE_KEY, TRAIN_KEY, DEV_KEY = 2**35, 2**36, 2**36 + 1
FIGURES = ("loss", "mlm_loss", "rtd_loss", "pair_loss", "pair_auc", "pair_auc_hard", "pair_auc_easy")


def draw_for(row: StudyRow) -> Callable[[Data, int], Data] | None:
    """What draws the row's training questions by the seed; None where it takes all."""
    if row.questions is not None:
        return lambda data, seed: draw_questions(data, row.questions or 0, seed)
    if row.share != 1:
        return lambda data, seed: replace(data, train=draw_share(data.train, row.share, seed))
    return None


def draw_share(train: AnswerSet, share: float, seed: int) -> AnswerSet:
    """A share of the training questions, at least one; of equal seeds the same, whatever the arm."""
    count = max(1, round(share * train.num_questions))
    drawn = make_generator(seed, SHARE_KEY).choice(train.num_questions, count, replace=False)
    return train.take(np.sort(drawn))


def draw_questions(data: Data, count: int, seed: int) -> Data:
    """``count`` training questions and at most half as many dev questions, drawn together by the seed.

    Of equal seeds the same, whatever the arm; those of a smaller count are among those of a larger one.
    """

    def draw(split: AnswerSet, count: int, key: int) -> AnswerSet:
        order = make_generator(seed, key).permutation(split.num_questions)
        return split.take(np.sort(order[:count]))

    return replace(data, train=draw(data.train, count, TRAIN_KEY), dev=draw(data.dev, count // 2, DEV_KEY))


def measure_untuned(row: StudyRow, seed: int, model: str, spec: str) -> dict[str, Any]:
    """The figures of the test set by the pair head, drawn anew where none was trained, or by the encoder's cosine."""
    test = load_test(spec).test
    assert test is not None
    if row.measure == HEAD:
        ranker, _ = load_ranker(model, seed, fresh_head=bool(row.settings.get("fresh_head")))
        pairs = encode_pairs(test, load_own_tokenizer(model), MAX_LENGTH)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        scores = score_pairs(ranker.eval().to(device), pairs, device)
    else:
        scores = score_by_similarity(model, test, MAX_LENGTH)
    return {**summarize(test, scores), "dev_map": None, "finetune": None}


def measure_fused(row: StudyRow, seed: int, start: str, spec: str, kept: Mapping[str, Path]) -> dict[str, Any]:
    """The figures of the test set by a learned fusion, whose weights are of the dev questions that the seed draws.

    kept: of each part, the folder of its runs on dev and test
    """
    data = load_test(spec)
    data = draw(data, seed) if (draw := draw_for(row)) else data
    dev, test = data.measured
    words = count_words([text for split in (data.train, dev, test) for text in split.answers.unique().to_pylist()])

    def score(split: AnswerSet) -> dict[str, np.ndarray]:
        own = {BM25: score_bm25_by(words, split), "cosine": score_by_similarity(start, split, MAX_LENGTH)}
        return own | {name: read_scores(folder / split.split / "run.txt", split) for name, folder in kept.items()}

    fitted = fit_fusion(dev, score(dev))
    weights = dict(zip(fitted.names, np.round(fitted.weights, 4).tolist(), strict=True))
    dev_map = measure_map(dev, fitted.out_of_fold)
    return {**summarize(test, fitted.score(score(test))), "dev_map": dev_map, "weights": weights, "finetune": None}


def summarize(data: AnswerSet, scores: np.ndarray) -> dict[str, Any]:
    """The figures of every question, as a line of results holds them."""
    figures = compute_question_metrics(data, scores)
    return pack_figures(figures[MAP], figures[MRR], scores)


def summarize_pretraining(folder: Path) -> dict[str, Any]:
    """What a line says of the pre-training that it begins with."""
    summary = read_object(folder / SUMMARY, f"delete {folder}")
    kept = {"steps": summary["steps"], "tokens": summary["tokens"], "seconds": summary["wall_seconds"]}
    for name in ("first_validation", "last_validation"):
        figures = summary[name] or {}
        kept[name] = {figure: round(figures[figure], 4) for figure in FIGURES if figure in figures}
    return kept


def load_test(spec: str) -> Data:
    """The splits of a data set, filtered as fine-tuning does."""
    return load_data(make_config({"data": spec, "model": default_model()}))


def settle_sets(content: dict[str, Any], specs: dict[str, str], corpus: str, store: ResultStore) -> None:
    """Checks that corpus and data sets are those of the study's file, and describes each set that is not described.

    Raises KinspanError where they are not.
    """
    expected, opened = content.get("fingerprints", {}), Corpus(corpus)
    if expected.get("corpus", opened.manifest.fingerprint) != opened.manifest.fingerprint:
        raise KinspanError(
            f"the study is of a corpus with the fingerprint {expected['corpus']}, and {corpus} has "
            f"{opened.manifest.fingerprint}: prepare the texts again as the study's file says"
        )
    for name, spec in specs.items():
        known = store.read(name)
        if known and known["corpus"]["fingerprint"] != opened.manifest.fingerprint:
            raise KinspanError(f"{store.folder} holds results of another corpus than {corpus}: name another --results")
        data = load_test(spec)
        found = fingerprint_data(data)
        if expected.get(name, found) != found:
            raise KinspanError(
                f"--data {spec}: the study is of data with the fingerprint {expected[name]}, not {found}"
            )
        if known is None:
            print(f"{spec}: baselines, and which questions the corpus answers word for word", flush=True)
            store.write(name, describe_set(data, opened, content["threads"]))
        elif "kinds" not in known and data.test:
            store.write(name, known | {"kinds": find_kinds(data.test)})


def fingerprint_data(data: Data) -> str:
    """Names the questions and labels of all splits, as they are after the filters."""
    return hash_settings([fingerprint_answers(split) for split in (data.train, *data.measured)])


def describe_set(data: Data, corpus: Corpus, num_workers: int) -> dict[str, Any]:
    """Returns counts, the contaminated questions of the test set, and the figures of what needs no training.

    contaminated: numbers of the questions with a right answer in the corpus, and with any such candidate
    kinds:        as ``find_kinds`` returns them
    """
    test = data.test
    assert test is not None
    found = find_contamination(test, corpus, num_workers)
    baselines = {"BM25": score_bm25(test), "cosine": score_by_similarity(default_model(), test, MAX_LENGTH)}
    return {
        "questions": {split.split: split.num_questions for split in (data.train, *data.measured)},
        "pairs": {split.split: split.num_pairs for split in (data.train, *data.measured)},
        "train_positives": int(data.train.labels.sum()),
        "corpus": {"fingerprint": corpus.manifest.fingerprint, "totals": corpus.manifest.totals},
        "contaminated": {
            "answer": flag_questions(test, found.rows).nonzero()[0].tolist(),
            "candidate": flag_questions(test, found.rows, positives_alone=False).nonzero()[0].tolist(),
        },
        "baselines": {name: summarize(test, scores) for name, scores in baselines.items()},
        "kinds": find_kinds(test),
    }


def describe_machine() -> str:
    """Where the figures hold to the bit."""
    own = f"{_name_processor()} ({torch.backends.cpu.get_cpu_capability()})"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else own
    return f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _name_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
