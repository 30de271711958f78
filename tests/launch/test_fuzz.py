"""Every entry, with settings and files that were mutated at random: it succeeds, or ends in one line of its own.

What is looked for: any other exception, a hang, and files changed that lay there before. The mutations are drawn from a
seeded generator, so that a failure repeats; its text has the whole invocation. Entries run in this process, where
starting one costs milliseconds, and worker processes are stood in for.
"""

import contextlib
import dataclasses
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
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModelForSequenceClassification

from launch import _cli

LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
PRETRAIN = {
    "corpus": "{ground}/corpus",
    "model": "{ground}/config",
    "output_dir": "out",
    "max_steps": 1,
    "warmup_steps": 0,
    "eval_pairs": 5,
    "global_batch_size": 4,
    "micro_batch_size": 2,
    "max_length": 32,
    "precision": "fp32",
    "deepspeed_config": "{ground}/ds.json",
}
FINETUNE = {
    "data": "files={ground}/sets",
    "model": "{ground}/model",
    "output_dir": "out",
    "seeds": 1,
    "epochs": 1,
    "max_steps": 1,
    "max_length": 32,
    "batch_size": 4,
    "micro_batch_size": 4,
    "precision": "fp32",
}
CORPUS = ("corpus/manifest.json", "corpus/tokenizer/tokenizer.json", "corpus/tokenizer/tokenizer_config.json")
MODEL = ("model/config.json", "model/tokenizer_config.json", "model/model.safetensors")
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
    "engine": ("finetune", FINETUNE | {"deepspeed_config": "{ground}/ds.json"}, ("ds.json",)),
    "prepare": (
        "prepare",
        {"input": ["{ground}/docs.jsonl"], "tokenizer": "{ground}/model", "output": "out"},
        ("docs.jsonl",),
    ),
    "release": ("release", {"run": "{ground}/run", "output": "out"}, tuple(f"run/{name}" for name in RUN)),
    "run files": ("evaluate", {"run": ["{ground}/run.txt"], "qrels": "{ground}/qrels.txt"}, ("run.txt", "qrels.txt")),
    "evaluate": (
        "evaluate",
        {"model": ["{ground}/model"], "data": "files={ground}/sets", "max_length": 32, "output": "out"},
        ("sets/test.jsonl", *MODEL),
    ),
    "contamination": (
        "evaluate",
        {"contamination": "{ground}/corpus", "data": "files={ground}/sets"},
        ("sets/test.jsonl", *CORPUS),
    ),
    "evaluate_pairs": (
        "evaluate_pairs",
        {"model": "{ground}/model", "corpus": "{ground}/corpus", "objective": "ssp", "anchors": 2, "max_length": 32},
        (*MODEL, *CORPUS),
    ),
    "study": (
        "study",
        {
            "study": "{ground}/study.yaml",
            "data": ["files={ground}/sets"],
            "model": "{ground}/model",
            "output_dir": "out",
        },
        ("study.yaml",),
    ),
    "inspect_pairs": ("inspect_pairs", {"corpus": "{ground}/corpus", "count": 2}, CORPUS),
    "rank_document": (
        "rank_document",
        {"release": "{ground}/model", "corpus": "{ground}/corpus", "average_over": 1},
        (*MODEL, *CORPUS),
    ),
    "build_asnq": (
        "build_asnq",
        {"train": ["{ground}/nq.jsonl"], "dev": ["{ground}/nq.jsonl"], "output": "out"},
        ("nq.jsonl",),
    ),
}
# Where large means long or large for good reason, nothing is wrong with a large number.
LENGTHS = {
    *("max_steps", "max_epochs", "max_tokens", "epochs", "seeds", "transfer_epochs", "transfer_steps"),
    *("global_batch_size", "micro_batch_size", "batch_size", "search_folds", "search_batch_sizes"),
    *("count", "average_over", "anchors"),
}
WHOLE = ["-1", "0", "1", "2", "3", "7", "2000000000", str(2**63), "9" * 30]
FRACTIONS = ["-1", "0", "1", "0.5", "1e-3", "1e-300", "1e300", "nan", "inf", "-inf", "2"]
NUMBERS = ["-1", "0", "1", "2", "3", "0.5", "1e-3", "-0.0", "1e400", "nan", "inf", "-inf", "9" * 30, str(2**63), "2e9"]
OF_KIND = {int: [WHOLE], float: [FRACTIONS], bool: [["true", "false"]]}
WHOLE_FILES = [b"", b"\n", b"null", b"[]", b"{}", b"3", b"\x00", b"[" * 3000, b'"a"', b"a: &b [*b]"]
WORDS = [
    "",
    " ",
    "true",
    "None",
    "ünï ☃ 文",
    "a\nb",
    "a\x00b",
    "\udcff",
    "x" * 300,
    "%s{}$HOME",
    "[",
    "**",
    "-",
    "--x",
    "~",
]
PLACES = ["{ground}/absent", "{ground}/mine", "{ground}/binary", "{ground}/empty.json", "{ground}/ds.json", "/dev/null"]
PLACES += [
    "{ground}/model",
    "{ground}/electra",
    "{ground}/run",
    "{ground}/sets",
    "{ground}/corpus",
    "{ground}",
    ".",
    "a/b/c/d",
]
PLACES += ["files={ground}/sets", "wikiqa={ground}/sets", "files=", "=", "hub=a/b", "asnq={ground}/binary", "out"]
OTHERS = [
    "ssp:2+sp",
    "all",
    "ssp+ssp",
    "ssp:0",
    "os:path",
    "ssp:" + "9" * 9,
    "1/0",
    "1/3",
    "question=a",
    "seeds=2",
    "a=b",
]
ODD = [None, True, [], [[]], {}, {"a": 1}, [1, "x"], [None], float("nan"), float("-inf"), 10**400, "2001-01-01", ""]
# Of DeepSpeed, beside what our flags set.
DEVICES = [{"device": "cpu"}, {"device": "none"}, {"device": "tape"}, {"device": "cpu", "pin_memory": True}]
ZERO: dict[str, list[Any]] = {
    "overlap_comm": [True, False],
    "contiguous_gradients": [True, False],
    "reduce_bucket_size": [1, 1000, 500_000_000, 0, -1],
    "allgather_bucket_size": [1, 1000, 0, -1],
    "stage3_param_persistence_threshold": [0, 1000],
    "offload_optimizer": DEVICES,
    "offload_param": DEVICES,
    "sub_group_size": [1, 10**9],
    "round_robin_gradients": [True],
    "nonesuch": [1],
}
DEEPSPEED: dict[str, list[Any]] = {
    "steps_per_print": [1, 0],
    "wall_clock_breakdown": [True],
    "prescale_gradients": [True],
    "gradient_predivide_factor": [2.0, 0],
    "sparse_gradients": [True],
    "data_types": [{"grad_accum_dtype": "fp32"}, {"grad_accum_dtype": "fp8"}],
    "communication_data_type": ["fp16", "fp32", "int1"],
    "zero_allow_untested_optimizer": [False, True],
    "zero_force_ds_cpu_optimizer": [True],
    "activation_checkpointing": [{"partition_activations": True}],
    "checkpoint": [{"tag_validation": "Warn"}, {"tag_validation": "no"}],
    "nonesuch": [1],
    "amp": [{"enabled": True}],
    "dump_state": [True],
}
# A text of Python's own tells the user nothing, unless it is quoted, by its type.
PYTHONS = "has no attribute|NoneType|not supported between|unexpected keyword|object is not|invalid literal"
PYTHONS += "|embedded null|out of range|positional argument|not subscriptable|must be str"
SLOWER = {"pretrain": 14, "resume": 12, "engine": 10, "again": 12, "finetune": 12, "study": 10, "rank_document": 10}
EXAMPLES = {command: SLOWER.get(command, 18) for command in COMMANDS}


