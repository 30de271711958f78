"""How many labels does pre-training save an encoder that has seen no pairs? Runs the study's recipe, recipe.yaml.

    timeout 8h python benchmarks/dose/run.py --work runs/dose

It makes everything from nothing: start, questions, corpus, pre-trainings. A row and a seed leave one line of JSON in
lines/ROW.jsonl, and are skipped where it is there. Stop it at any time: the same command goes on.
"""

import argparse
import itertools
import json
import logging
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import numpy as np
import torch
import yaml

from benchmarks._common import environment
from benchmarks.dose.starts import make_start
from data_pipeline.core.files import write_atomically
from data_pipeline.manifest import read_manifest
from finetune.adapt.questions import list_lines
from finetune.data.answers import AnswerSet
from finetune.data.filters import filter_questions
from finetune.data.registry import load_split
from finetune.evaluation.metrics import MAP, compute_question_metrics
from finetune.ranking.encode import encode_pairs
from finetune.ranking.model import score_answers
from finetune.ranking.ranker import load_own_tokenizer, load_ranker
from finetune.ranking.score import score_pairs
from finetune.training.groups import make_generator
from finetune.training.stages import fingerprint_identity
from pretrain.release.folder import fingerprint_model

log = logging.getLogger(__name__)

RECIPE = yaml.safe_load(Path(__file__).with_name("recipe.yaml").read_text(encoding="utf-8"))
ALL = "all"  # labelled questions


@dataclass(frozen=True)
class Row:
    """A start, pre-trained by an arm on so many pairs, fine-tuned on so many questions; 0: ranked without labels."""

    start: str
    arm: str
    pairs: int
    questions: int | str
    set: str

    @property
    def name(self) -> str:
        return "-".join(map(str, asdict(self).values()))


def parse_row(name: str) -> Row:
    """Returns the row of a name."""
    start, *arm, pairs, questions, of_set = name.split("-")
    return Row(start, "-".join(arm), int(pairs), questions if questions == ALL else int(questions), of_set)


def list_jobs() -> Iterator[tuple[Row, int]]:
    """Yields rows and seeds in order of need."""
    for block in RECIPE["blocks"]:
        for seed in range(1, block["seeds"] + 1):
            yield from ((parse_row(name), seed) for name in block["rows"])


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a row."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kinspan(command: str, *flags: Any, **settings: Any) -> None:
    """Runs a command of the project."""
    given = [*flags, *(f"--{name}={value}" for name, value in settings.items() if value is not None)]
    subprocess.run([sys.executable, "-m", "launch.kinspan", command, *map(str, given)], cwd=ROOT, check=True)


