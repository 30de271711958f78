"""Shared by the benchmarks: flags, tables, turns, and which machine this is."""

import json
import os
import platform
import statistics
import sys
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import load_tokenizer, read_template
from objectives import parse_mixture
from objectives.mlm import MaskedLM

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "tokenizers", "deepspeed", "numpy", "pyarrow")
MAX_LENGTH = 128  # tokens of a pair, everywhere
T = TypeVar("T")


def read_model(name: str) -> tuple[str, dict[str, Any]]:
    """Returns the family and the config of a model that ``--dry_run`` knows without the hub."""
    config = json.loads((ROOT / "pretrain/planning/models" / name / "config.json").read_text())
    return config.pop("model_type"), config


def open_stream(folder: str | Path, objective: str = "ssp", masked: bool = True, **options: Any) -> PairStream:
    """Returns the pairs of an objective at its own length, or that of ``options``."""
    corpus = Corpus(folder)
    tokenizer = load_tokenizer(str(corpus.folder / "tokenizer"))
    masking = MaskedLM(tokenizer.mask_token_id, len(tokenizer)) if masked else None
    mixture = parse_mixture(objective).read_from(corpus)
    return PairStream(mixture, template=read_template(tokenizer), seed=1, masking=masking, **options)


class _Formatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter): ...


def parser(description: str | None, epilog: str = "") -> ArgumentParser:
    return ArgumentParser(description=description, epilog=epilog, formatter_class=_Formatter, allow_abbrev=False)


def run(main: Callable[[], None]) -> None:
    """Runs a benchmark; an error that the user can mend ends it with one line and status 2."""
    try:
        main()
    except KinspanError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints the first column to the left, the others to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    lines.insert(1, ["-" * w for w in widths])
    for line in lines:
        cells = [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        print("  ".join(cells).rstrip())
    print(flush=True)


def print_environment() -> None:
    """Prints the machine and the versions that the figures hold for."""
    print(json.dumps(environment()), flush=True)


def environment() -> dict[str, Any]:
    names = (x.split(":", 1)[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x)
    cpu = next(names, platform.machine())
    facts: dict[str, Any] = {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version()}
    facts |= {name: version(name) for name in PACKAGES}
    torch = sys.modules.get("torch")
    return facts | ({"gpu": torch.cuda.get_device_name()} if torch is not None and torch.cuda.is_available() else {})


def take_turns(ways: dict[str, Callable[[int], Any]], rounds: int) -> dict[str, float]:
    """Returns the median seconds of each way. What disturbs the machine hits all of them alike.

    A way is called twice in its turn, with a number each time, and the second call counts: the others have swept the
    processor's caches before the first.
    """
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            way(2 * number)
            began = time.perf_counter()
            way(2 * number + 1)
            spent[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in spent.items()}


def in_fresh_process(function: Callable[..., T], *arguments: Any) -> T:
    """Returns ``function(*arguments)`` from a new interpreter, so that nothing is warm but the file cache."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
