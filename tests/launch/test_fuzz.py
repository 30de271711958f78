"""Every entry, with settings and files that were mutated at random: it succeeds, or ends in one line of its own.

What is looked for: any other exception, a hang, and files changed that lay there before. The mutations are drawn from a
seeded generator, so that a failure repeats; its text has the whole invocation. Entries run in this process, where
starting one costs milliseconds, and worker processes are stood in for.
"""

import contextlib
import importlib
import io
import json
import os
import random
import re
import shutil
import sys
import time
import traceback
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoModelForSequenceClassification

from data_pipeline.core.settings import get_value_types
from launch import kinspan
from tests.launch.entries import module_of
from tests.launch.mutations import arguments_like, as_flags, damaged
from tests.synthetic import write_model

LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
SETS, QUESTIONS = "files={ground}/sets", ["{ground}/nq.jsonl"]
MODEL_AND_OUT = {"model": "{ground}/model", "output_dir": "out"}
PRETRAIN = {"corpus": "{ground}/corpus", "model": "{ground}/config", "output_dir": "out", "precision": "fp32"}
PRETRAIN |= {"max_steps": 1, "warmup_steps": 0, "eval_pairs": 5, "global_batch_size": 4, "micro_batch_size": 2}
PRETRAIN |= {"max_length": 32, "deepspeed_config": "{ground}/ds.json"}
FINETUNE = {**MODEL_AND_OUT, "data": SETS, "seeds": 1, "epochs": 1, "max_steps": 1, "max_length": 32}
FINETUNE |= {"batch_size": 4, "micro_batch_size": 4, "precision": "fp32"}
PREPARE = {"input": ["{ground}/docs.jsonl"], "tokenizer": "{ground}/model", "output_dir": "out"}
EVALUATE = {"model": ["{ground}/model"], "data": SETS, "max_length": 32, "output_dir": "out"}
CORPUS = ("corpus/manifest.json", "corpus/tokenizer/tokenizer.json", "corpus/tokenizer/tokenizer_config.json")
MODEL = ("model/config.json", "model/tokenizer_config.json", "model/model.safetensors")
ADAPTER = ("beer/adapter.json", "beer/adapter.safetensors", "beer/pair_head.safetensors")
RUN = ("run.json", "metrics.jsonl", "summary.json", "checkpoints/step-00000001/manifest.json", "model/config.json")
TUNED = ("results.json", "seed-1/scores.json", "seed-1/summary.json", "seed-1/metrics.jsonl", "seed-1/run.json")
# Of each invocation that works: the entry, its settings, and files of its own that are mutated too.
COMMANDS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "pretrain": ("pretrain", PRETRAIN, ("ds.json", "config/config.json")),
    "plan": ("pretrain", PRETRAIN | {"dry_run": True}, ("ds.json", "config/config.json", *CORPUS)),
    "resume": ("pretrain", PRETRAIN | {"output_dir": "{ground}/run"}, tuple(f"run/{name}" for name in RUN)),
    "rtd": ("pretrain", PRETRAIN | {"model": "{ground}/electra", "generator": "1/2", "dry_run": True}, ()),
    "finetune": ("finetune", FINETUNE, ("sets/train.jsonl", "sets/dev.jsonl", *MODEL)),
    "again": ("finetune", FINETUNE | {"output_dir": "{ground}/tuned"}, tuple(f"tuned/{name}" for name in TUNED)),
    "prepare": ("prepare", PREPARE, ("docs.jsonl",)),
    "release": ("release", {"run_dir": "{ground}/run", "output_dir": "out"}, tuple(f"run/{name}" for name in RUN)),
    "evaluate": ("evaluate", EVALUATE, ("sets/test.jsonl", *MODEL)),
    "study": ("study", {"study": "{ground}/study.yaml", "data": [SETS], **MODEL_AND_OUT}, ("study.yaml",)),
    "merge": ("merge_adapter", {"adapter": "{ground}/beer", "output_dir": "out"}, ADAPTER),
    "inspect_corpus": ("inspect_corpus", {"corpus": "{ground}/corpus", "sample": 2}, CORPUS),
    "inspect_pairs": ("inspect_pairs", {"corpus": "{ground}/corpus", "count": 2}, CORPUS),
    "build_asnq": ("build_asnq", {"train": QUESTIONS, "dev": QUESTIONS, "output_dir": "out"}, ("nq.jsonl",)),
}
# A text of Python's own tells the user nothing, unless it is quoted, by its type.
PYTHONS = "has no attribute|NoneType|not supported between|unexpected keyword|object is not|invalid literal"
PYTHONS += "|embedded null|out of range|positional argument|not subscriptable|must be str"
SLOWER = {"pretrain": 6, "resume": 6, "again": 6, "finetune": 6, "study": 4}
EXAMPLES = {command: SLOWER.get(command, 10) for command in COMMANDS}


