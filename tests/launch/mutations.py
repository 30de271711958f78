"""Settings, command lines and files changed at random, for test_fuzz.py."""

import contextlib
import json
import random
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml

from data_pipeline.core.settings import ValueType

# Where a large number means a long run, nothing is wrong with it.
LENGTHS = {
    *("max_steps", "max_epochs", "max_tokens", "epochs", "seeds", "transfer_epochs", "transfer_steps", "count"),
    *("global_batch_size", "micro_batch_size", "batch_size", "search_folds", "search_batch_sizes"),
}
NUMBERS = ["-1", "0", "1", "2", "3", "0.5", "1e-3", "1e-300", "-0.0", "1e400", "nan", "inf", "-inf", "9" * 30, "2e9"]
OF_KIND = {int: ["-1", "0", "1", "3", "7", str(2**63), "9" * 30], float: NUMBERS, bool: ["true", "false"]}
WHOLE_FILES = [b"", b"\n", b"null", b"[]", b"{}", b"3", b"\x00", b"[" * 3000, b'"a"', b"a: &b [*b]"]
WORDS = ["", " ", "true", "None", "ünï ☃ 文", "a\nb", "a\x00b", "\udcff", "x" * 300, "%s{}$HOME", "[", "**", "-", "~"]
NAMES = ["absent", "mine", "binary", "empty.json", "ds.json", "model", "electra", "run", "sets", "corpus", ""]
PLACES = [*(f"{{ground}}/{name}" for name in NAMES), "/dev/null", ".", "a/b/c/d", "out"]
PLACES += ["files={ground}/sets", "wikiqa={ground}/sets", "files=", "=", "hub=a/b", "asnq={ground}/binary"]
OTHERS = ["ssp:2+sp", "all", "ssp+ssp", "ssp:0", "os:path", "1/0", "1/3", "question=a", "seeds=2", "a=b"]
ODD = [None, True, [], [[]], {}, {"a": 1}, [1, "x"], [None], float("nan"), float("-inf"), 10**400, "2001-01-01", ""]


def as_flags(settings: dict[str, Any]) -> list[str]:
    flags: list[str] = []
    for name, value in settings.items():
        flags += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    return flags


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Returns another content of a file: cut, with bytes changed, or something else altogether."""
    if content[:1] in (b"{", b"[") and rng.random() < 0.6:
        with contextlib.suppress(ValueError):  # JSON, or the first line of it
            head, _, tail = content.partition(b"\n") if b"}\n" in content else (content, b"", b"")
            return json.dumps(_altered(rng, json.loads(head))).encode() + b"\n" + tail
    cut = rng.randrange(len(content) + 1)
    number = rng.choice(NUMBERS).encode()
    return rng.choice(
        [
            content[:cut],
            content[:cut] + rng.randbytes(3) + content[cut + 3 :],
            content.replace(b":", rng.choice([b"", b": -", b"::", b": [", b": null #"]), rng.randint(1, 3)),
            content + content,
            re.sub(rb"\d+", number, content, count=rng.randint(1, 4)),
            b"\xef\xbb\xbf" + content,
            content.decode("latin-1").encode("utf-16"),
            rng.choice([*WHOLE_FILES, rng.randbytes(200)]),
        ]
    )


def _altered(rng: random.Random, value: Any) -> Any:
    """Changes one place of a nested value."""
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


def _hostile(rng: random.Random, name: str, kind: Any, is_plan: bool) -> str:
    """Returns a text to give as the setting ``name``."""
    choices = list(get_args(kind)) if get_origin(kind) is Literal else None
    likely = choices or OF_KIND.get(kind) or rng.choice([PLACES, OTHERS, WORDS])
    value = str(rng.choice(likely if rng.random() < 0.85 else rng.choice([NUMBERS, WORDS, PLACES, OTHERS])))
    with contextlib.suppress(ValueError):
        if name in LENGTHS and not is_plan and float(value) > 3:
            return "2"
    return value


def arguments_like(
    rng: random.Random, settings: dict[str, Any], kinds: dict[str, ValueType], folder: Path, least: int
) -> list[str]:
    """Returns the arguments of ``settings`` with some changed, some in a file, some left out, some that are none."""
    is_plan = bool(settings.get("dry_run"))
    names = [n for n in kinds if n not in ("dry_run", "local_rank")]
    in_file: dict[str, Any] = {}
    settings = dict(settings)
    for _ in range(rng.choice([least, least, 1, 2, 3])):
        name = rng.choice(names if rng.random() < 0.6 else [n for n in settings if n != "dry_run"] or names)
        value = _hostile(rng, name, kinds[name].type, is_plan)
        if rng.random() < 0.4:
            settings.pop(name, None)
            in_file[name] = value if name in LENGTHS else rng.choice([value, value, rng.choice(ODD)])
        else:
            settings[name] = value
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