class Left(BaseException):
    """Stands in for os._exit, which would end the tests."""


@dataclasses.dataclass
class Ended:
    status: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def ground(tmp_path_factory, tiny_corpus, tiny_documents, helpers):
    """A folder of all that the commands read, and a thesis that they are to leave alone."""
    ground = tmp_path_factory.mktemp("ground")
    tokenizer = helpers.tokenizer(importlib.import_module("pretrain.defaults").default_model())
    for name, family in (("model", "bert"), ("config", "bert"), ("electra", "electra")):
        tokenizer.save_pretrained(str(ground / name))
        config = AutoConfig.for_model(family, vocab_size=len(tokenizer), num_labels=1, **SMALL)
        config.save_pretrained(str(ground / name))
        if name == "model":
            torch.manual_seed(1)
            AutoModelForSequenceClassification.from_config(config).save_pretrained(str(ground / name))
    helpers.write_jsonl(ground / "docs.jsonl", tiny_documents[:12])
    (ground / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    (ground / "sets").mkdir()
    for split in ("train", "dev", "test"):
        rows = [
            {"question": f"why {split} {q}", "answer": f"river {a} stone {q}", "label": int(a == q)}
            for q in range(3)
            for a in range(3)
        ]
        helpers.write_jsonl(ground / f"sets/{split}.jsonl", rows)
    (ground / "run.txt").write_text("".join(f"q{k % 3} Q0 c{k} {k} {k / 2} tag\n" for k in range(9)))
    (ground / "qrels.txt").write_text("".join(f"q{k % 3} 0 c{k} {k % 2}\n" for k in range(9)))
    answer = {"long_answer": {"start_token": 0, "end_token": 6}, "short_answers": [{"start_token": 3, "end_token": 4}]}
    page = {"document_text": "<P> It is blue . </P> <P> Not blue , red . </P> <P> No . </P>"}
    annotations = [{**answer, "yes_no_answer": "NONE"}]
    helpers.write_jsonl(
        ground / "nq.jsonl", [{"question_text": f"colour {k}", **page, "annotations": annotations} for k in range(4)]
    )
    settings = {k: v for k, v in FINETUNE.items() if k not in ("data", "model", "output_dir")}
    rows = [{"name": "one"}, {"name": "two", "settings": {"loss": "listwise"}}]
    (ground / "study.yaml").write_text(yaml.safe_dump({"title": "A study", "settings": settings, "rows": rows}))
    (ground / "mine").mkdir()
    (ground / "mine/thesis.tex").write_text("All is kin.")
    (ground / "binary").write_bytes(random.Random(1).randbytes(500))
    (ground / "empty.json").write_text("")
    shutil.copytree(tiny_corpus, ground / "corpus")
    for entry, settings in (("pretrain", COMMANDS["resume"][1]), ("finetune", COMMANDS["again"][1])):
        with pytest.MonkeyPatch.context() as patch:
            ended = _invoke(entry, _filled(_as_flags(settings), ground), patch)
        assert ended.status == 0, ended.stderr
    return ground


@pytest.fixture(autouse=True)
def _in_one_process(monkeypatch, tmp_path, helpers, tiny_corpus):
    """No hub, no worker processes, no building of the default corpus, and tokenizers read once."""
    from huggingface_hub import constants

    def at_once(make_worker, arguments, chunks, num_workers):
        yield from map(make_worker(*arguments), chunks)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setattr("data_pipeline.prepare.local", at_once)
    monkeypatch.setattr("finetune.build_asnq.local", at_once)
    for module in ("launch.inspect_pairs", "launch.rank_document", "pretrain.setup_run"):
        monkeypatch.setattr(importlib.import_module(module), "default_corpus", lambda tokenizer: tiny_corpus)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("data_pipeline.readers.python_documents", lambda workers: iter(()))


def _invoke(entry: str, arguments: list[str], patch: pytest.MonkeyPatch) -> Ended:
    """As the entry's own file does when it is run; any exception but an exit comes out."""
    main = importlib.import_module(f"launch.{entry}").main

    def leave(status: int) -> None:
        raise Left(status)

    patch.setattr(os, "_exit", leave)
    patch.setattr(sys, "argv", [f"{entry}.py", *arguments])
    for name in LAUNCHER_VARIABLES:
        os.environ.pop(name, None)
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            _cli.run(main)
        except (Left, SystemExit) as end:
            status = end.args[0] if end.args and end.args[0] is not None else 0
    return Ended(status, out.getvalue(), err.getvalue())


def _filled(flags: list[str], ground: Path) -> list[str]:
    return [flag.replace("{ground}", str(ground)) for flag in flags]


def _as_flags(settings: dict[str, Any]) -> list[str]:
    flags: list[str] = []
    for name, value in settings.items():
        flags += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    return flags


def _kind_of(entry: str) -> dict[str, Any]:
    """The entry's settings, by name: their types."""
    module = importlib.import_module(f"launch.{entry}")
    (config,) = (
        c
        for n, c in vars(module).items()
        if n.endswith("Config") and dataclasses.is_dataclass(c) and n.lower().startswith(entry.split("_")[0][:4])
    )
    return get_type_hints(config)


def _hostile(rng: random.Random, name: str, hint: Any, dry: bool) -> str:
    """A text to give as the setting ``name``."""
    kinds = [k for k in (hint, *get_args(hint)) if k is not type(None)]
    choices = [str(c) for k in kinds if get_origin(k) is Literal for c in get_args(k)]
    mine = next((pool for kind, pool in OF_KIND.items() if kind in kinds), [PLACES, OTHERS, WORDS])
    mine = [choices] if choices else mine
    value = rng.choice(rng.choice(mine if rng.random() < 0.85 else [NUMBERS, WORDS, PLACES, OTHERS]))
    if name in LENGTHS and not dry:
        with contextlib.suppress(ValueError):
            if float(value) > 3:
                return "2"
    return value


def _broken(rng: random.Random, content: bytes) -> bytes:
    """Another content of a file: cut, with bytes changed, or something else altogether."""
    if content.startswith(b'{"zero_optimization"') and rng.random() < 0.7:
        return json.dumps(_deepspeed(rng)).encode()
    if content[:1] in (b"{", b"[") and rng.random() < 0.6:
        with contextlib.suppress(ValueError):  # JSON, or the first line of it
            head, _, tail = content.partition(b"\n") if b"}\n" in content else (content, b"", b"")
            return json.dumps(_altered(rng, json.loads(head))).encode() + b"\n" + tail
    how = rng.randrange(7)
    if how == 0:
        return content[: rng.randrange(len(content) + 1)]
    if how == 1:
        cut = rng.randrange(len(content) + 1)
        return content[:cut] + rng.randbytes(3) + content[cut + 3 :]
    if how == 2:
        return content.replace(b":", rng.choice([b"", b": -", b"::", b": [", b": null #"]), rng.randint(1, 3))
    if how == 3:
        return content + content
    if how == 4:
        return re.sub(rb"\d+", lambda m: rng.choice(NUMBERS).encode(), content, count=rng.randint(1, 4))
    if how == 5:
        return "\ufeff".encode() + content if rng.random() < 0.5 else content.decode("latin-1").encode("utf-16")
    return rng.choice([*WHOLE_FILES, rng.randbytes(200)])


def _deepspeed(rng: random.Random) -> dict[str, Any]:
    """Settings of DeepSpeed, most of them right."""

    def some(of: dict[str, list[Any]]) -> dict[str, Any]:
        names = rng.sample(list(of), rng.randint(1, min(3, len(of))))
        return {n: rng.choice(of[n] if rng.random() < 0.75 else ODD) for n in names}

    zero = {"stage": rng.choice([0, 1, 2, 3])} if rng.random() < 0.9 else {}
    out: dict[str, Any] = {"zero_optimization": zero | some(ZERO)}
    return out | (some(DEEPSPEED) if rng.random() < 0.6 else {})


def _altered(rng: random.Random, value: Any) -> Any:
    """One place of a nested value changed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        how = rng.random()
        if how < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if how < 0.3:
            return {**value, rng.choice(["extra", "", "stage", "file", "zero_optimization"]): rng.choice(ODD)}
        return {**value, key: _altered(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.6:
        place = rng.randrange(len(value))
        return [*value[:place], _altered(rng, value[place]), *value[place + 1 :]]
    return rng.choice([*ODD, *NUMBERS, -1, 0, 1, 2, 3, 0.5, 1e9, 1e-9])


def _of_yaml(rng: random.Random, text: str) -> Any:
    """What stands for a setting in a file: typed as YAML has it, or of a type that no setting has."""
    if rng.random() < 0.3:
        return rng.choice(ODD)
    with contextlib.suppress(yaml.YAMLError):
        return yaml.safe_load(text)
    return text


def _example(
    rng: random.Random, settings: dict[str, Any], kinds: dict[str, Any], folder: Path, least: int
) -> list[str]:
    """Arguments: those of ``settings`` with some changed, some in a file, some left out, some that are none."""
    dry = bool(settings.get("dry_run"))
    names = [n for n in kinds if n not in ("dry_run", "local_rank")]
    in_file: dict[str, Any] = {}
    settings = dict(settings)
    for _ in range(rng.choice([least, least, 1, 2, 3])):
        name = rng.choice(names if rng.random() < 0.6 else [n for n in settings if n != "dry_run"] or names)
        value: Any = _hostile(rng, name, kinds[name], dry)
        if rng.random() < 0.4:
            settings.pop(name, None)
            in_file[name] = _of_yaml(rng, value)
            if name in LENGTHS and not dry and isinstance(in_file[name], int | float) and in_file[name] > 3:
                in_file[name] = 2
        else:
            settings[name] = [value, "b"] if rng.random() < 0.04 else value
    needless = [n for n in settings if n not in ("dry_run", "model", *LENGTHS)]  # those would make it long
    if needless and rng.random() < 0.05:
        settings.pop(rng.choice(needless))
    flags = [flag.replace("\x00", "") for flag in _as_flags(settings)]  # a command line cannot hold it
    if in_file or rng.random() < 0.1:
        path = folder / "config.yaml"
        text = yaml.safe_dump(in_file, allow_unicode=True).encode("utf-8", "replace")
        path.write_bytes(_broken(rng, text) if rng.random() < 0.3 else text)
        flags = [*flags, "--config", rng.choice([*[str(path)] * 30, str(folder), str(folder / "none.yaml")])]
    if rng.random() < 0.06:
        extra = rng.choice(["--nonesuch", "--nonesuch=1", "x", "--", "-1", "-q", "--config", f"--{names[0]}", "--help"])
        flags.insert(rng.randrange(len(flags) + 1), extra)
    return flags


def _snapshot(folder: Path) -> dict[Path, tuple[int, int]]:
    return {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def _wrong(ended: Ended, seconds: float, before: dict, after: dict) -> str | None:
    """What is wrong with how a command ended; None where nothing is."""
    changed = [str(p) for p in before if after.get(p) != before[p]]
    if changed:
        return f"changed or removed: {changed}"
    if seconds > 60:
        return f"took {seconds:.0f} seconds"
    if "Traceback" in ended.stderr:
        return "a traceback"
    if ended.status == 0:
        return None
    lines = [line for line in ended.stderr.splitlines() if re.match(r"(\S+\.py: )?error: ", line)]
    if ended.status != 2 or len(lines) != 1 or not ended.stderr.rstrip("\n").endswith(lines[0]):
        return f"status {ended.status} with {len(lines)} lines of error"
    if re.search(PYTHONS, re.sub(r"\w+Error: .*", "", lines[0])) or len(lines[0]) < 25:
        return "a text of Python's own"
    return None


def _fuzz(command: str, examples: range, ground: Path, folder: Path) -> None:
    entry, base, files = COMMANDS[command]
    goes_on = str(base.get("output_dir", "")).startswith("{ground}")  # in a folder of an earlier run
    kinds = _kind_of(entry)
    failures = []
    for number in examples:
        rng = random.Random(f"{command} {number}")
        here = folder / str(number)
        here.mkdir()
        place, broken = ground, None
        if goes_on or (files and rng.random() < 0.4):
            place = here / "ground"  # a copy, of which one file is broken or gone
            shutil.copytree(ground, place)
            broken = place / rng.choice(files)
            if goes_on and rng.random() < 0.3:
                broken.unlink()
            else:
                broken.write_bytes(_broken(rng, broken.read_bytes()))
        arguments = _filled(_example(rng, base, kinds, here, 0 if broken else 1), place)
        text = here / "config.yaml"
        if text.exists():
            text.write_bytes(text.read_bytes().replace(b"{ground}", str(place).encode()))
        before, began = {} if goes_on else _snapshot(place), time.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(here)
            try:
                ended = _invoke(entry, arguments, patch)
                wrong = _wrong(ended, time.monotonic() - began, before, {} if goes_on else _snapshot(place))
            except Exception as error:
                ended, wrong = Ended(1, "", traceback.format_exc()), f"{type(error).__name__}: {error}"
        if os.environ.get("FUZZ_TELL"):
            with open(os.environ["FUZZ_TELL"], "a", errors="backslashreplace") as tell:
                last = ended.stderr.strip().splitlines()[-1:] if ended.status else ""
                tell.write(f"{command} {number} {time.monotonic() - began:.2f} {ended.status} {last} {wrong or ''}\n")
        if wrong:
            shown = text.read_bytes()[:300] if text.exists() else b""
            of_file = f"\n  {broken}: {broken.read_bytes()[:300]!r}" if broken and broken.exists() else f"\n  {broken}"
            invocation = f"{entry}.py {' '.join(arguments)}\n  {shown!r}{of_file}\n  {ended.stderr[-1500:]}"
            failures.append(f"{command} {number}: {wrong[:600]}\n  {invocation}")
        shutil.rmtree(here)
    assert not failures, f"{len(failures)} of {len(examples)}:\n" + "\n".join(failures)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_end_is_success_or_one_line(command, ground, tmp_path):
    _fuzz(command, range(EXAMPLES[command]), ground, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_end_is_success_or_one_line_at_length(command, ground, tmp_path):
    _fuzz(command, range(EXAMPLES[command], 11 * EXAMPLES[command]), ground, tmp_path)