class Left(BaseException):
    """Stands in for os._exit, which would end the tests."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory, tiny_corpus, tiny_documents, helpers):
    """A folder of all that the commands read, and a thesis that they are to leave alone."""
    ground = tmp_path_factory.mktemp("ground")
    for name, family in (("model", "bert"), ("config", "bert"), ("electra", "electra")):
        auto = AutoModelForSequenceClassification if name == "model" else None
        write_model(ground / name, auto, family, num_labels=1, **SMALL)
    helpers.write_jsonl(ground / "docs.jsonl", tiny_documents[:12])
    (ground / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    (ground / "sets").mkdir()
    for split in ("train", "dev", "test"):
        pairs = [(q, a) for q in range(3) for a in range(3)]
        rows = [
            {"question": f"why {split} {q}", "answer": f"river {a} stone {q}", "label": int(a == q)} for q, a in pairs
        ]
        helpers.write_jsonl(ground / f"sets/{split}.jsonl", rows)
    answer = {"long_answer": {"start_token": 0, "end_token": 6}, "short_answers": [{"start_token": 3, "end_token": 4}]}
    page = {"document_text": "<P> It is blue . </P> <P> Not blue , red . </P> <P> No . </P>"}
    page["annotations"] = [{**answer, "yes_no_answer": "NONE"}]
    helpers.write_jsonl(ground / "nq.jsonl", [{"question_text": f"colour {k}", **page} for k in range(4)])
    settings = {k: v for k, v in FINETUNE.items() if k not in ("data", "model", "output_dir")}
    rows = [{"name": "one"}, {"name": "two", "settings": {"patience": 1}}]
    (ground / "study.yaml").write_text(yaml.safe_dump({"title": "A study", "settings": settings, "rows": rows}))
    (ground / "mine").mkdir()
    (ground / "mine/thesis.tex").write_text("All is kin.")
    (ground / "binary").write_bytes(random.Random(1).randbytes(500))
    (ground / "empty.json").write_text("")
    shutil.copytree(tiny_corpus, ground / "corpus")
    beside = {"model": "{ground}/model", "output_dir": "{ground}/adapted", "adapter": "pfeiffer", "adapter_size": 2}
    for entry, settings in (
        *[("pretrain", COMMANDS["resume"][1]), ("finetune", COMMANDS["again"][1]), ("pretrain", PRETRAIN | beside)],
        ("release", {"run_dir": "{ground}/adapted", "output_dir": "{ground}/beer"}),
    ):
        with pytest.MonkeyPatch.context() as patch:
            status, said = _invoke(entry, _filled(as_flags(settings), ground), patch)
        assert status == 0, said
    return ground


@pytest.fixture(autouse=True)
def _in_one_process(monkeypatch, tmp_path, helpers, tiny_corpus):
    """No worker processes, no building of the default corpus, and tokenizers read once."""
    monkeypatch.setattr("finetune.data.builders.asnq.map_chunks", lambda work, chunks, _: map(work, chunks))
    monkeypatch.setitem(sys.modules, "ray", None)  # no cluster is started
    for module in ("launch.commands.inspect_corpus", "pretrain.planning.corpora"):
        monkeypatch.setattr(importlib.import_module(module), "default_corpus", lambda tokenizer: tiny_corpus)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("data_pipeline.prepare.readers.python_docs.find_source_files", lambda number: [])


def _invoke(entry: str, arguments: list[str], patch: pytest.MonkeyPatch) -> tuple[int, str]:
    """As the entry's own file does when it is run: its status and its stderr. Any exception but an exit comes out."""
    main = module_of(entry).main

    def leave(status: int) -> None:
        raise Left(status)

    patch.setattr(os, "_exit", leave)
    patch.setattr(sys, "argv", [f"{entry}.py", *arguments])
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    err, status = io.StringIO(), 0
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            kinspan.run(main)
        except (Left, SystemExit) as end:
            status = end.args[0] if end.args and end.args[0] is not None else 0
    return status, err.getvalue()


