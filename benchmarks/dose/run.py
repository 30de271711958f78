"""How many labels does pre-training save an encoder that has seen no pairs? The study's recipe, and its runner.

    python benchmarks/dose/run.py --work runs/dose --hours 8

It makes everything from nothing: starts, questions, corpus, pre-trainings. A row and a seed leave one line of JSON in
lines/ROW.jsonl, and are skipped where it is there. Stop it at any time: the same command goes on. Processes whose
--only differ may share a work folder: each pre-training is made by one, while the others wait for it.
"""

import argparse
import fcntl
import itertools
import json
import logging
import lzma
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
log = logging.getLogger(__name__)

# The recipe ---------------------------------------------------------------------------------------------------------
# Rows, seeds and comparisons were decided before the first row ran. A trial outside the project, of one seed, had shown
# the gain of the primary comparison; its pre-training, draws and seeds are in no row here.

SETS = ("selqa", "wikiqa", "trecqa")  # folders of the same names in --data
TEXTS = ("enwiki2015_AA.jsonl.xz", "wikinews.jsonl.xz")  # in --text; of the second the first NEWS documents
NEWS = 4000
PRETRAIN = {
    "objective": "ssp",
    "max_length": 64,
    "global_batch_size": 32,
    "micro_batch_size": 32,
    "learning_rate": 2.5e-4,
} | {"mlm_weight": 0.05, "eval_pairs": 500, "eval_steps": 1_000_000, "save_steps": 200, "log_steps": 50}
# One rate and one rule of stopping for all arms: the rate is that of the trial. Each update has 8 right and 24 wrong
# candidates on average. A run ends when 7 looks at dev in a row are no better, and its best state counts, the one
# before the first update too.
FINETUNE = {
    "learning_rate": 1e-4,
    "max_length": 128,
    "negatives_ratio": 3,
    "batch_size": 32,
    "micro_batch_size": 32,
} | {"epochs": 1000, "max_steps": 600, "eval_steps": 20, "patience": 6, "save_steps": 1_000_000}
MANY = {"max_steps": 1200, "eval_steps": 50, "patience": 3}  # with 200 questions or more, a look at dev costs more
# Of an update of a bi-encoder each question is compared with the right answers of 32 and two wrong ones of its own.
CONTRASTIVE = {"loss": "contrastive", "negatives_ratio": None, "own_negatives": 2, "eval_steps": 5, "max_steps": 300}
GPU = {"global_batch_size": 512, "micro_batch_size": 512, "learning_rate": 5e-4, "num_workers": 8, "save_steps": 1000}

# Pre-training and fine-tuning of each arm. One without a pre-training, or without pairs in it, has its head drawn anew.
ARMS: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "none": (None, {"fresh_head": True}),
    "ssp": ({}, {}),
    "mlm": ({"pair_weight": 0.0}, {"fresh_head": True}),
    "titles": ({"objective": "title_sentence"}, {}),
    "all": ({"objective": "all"}, {}),
    "bi": (None, CONTRASTIVE),
    "bi-ssp": ({"pair_loss": "contrastive"}, CONTRASTIVE),
    "gpu": (GPU, {}),
}
ALL = "all"  # labelled questions
PAIRS, LARGE, HUGE = 51_200, 204_800, 3_299_840
FEW = 50  # labelled questions to train on; half as many dev questions choose the best state


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


def pair_of(start: str, questions: int | str, set_name: str, arm: str = "ssp", plain: str = "none") -> list[Row]:
    """Returns the rows with and without pre-training."""
    return [Row(start, arm, PAIRS, questions, set_name), Row(start, plain, 0, questions, set_name)]


