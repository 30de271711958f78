"""Settings, command lines and files changed at random, for test_fuzz.py."""

import contextlib
import json
import random
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml

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


def as_flags(settings: dict[str, Any]) -> list[str]:
    flags: list[str] = []
    for name, value in settings.items():
        flags += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    return flags


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


def damaged(rng: random.Random, content: bytes) -> bytes:
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


def arguments_like(
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
    flags = [flag.replace("\x00", "") for flag in as_flags(settings)]  # a command line cannot hold it
    if in_file or rng.random() < 0.1:
        path = folder / "config.yaml"
        text = yaml.safe_dump(in_file, allow_unicode=True).encode("utf-8", "replace")
        path.write_bytes(damaged(rng, text) if rng.random() < 0.3 else text)
        flags = [*flags, "--config", rng.choice([*[str(path)] * 30, str(folder), str(folder / "none.yaml")])]
    if rng.random() < 0.06:
        extra = rng.choice(["--nonesuch", "--nonesuch=1", "x", "--", "-1", "-q", "--config", f"--{names[0]}", "--help"])
        flags.insert(rng.randrange(len(flags) + 1), extra)
    return flags
