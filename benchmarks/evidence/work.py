"""One job of the study in a process of its own: ``python -m benchmarks.evidence.work JOB.json``.

A process of its own has memory and random state of its own, so that a row does not depend on those that ran before it.
What a job leaves is a line of results; weights stay in the work folder only as long as other rows begin there. The
same job again goes on where it was stopped: both trainings resume from their checkpoints.
"""

import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._common import cpu_model
from data_pipeline.errors import KinspanError
from finetune.data.answers import AnswerSet
from finetune.evaluation.metrics import MAP, MRR, compute_question_metrics
from finetune.ranking.bi_encoder import score_by_similarity
from finetune.ranking.encode import encode_pairs
from finetune.ranking.ranker import load_own_tokenizer, load_ranker
from finetune.ranking.score import score_answers, score_pairs
from finetune.studies.study_file import make_config
from finetune.training.engine import Ranks
from finetune.training.fingerprints import fingerprint_answers, fingerprint_model
from finetune.training.groups import make_generator
from finetune.training.plan import BEST
from finetune.training.stages import Data, load_data, make_target_stage
from finetune.training.train import train_ranker
from pretrain.runtime.stop import listen_for_stop

from .plan import RERUN, START, Job, Places, plan_jobs
from .recipe import FINETUNE, HEAD, Row, hash_settings, read_recipe, settle_precision
from .results import Store, pack_figures, settle_choices
from .starts import find_start, make_start, pretrain_and_release

# Of the random numbers that draw a share of the training questions, or a number of training and of dev questions
SHARE_KEY, TRAIN_KEY, DEV_KEY = 2**35, 2**36, 2**36 + 1
MAX_LENGTH = 128  # tokens of a question and a candidate, the default of fine-tuning


def main() -> None:
    """Runs the job whose number in the plan the file names."""
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    places = Places(**told["places"])
    store = Store(Path(told["results"]))
    recipe = settle_choices(read_recipe(Path(told["recipe"])), store)
    torch.set_num_threads(recipe.content["threads"])
    torch.use_deterministic_algorithms(torch.cuda.is_available())
    job = plan_jobs(recipe, store)[told["job"]]
    scratch = recipe.content["starts"][job.start].get("scratch")
    with listen_for_stop():  # a signal ends the trainings with a checkpoint, and this process with status 75
        if job.kind == START:
            store.write(f"start-{job.start}", make_start(scratch, job.start, places, recipe.content["precision"]))
        else:
            run_fit(job, scratch, places, store)


def run_fit(job: Job, scratch: dict[str, Any] | None, places: Places, store: Store) -> None:
    """Pre-trains where the job does, and measures each of its rows that is left; writes a line of each.

    A job that repeats a finished one works in a folder of its own, and writes whether it came to the same scores.

    scratch: how the start is made here; None where it is all-MiniLM-L6-v2
    """
    again = job.kind == RERUN
    work = replace(places, work=f"{places.work}/again") if again else places
    if again:
        shutil.rmtree(work.work, ignore_errors=True)
    start = find_start(job.start, scratch, job.pretrain, places)
    model, pretrained, weights = start, None, fingerprint_model(str(start))
    if job.pretrain is not None:
        model, pretrained = pretrain_and_release(job, start, work)
    for row in job.left:
        began = time.monotonic()
        line = measure_row(row, job.seed, model, work)
        line |= {
            "start": weights,
            "pretrain": pretrained,
            **{name: row.identity[name] for name in ("corpus", "data") if name in row.identity},
            "seconds": round(time.monotonic() - began, 1),
            **describe_machine(),
        }
        if again:
            first = store.read_lines(row)[job.seed]
            store.write("rerun", compare_again(row, first, line))
        else:
            store.add(row, {"seed": job.seed, **line})
    if again:
        shutil.rmtree(work.work)


def compare_again(row: Row, first: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    """Says whether a row that ran once more from scratch has the same figures, to the bit."""
    same = ("ap", "rank", "scores", "dev_scores")
    return {
        "row": row.name,
        "seed": first["seed"],
        "fingerprint": row.fingerprint,
        "scores": first["scores"],
        "scores_again": again["scores"],
        "identical": all(first[name] == again[name] for name in same),
        "machine": again["machine"],
    }


def measure_row(row: Row, seed: int, model: Path, places: Places) -> dict[str, Any]:
    """Fine-tunes ``model`` if the row does, ranks the test set, and returns what its line holds."""
    config = make_config(
        {
            **(settle_precision(row.finetune) if row.measure == FINETUNE else {}),
            "data": places.data[row.set],
            "model": str(model),
            "max_length": MAX_LENGTH,
        }
    )
    data = load_data(config)
    assert data.test is not None
    check_data(row, data)
    if row.measure != FINETUNE:
        scores = score_zero_shot(row, seed, model, data.test)
        return {**summarize(data.test, scores), "dev_map": None, "dev_scores": None, "finetune": None}
    data = replace(data, train=draw_share(data.train, row.share, seed))
    if row.questions is not None:
        data = draw_questions(data, row.questions, seed)
    folder = Path(places.work) / "finetune" / f"{hash_settings([row.name, row.fingerprint])}-{seed}"
    stage = make_target_stage(config, data, seed, str(model), "fine-tuning")
    summary = train_ranker(config, stage, seed, folder, Ranks())
    scored = {split.split: score_answers(str(folder / BEST), split, MAX_LENGTH) for split in data.measured}
    dev = summarize(data.dev, scored["dev"])
    shutil.rmtree(folder)
    return {
        **summarize(data.test, scored["test"]),
        "dev_map": float(np.mean(dev["ap"])),
        "dev_scores": dev["scores"],
        "finetune": {name: summary[name] for name in ("steps", "best_step", "stopped", "precision", "wall_seconds")},
    }


def draw_share(train: AnswerSet, share: float, seed: int) -> AnswerSet:
    """A share of the training questions, at least one; of equal seeds the same, whatever the arm."""
    if share == 1:
        return train
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


def check_data(row: Row, data: Data) -> None:
    """Raises KinspanError where the recipe names the fingerprint of another data set than this one."""
    wanted, found = row.identity.get("data"), fingerprint_data(data)
    if wanted not in (None, found):
        raise KinspanError(f"{row.set}: the recipe is of data with the fingerprint {wanted}, and this has {found}")


def fingerprint_data(data: Data) -> str:
    """Names the questions and labels of all splits, as they are after the filters."""
    return hash_settings([fingerprint_answers(split) for split in (data.train, *data.measured)])


def score_zero_shot(row: Row, seed: int, model: Path, data: AnswerSet) -> np.ndarray:
    """Scores ``[N]`` by the pair head, which is drawn anew where none was trained, or by the encoder's cosine."""
    if row.measure != HEAD:
        return score_by_similarity(str(model), data, MAX_LENGTH)[0]
    ranker, _ = load_ranker(str(model), seed, fresh_head=bool(row.finetune.get("fresh_head")))
    pairs = encode_pairs(data, load_own_tokenizer(str(model)), MAX_LENGTH)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return score_pairs(ranker.eval().to(device), pairs, device)


def summarize(data: AnswerSet, scores: np.ndarray) -> dict[str, Any]:
    """The figures of every question, as a line of results holds them."""
    figures = compute_question_metrics(data, scores)
    return pack_figures(figures[MAP], figures[MRR], scores)


def describe_machine() -> dict[str, Any]:
    """Where the figures hold to the bit."""
    own = f"{cpu_model()} ({torch.backends.cpu.get_cpu_capability()})"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else own
    return {"machine": f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}"}


if __name__ == "__main__":
    main()
