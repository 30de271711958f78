"""Measures how long the parts of a fit take, from which the study's hours are computed: pilot.json, in minutes.

``python -m benchmarks.evidence.pilot SETTINGS.json`` trains a few updates of each kind of model and set.
"""

import json
import shutil
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from data_pipeline.corpus import Corpus
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import load_tokenizer, read_pair_template
from finetune.studies.study_file import make_config
from finetune.training.stages import load_data
from objectives import parse_mixture
from objectives.mlm import MaskedLM
from pretrain.batches import average_tokens
from pretrain.config import PretrainConfig
from pretrain.modeling.default_model import default_model
from pretrain.run import pretrain

from .plan import ELECTRA, Places
from .recipe import FINETUNE, Recipe, Row, read_recipe, settle_precision
from .results import Store
from .starts import convert_to_electra, write_blank
from .work import describe_machine, measure_row

WARM, STEPS = 10, 30  # updates of a pre-training: the first ones are not timed
FEW, MANY = 10, 40  # updates of fine-tuning: what they differ by is timed
RATE = 1e-4  # speed does not depend on it


def measure(recipe: Recipe, places: Places) -> dict[str, Any]:
    """Returns seconds and tokens per second, by start and set."""
    began = psutil.Process().create_time()
    pilot: dict[str, Any] = {"startup_seconds": round(time.time() - began, 1), **describe_machine()}
    pilot["tokens_of_pair"] = {str(length): measure_tokens(places.corpus, length) for length in (48, 64, 128)}
    pilot["sets"] = {name: _count_training(spec) for name, spec in places.data.items()}
    models = _make_models(recipe, Path(places.work))
    for name, model in models.items():
        start = name if name in recipe.content["starts"] else next(iter(recipe.content["starts"]))
        row = next(row for row in recipe.rows if row.start == start and row.pretrain and "ssp" in row.name)
        pilot[name] = {"tokens_per_second": measure_pretraining(row, name, model, places)}
        if name != ELECTRA:
            sets = {row.set for row in recipe.rows if (row.start, row.measure) == (name, FINETUNE)}
            pilot[name]["sets"] = {s: measure_fine_tuning(recipe, name, s, model, places) for s in sorted(sets)}
    return pilot


def _make_models(recipe: Recipe, work: Path) -> dict[str, Path]:
    """Models of the right size; their weights do not matter for speed."""
    models = {}
    for start, content in recipe.content["starts"].items():
        models[start] = Path(default_model())
        if "scratch" in content:
            models[start] = work / start
            write_blank(content["scratch"]["config"], models[start], with_weights=True)
            models[ELECTRA] = work / ELECTRA
            convert_to_electra(models[start], models[ELECTRA])
    return models


def measure_tokens(corpus: str, max_length: int) -> float:
    """The mean tokens of a pair of SSP."""
    tokenizer = load_tokenizer(default_model())
    masking = MaskedLM(tokenizer.mask_token_id, len(tokenizer), 0.15, None)
    stream = PairStream(
        parse_mixture("ssp", "matched").read_from(Corpus(corpus)),
        seed=1,
        split="train",
        template=read_pair_template(tokenizer),
        max_length=max_length,
        masking=masking,
    )
    return round(float(average_tokens(stream)), 1)


def _count_training(spec: str) -> dict[str, int]:
    train = load_data(make_config({"data": spec, "model": default_model()})).train
    return {"train_questions": train.num_questions, "train_positives": int(train.labels.sum())}


def measure_pretraining(row: Row, name: str, model: Path, places: Places) -> float:
    """Tokens per second, of the last updates of a few."""
    folder = Path(places.work) / f"pretrain-{name}"
    lengths = {"max_tokens", "max_steps", "eval_pairs", "learning_rate", "log_steps"}
    settings = {k: v for k, v in (row.pretrain or {}).items() if k not in lengths}
    if name == ELECTRA:
        settings |= {"token_loss": "rtd", "generator": str(model / "generator")}
    settings |= {"max_steps": STEPS, "eval_pairs": 0, "learning_rate": RATE, "log_steps": WARM}
    settings = settle_precision(settings)
    pretrain(PretrainConfig(**settings, model=str(model), corpus=places.corpus, output_dir=str(folder)))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    speeds = [line["tokens_per_second"] for line in lines if line["split"] == "train"][1:]
    return round(sum(speeds) / len(speeds), 1)


def measure_fine_tuning(recipe: Recipe, start: str, set_name: str, model: Path, places: Places) -> dict[str, float]:
    """Seconds of an update, of a validation, and of what surrounds them."""
    rows = [row for row in recipe.rows if (row.start, row.set, row.measure) == (start, set_name, FINETUNE)]
    settings = rows[0].finetune | {"learning_rate": RATE, "epochs": 2, "fresh_head": True}

    def time_row(steps: int, every: int) -> float:
        row = replace(rows[0], share=1.0, questions=None, finetune=settings | {"max_steps": steps, "eval_steps": every})
        began = time.monotonic()
        measure_row(row, 1, model, places)
        return time.monotonic() - began

    few, many, often = time_row(FEW, MANY), time_row(MANY, MANY), time_row(MANY, FEW)
    update = max((many - few) / (MANY - FEW), 0.0)
    validation = max((often - many) / (MANY / FEW - 1), 0.0)
    around = max(few - FEW * update - 2 * validation, 0.0)
    seconds = {"seconds_of_update": update, "seconds_of_validation": validation, "seconds_around": around}
    return {name: round(value, 3) for name, value in seconds.items()}


def main() -> None:
    """Writes pilot.json."""
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(told["threads"])
    places = Places(**told["places"])
    places = Places(**{**asdict(places), "work": f"{places.work}/pilot"})
    shutil.rmtree(places.work, ignore_errors=True)
    Store(Path(told["results"])).write("pilot", measure(read_recipe(Path(told["recipe"])), places))
    shutil.rmtree(places.work)


if __name__ == "__main__":
    main()