PRIMARY = pair_of("rampart", FEW, "selqa")
# In order of need: each block runs seed by seed, with this many seeds. A seed is of the pre-training, of the draw of
# questions and of the fine-tuning together.
BLOCKS: list[tuple[int, list[Row]]] = [
    (10, [*PRIMARY, *(Row("rampart", "ssp", PAIRS, 0, name) for name in SETS), *pair_of("rampart", FEW, "wikiqa")]),
    (5, [*pair_of("rampart", ALL, "selqa"), *pair_of("rampart", ALL, "wikiqa")]),
    (5, [Row("rampart", arm, PAIRS, FEW, "selqa") for arm in ("mlm", "titles")]),
    (5, [*pair_of("rampart", FEW, "selqa", "bi-ssp", "bi"), *pair_of("rampart", FEW, "wikiqa", "bi-ssp", "bi")]),
    (5, [Row("rampart", arm, pairs, 0, "selqa") for arm, pairs in (("none", 0), ("titles", PAIRS), ("bi-ssp", PAIRS))]),
    (5, [*pair_of("distilbert", FEW, "selqa"), *pair_of("distilbert", FEW, "wikiqa")]),
    (3, [Row("rampart", "ssp", LARGE, questions, "selqa") for questions in (FEW, 0)]),
    (3, [Row("rampart", "all", PAIRS, FEW, "selqa")]),
    (3, pair_of("rampart", FEW, "trecqa")),
    (3, [row for count in (100, 25, 200, 400) for row in pair_of("rampart", count, "selqa")]),
    (3, [Row("rampart", "ssp", 12_800, count, "selqa") for count in (FEW, 0, 100, 25, 200, 400, ALL)]),
    (3, [Row("rampart", "ssp", LARGE, count, "selqa") for count in (100, 25, 200, 400, ALL)]),
    # The dose of a GPU: one pre-training, whose seed is 1, and three seeds of draws and fine-tuning.
    (1, [Row("rampart", "gpu", HUGE, 0, name) for name in SETS]),
    (3, [Row("rampart", "gpu", HUGE, FEW, name) for name in SETS]),
]
# x less y in test MAP. The primary comparison is not corrected; p of the secondary ones is, over all of them (Holm),
# whether they have run or not.
SECONDARY: list[list[Row]] = [
    pair_of("rampart", FEW, "wikiqa"),
    *(pair_of("distilbert", FEW, name) for name in ("selqa", "wikiqa")),
    *(pair_of("rampart", ALL, name) for name in ("selqa", "wikiqa")),
    *([PRIMARY[0], Row("rampart", arm, PAIRS, FEW, "selqa")] for arm in ("mlm", "titles")),
    [Row("rampart", "ssp", LARGE, FEW, "selqa"), PRIMARY[0]],
    [Row("rampart", "all", PAIRS, FEW, "selqa"), PRIMARY[0]],
]


def list_jobs() -> Iterator[tuple[Row, int]]:
    """Yields rows and seeds in order of need."""
    for seeds, rows in BLOCKS:
        yield from ((row, seed) for seed in range(1, seeds + 1) for row in rows)


# The runner ---------------------------------------------------------------------------------------------------------