class Study:
    """The places of a study: texts and labelled sets are read, all else is made in the work folder where missing."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.work, self.text, self.data = args.work.absolute(), args.text.absolute(), args.data.absolute()

    def make_start(self, start: str) -> Path:
        """Returns the folder of the start's weights."""
        folder = self.work / "starts" / start
        if not (folder / "tokenizer.json").exists():
            make_start(start, folder)
        return folder

    def make_set(self, name: str) -> Path:
        """Returns the folder of a set's splits, filtered as fine-tuning filters them."""
        folder = self.work / "sets" / name
        for split, mode in (("train", "no-all-negative"), ("dev", "clean"), ("test", "clean")):
            if not (folder / f"{split}.jsonl").exists():
                write_split(folder, filter_questions(load_split(f"{name}={self.data / name}", split), mode))
        return folder

    def make_corpus(self, start: str) -> Path:
        """Returns the corpus in the start's tokens."""
        folder, news = self.work / "corpora" / start, self.work / "news.jsonl"
        texts = [self.text / name for name in RECIPE["texts"]]
        if not (folder / "manifest.json").exists():
            with lzma.open(texts.pop(), "rt", encoding="utf-8") as lines:
                news.write_text("".join(itertools.islice(lines, RECIPE["news"])), encoding="utf-8")
            flags = ["--title_texts", "--input", *texts, news]
            kinspan("prepare", *flags, tokenizer=self.make_start(start), output_dir=folder)
        return folder

    def pretrain(self, row: Row, seed: int) -> tuple[Path, dict[str, Any]]:
        """Returns the released model that the row is fine-tuned from, and the figures of its pre-training."""
        start, arm = self.make_start(row.start), RECIPE["arms"][row.arm]
        if "pretrain" not in arm:
            return start, {}
        settings = {**RECIPE["pretrain"], "seed": seed, **arm["pretrain"]}
        settings["max_steps"] = row.pairs // settings["global_batch_size"]
        corpus = self.make_corpus(row.start)
        inputs = {"start": fingerprint_model(str(start)), "corpus": read_manifest(corpus, str(corpus)).fingerprint}
        digest = fingerprint_identity(settings | inputs)
        folder = self.work / "pretrained" / f"{row.start}-{row.arm}-{row.pairs}-{settings['seed']}-{digest}"
        if not (folder / "release" / "config.json").exists():
            kinspan("pretrain", model=start, corpus=corpus, output_dir=folder, **settings)
            kinspan("release", run_dir=folder, output_dir=folder / "release")
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        done = json.loads((folder / "summary.json").read_text())
        auc = done["last_validation"].get("pair_auc")
        figures = {"auc": auc, "tokens": done["tokens"], "pretrain_seconds": done["wall_seconds"]}
        return folder / "release", {**figures, "model": fingerprint_model(str(folder / "release"))}

    def finetune(self, row: Row, seed: int, model: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
        """Returns the fine-tuned model, and the figures of its training."""
        settings = {**RECIPE["finetune"], **RECIPE["arms"][row.arm].get("finetune", {})}
        settings |= RECIPE["many_questions"] if row.questions in (200, 400, ALL) else {}
        questions = draw(self.make_set(row.set), row.questions, seed, folder / "questions")
        kinspan("finetune", data=f"files={questions}", model=model, seed=seed, output_dir=folder / "run", **settings)
        done = json.loads((folder / "run/results.json").read_text())["seeds"][0]
        run, dev = done["run"], done["dev"]["map"]
        figures = {"updates": run["best_step"], "updates_run": run["steps"], "dev_map": dev}
        return folder / f"run/seed-{seed}/best", figures

    def measure(self, row: Row, seed: int) -> dict[str, Any]:
        """Trains what is missing, ranks the test questions, and returns the line of a row and a seed."""
        model, pretrained = self.pretrain(row, seed)
        test, tuned = load_split(f"files={self.make_set(row.set)}", "test"), {}
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            if row.questions:
                model, tuned = self.finetune(row, seed, model, Path(folder))
            ap = compute_question_metrics(test, score(model, test, seed, row.arm == "none" and not row.questions))[MAP]
        measured = {"measure": "cosine" if row.arm.startswith("bi") else "head", "ap": ap.round(6).tolist()}
        measured |= {"map": round(float(ap.mean()), 6), **tuned, **pretrained}
        machine, seconds = environment(), round(time.monotonic() - began, 1)
        commit = os.environ.get("COMMIT") or subprocess.getoutput(f"git -C '{ROOT}' rev-parse HEAD")
        about = {"seconds": seconds, "machine": machine.get("gpu", machine["cpu"]), "commit": commit}
        return {"row": row.name, "seed": seed, **asdict(row), **measured, **about}


def draw(source: Path, count: int | str, seed: int, folder: Path) -> Path:
    """Writes so many training questions and half as many dev questions, drawn by the seed alone.

    Those of a smaller count are among those of a larger one. Returns the folder, which has no test split.
    """
    for split, of_all, key in (("train", 1, 2**36), ("dev", 2, 2**36 + 1)):  # keys beyond those of epochs
        data = load_split(f"files={source}", split)
        order = make_generator(seed, key).permutation(data.num_questions)
        kept = data.num_questions if count == ALL else int(count) // of_all
        write_split(folder, data.take(np.sort(order[:kept])))
    return folder


def write_split(folder: Path, data: AnswerSet) -> None:
    """Writes a split as fine-tuning reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{data.split}.jsonl", list_lines(data))


def score(model: Path, test: AnswerSet, seed: int, fresh_head: bool) -> np.ndarray:
    """Returns the scores of the candidates by a model's head, drawn anew if asked, or by its embeddings' cosine."""
    max_length = RECIPE["finetune"]["max_length"]
    if not fresh_head:
        return score_answers(str(model), test, max_length)
    ranker = load_ranker(str(model), seed, fresh_head=True).eval()
    return score_pairs(ranker, encode_pairs(test, load_own_tokenizer(str(model)), max_length), torch.device("cpu"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = ROOT.parent / "shared" / "data"
    parser.add_argument("--work", type=Path, required=True, help="Folder of starts, sets, corpora and trainings.")
    parser.add_argument("--lines", type=Path, default=Path(__file__).parent / "lines", help="Folder of results.")
    parser.add_argument("--text", type=Path, default=shared / "corpus", help="Folder of the recipe's texts.")
    parser.add_argument("--data", type=Path, default=shared / "as2", help="Folder of the recipe's sets.")
    parser.add_argument("--only", default="rampart-[!g]*", help="Pattern of rows. By default: those of a processor.")
    parser.add_argument("--seeds", type=int, nargs="+", help="Run these seeds alone.")
    parser.add_argument("--inputs", action="store_true", help="Make starts, corpora and sets alone.")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))  # so that what runs here is ended, too
    for folder in (args.work, args.lines):
        folder.mkdir(parents=True, exist_ok=True)
    for row, seed in list_jobs():
        path = args.lines / f"{row.name}.jsonl"
        if not fnmatchcase(row.name, args.only) or seed not in (args.seeds or [seed]):
            continue
        study = Study(args)
        if args.inputs:
            study.make_corpus(row.start)
            study.make_set(row.set)
        if args.inputs or any(line["seed"] == seed for line in read_lines(path)):
            continue
        line = study.measure(row, seed)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        log.info("%s, seed %d: MAP %.4f after %.0f seconds", row.name, seed, line["map"], line["seconds"])


if __name__ == "__main__":
    main()