def _filled(flags: list[str], ground: Path) -> list[str]:
    return [flag.replace("{ground}", str(ground)) for flag in flags]


def _snapshot(folder: Path) -> dict[Path, tuple[int, int]]:
    return {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def _wrong(status: int, said: str, seconds: float, before: dict, after: dict) -> str | None:
    """What is wrong with how a command ended; None where nothing is."""
    changed = [str(p) for p in before if after.get(p) != before[p]]
    if changed:
        return f"changed or removed: {changed}"
    if seconds > 60:
        return f"took {seconds:.0f} seconds"
    if "Traceback" in said:
        return said[-1500:]
    if status == 0:
        return None
    lines = [line for line in said.splitlines() if re.match(r"(\S+\.py: )?error: ", line)]
    if status != 2 or len(lines) != 1 or not said.rstrip("\n").endswith(lines[0]):
        return f"status {status} with {len(lines)} lines of error: {said[-1500:]}"
    if re.search(PYTHONS, re.sub(r"\w+Error: .*", "", lines[0])) or len(lines[0]) < 25:
        return f"a text of Python's own: {lines[0]}"
    return None


def _fuzz(command: str, examples: range, ground: Path, folder: Path) -> None:
    entry, base, files = COMMANDS[command]
    (config_class,) = (c for n, c in vars(module_of(entry)).items() if n.endswith("Config") and is_dataclass(c))
    resumes = str(base.get("output_dir", "")).startswith("{ground}")  # in a folder of an earlier run
    failures = []
    for number in examples:
        rng = random.Random(f"{command} {number}")
        here = folder / str(number)
        here.mkdir()
        place, broken = ground, None
        if resumes or (files and rng.random() < 0.4):
            place = here / "ground"  # a copy, of which one file is broken or gone
            shutil.copytree(ground, place)
            broken = place / rng.choice(files)
            if resumes and rng.random() < 0.3:
                broken.unlink()
            else:
                broken.write_bytes(damaged(rng, broken.read_bytes()))
        kinds = get_value_types(config_class)
        arguments = _filled(arguments_like(rng, base, kinds, here, 0 if broken else 1), place)
        text = here / "config.yaml"
        if text.exists():
            text.write_bytes(text.read_bytes().replace(b"{ground}", str(place).encode()))
        before, began = {} if resumes else _snapshot(place), time.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(here)
            try:
                ended = _invoke(entry, arguments, patch)
                wrong = _wrong(*ended, time.monotonic() - began, before, {} if resumes else _snapshot(place))
            except Exception:
                wrong = traceback.format_exc()
        if wrong:
            shown = text.read_bytes()[:300] if text.exists() else b""
            damage = broken.read_bytes()[:300] if broken and broken.exists() else b""
            failures.append(
                f"{command} {number}: {wrong}\n  {' '.join(arguments)}\n  {shown!r}\n  {broken}: {damage!r}"
            )
        shutil.rmtree(here)
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_end_is_success_or_one_line(command, ground, tmp_path):
    _fuzz(command, range(EXAMPLES[command]), ground, tmp_path)