def kinspan(command: str, **settings: Any) -> None:
    """Runs a command of the project; ends it, with a checkpoint, where this process is ended."""
    flags: list[str] = []
    for name, value in settings.items():
        if value is not None:
            flags += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    process = subprocess.Popen([sys.executable, "-m", "launch.kinspan", command, *flags], cwd=ROOT)
    try:
        status = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if status:
        raise SystemExit(f"kinspan {command} ended with status {status}: start this again to go on")


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Waits until no other process holds the file, and holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a row."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Study:
    """The places of a study: texts and labelled sets are read, all else is made in the work folder where missing."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.work, self.lines = args.work.absolute(), args.lines.absolute()
        self.text, self.data = args.text.absolute(), args.data.absolute()

    def make_start(self, start: str) -> Path:
        """Returns the folder of the start's weights."""
        from benchmarks.dose.starts import STARTS

        folder = self.work / "starts" / start
        with held(self.work / "locks" / start):
            if not (folder / "tokenizer.json").exists():
                STARTS[start](folder)
        return folder

    def make_set(self, name: str) -> Path:
        """Returns the folder of a set's splits, filtered as fine-tuning filters them."""
        from finetune.data.filters import filter_questions
        from finetune.data.registry import load_split

        folder = self.work / "sets" / name
        with held(self.work / "locks" / name):
            for split in ("train", "dev", "test"):
                if not (folder / f"{split}.jsonl").exists():
                    whole = load_split(f"{name}={self.data / name}", split)
                    write_split(folder, filter_questions(whole, "no-all-negative" if split == "train" else "clean"))
        return folder

    def make_corpus(self, start: str) -> Path:
        """Returns the corpus in the start's tokens."""
        folder, news = self.work / "corpora" / start, self.work / "news.jsonl"
        with held(self.work / "locks" / f"corpus-{start}"):
            if not (folder / "manifest.json").exists():
                with lzma.open(self.text / TEXTS[1], "rt", encoding="utf-8") as lines:
                    news.write_text("".join(itertools.islice(lines, NEWS)), encoding="utf-8")
                texts, tokenizer = [self.text / TEXTS[0], news], self.make_start(start)
                kinspan("prepare", input=texts, tokenizer=tokenizer, title_texts=True, output_dir=folder)
        return folder

    def pretrain(self, row: Row, seed: int) -> tuple[Path, dict[str, Any]]:
        """Returns the released model that the row is fine-tuned from, and what its pre-training came to."""
        start, settings = self.make_start(row.start), ARMS[row.arm][0]
        if settings is None:
            return start, {}
        settings = {**PRETRAIN, **settings, "seed": 1 if row.arm == "gpu" else seed}
        settings["max_steps"] = row.pairs // settings["global_batch_size"]
        folder = self.work / "pretrained" / f"{row.start}-{row.arm}-{row.pairs}-{settings['seed']}"
        with held(self.work / "locks" / folder.name):
            if not (folder / "release" / "config.json").exists():
                kinspan("pretrain", model=start, corpus=self.make_corpus(row.start), output_dir=folder, **settings)
                kinspan("release", run_dir=folder, output_dir=folder / "release")
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        done = json.loads((folder / "summary.json").read_text())
        auc = done["last_validation"].get("pair_auc")
        return folder / "release", {"auc": auc, "tokens": done["tokens"], "pretrain_seconds": done["wall_seconds"]}

    def finetune(self, row: Row, seed: int, model: Path) -> tuple[Path, dict[str, Any]]:
        """Returns the fine-tuned model, and what its training came to."""
        settings = {**FINETUNE, **ARMS[row.arm][1], **(MANY if row.questions in (200, 400, ALL) else {})}
        folder = self.work / "finetuned" / f"{row.name}-{seed}"
        questions = draw(self.make_set(row.set), row.questions, seed, folder.with_suffix(".questions"))
        kinspan("finetune", data=f"files={questions}", model=model, seed=seed, output_dir=folder, **settings)
        done = json.loads((folder / "results.json").read_text())["seeds"][0]
        run, dev = done["run"], done["dev"]["map"]
        return folder / f"seed-{seed}/best", {"updates": run["best_step"], "updates_run": run["steps"], "dev_map": dev}

    def measure(self, row: Row, seed: int) -> dict[str, Any]:
        """Trains what is missing, ranks the test questions, and returns the line of a row and a seed."""
        from finetune.data.registry import load_split
        from finetune.evaluation.metrics import MAP, compute_question_metrics

        model, pretrained = self.pretrain(row, seed)
        began, tuned = time.monotonic(), {}
        if row.questions:
            model, tuned = self.finetune(row, seed, model)
        test = load_split(f"files={self.make_set(row.set)}", "test")
        ap = compute_question_metrics(test, score(model, test, seed, row.arm == "none" and not row.questions))[MAP]
        for folder in (self.work / "finetuned").glob(f"{row.name}-{seed}*"):
            shutil.rmtree(folder)
        measured = {"measure": "cosine" if row.arm.startswith("bi") else "head", "ap": ap.round(6).tolist()}
        about = {"seconds": round(time.monotonic() - began, 1), "machine": name_machine(), "commit": name_commit()}
        head = {"row": row.name, "seed": seed, **asdict(row)}
        return {**head, **measured, "map": round(float(ap.mean()), 6), **tuned, **pretrained, **about}

    def run(self, row: Row, seed: int) -> None:
        """Adds the line of a row and a seed to its file."""
        line, path = self.measure(row, seed), self.lines / f"{row.name}.jsonl"
        with held(path), path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        log.info("%s, seed %d: MAP %.4f after %.0f seconds", row.name, seed, line["map"], line["seconds"])


def draw(source: Path, count: int | str, seed: int, folder: Path) -> Path:
    """Writes so many training questions and half as many dev questions, drawn by the seed alone.

    Those of a smaller count are among those of a larger one. Returns the folder, which has no test split.
    """
    import numpy as np

    from finetune.data.registry import load_split
    from finetune.training.groups import make_generator

    for split, of_all, key in (("train", 1, 2**36), ("dev", 2, 2**36 + 1)):  # keys beyond those of epochs
        data = load_split(f"files={source}", split)
        order = make_generator(seed, key).permutation(data.num_questions)
        kept = data.num_questions if count == ALL else int(count) // of_all
        write_split(folder, data.take(np.sort(order[:kept])))
    return folder


def write_split(folder: Path, data: Any) -> None:
    """Writes a split as fine-tuning reads it, of a line for each candidate."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("question_id", "question", "answer_id", "answer", "label")
    numbers, answers = data.question_of.tolist(), (data.answer_ids.to_pylist(), data.answers.to_pylist())
    questions = ([of_question[q] for q in numbers] for of_question in (data.question_ids, data.questions))
    rows = (dict(zip(names, row, strict=True)) for row in zip(*questions, *answers, data.labels.tolist(), strict=True))
    partial = folder / f"{data.split}.partial"
    partial.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    partial.replace(folder / f"{data.split}.jsonl")


def score(model: Path, test: Any, seed: int, fresh_head: bool) -> Any:
    """Returns the scores of the candidates by a model's head, drawn anew if asked, or by its embeddings' cosine."""
    import torch

    from finetune.ranking.encode import encode_pairs
    from finetune.ranking.model import score_answers
    from finetune.ranking.ranker import load_own_tokenizer, load_ranker
    from finetune.ranking.score import score_pairs

    if not fresh_head:
        return score_answers(str(model), test, FINETUNE["max_length"])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ranker = load_ranker(str(model), seed, fresh_head=True).eval().to(device)
    return score_pairs(ranker, encode_pairs(test, load_own_tokenizer(str(model)), FINETUNE["max_length"]), device)


def name_machine() -> str:
    """Returns the GPU's name, or the processor's."""
    import torch

    from benchmarks._common import cpu_model

    return torch.cuda.get_device_name() if torch.cuda.is_available() else cpu_model()


def name_commit() -> str:
    """Returns the commit of the code; empty outside of a clone."""
    return subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()


def find_hindrance(row: Row, is_named: bool) -> str:
    """Returns why a row cannot run here; empty where it can."""
    import torch

    from pretrain.modeling.families import FAMILIES

    if row.start == "distilbert" and row.start not in FAMILIES:
        return "the family of its start cannot be trained yet"
    return "there is no GPU" if row.arm == "gpu" and not (is_named or torch.cuda.is_available()) else ""


def stop(*_: Any) -> None:
    raise SystemExit(75)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = ROOT.parent / "shared" / "data"
    parser.add_argument("--work", type=Path, required=True, help="Folder of starts, sets, corpora and trainings.")
    parser.add_argument("--lines", type=Path, default=Path(__file__).parent / "lines", help="Folder of results.")
    parser.add_argument("--text", type=Path, default=shared / "corpus", help=f"Folder with {' and '.join(TEXTS)}.")
    parser.add_argument("--data", type=Path, default=shared / "as2", help=f"Folder with {', '.join(SETS)}.")
    parser.add_argument("--only", default="*", help="Pattern of the names of rows to run.")
    parser.add_argument("--seeds", type=int, nargs="+", help="Run these seeds alone.")
    parser.add_argument("--hours", type=float, default=0, help="Stop after so many hours; the same command goes on.")
    parser.add_argument("--threads", type=int, default=1, help="Threads of each process.")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    os.environ |= {"OMP_NUM_THREADS": str(args.threads), "PYTHONPATH": str(ROOT)}
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, stop)
    signal.setitimer(signal.ITIMER_REAL, args.hours * 3600)
    study, skipped = Study(args), set()
    for row, seed in list_jobs():
        is_done = any(line["seed"] == seed for line in read_lines(study.lines / f"{row.name}.jsonl"))
        if is_done or row in skipped or not fnmatchcase(row.name, args.only) or seed not in (args.seeds or [seed]):
            continue
        if hindrance := find_hindrance(row, args.only != "*"):
            log.info("%s is skipped: %s", row.name, hindrance)
            skipped.add(row)
            continue
        study.run(row, seed)


if __name__ == "__main__":
    main()
