"""What the benchmarks share: flags, a table, the line of JSON at the end, and which machine this is."""

import json
import os
import platform
import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from data_pipeline.core.errors import KinspanError
from data_pipeline.corpus import Corpus
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import PairTemplate
from objectives import OBJECTIVES, parse_mixture
from objectives.mlm import MaskedLM

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "tokenizers", "deepspeed", "numpy", "pyarrow")
MAX_LENGTH = 128  # tokens of a pair, everywhere
CORPUS_HELP = "Corpus folder, as launch/prepare.py writes it."
T = TypeVar("T")


class _Formatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    pass


def parser(description: str | None, epilog: str = "") -> ArgumentParser:
    return ArgumentParser(description=description, epilog=epilog, formatter_class=_Formatter, allow_abbrev=False)


def run(main: Callable[[], None]) -> None:
    """Runs a benchmark: what the user can mend ends as one line and status 2, Ctrl-C as status 130."""
    try:
        main()
    except KinspanError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os._exit(0)
    except KeyboardInterrupt:
        sys.exit(130)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """First column to the left, the others to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    lines.insert(1, ["-" * w for w in widths])
    for line in lines:
        cells = [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        print("  ".join(cells).rstrip())


def report(name: str, figures: dict[str, Any]) -> None:
    """The last line: every figure, and the machine and versions that they hold for."""
    rounded = {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in figures.items()}
    sys.stdout.flush()
    print(json.dumps({"benchmark": name, **rounded, "environment": environment()}), flush=True)


def environment() -> dict[str, Any]:
    facts: dict[str, Any] = {"cpu": cpu_model(), "cores": os.cpu_count(), "python": platform.python_version()}
    for name in PACKAGES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = None
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), platform.machine())


def pin_to_one_core() -> None:
    """This process and those that it starts later; the last core, as the first takes more interrupts."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")


def in_fresh_process(function: Callable[..., T], *arguments: Any) -> T:
    """``function(*arguments)`` in a new interpreter, so that nothing is warm but the file cache."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def rss_anon() -> float:
    """Memory of this process, in MB, that no file stands behind: mapped shards do not count."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def ssp_stream(corpus: Corpus, template: PairTemplate, masking: MaskedLM | None, seed: int, **more: Any) -> PairStream:
    mixture = parse_mixture("ssp").read_from(corpus)
    return PairStream(mixture, template=template, seed=seed, max_length=MAX_LENGTH, masking=masking, **more)


def names_of_objectives() -> list[str]:
    """Every objective, and the paper's three together."""
    return [*OBJECTIVES, "all"]


def pairs_as_text(stream: PairStream, tokenizer: Any, first: int, count: int) -> list[tuple[str, str]]:
    """The pairs ``first .. first + count`` as a loader that tokenises reads them: two whole texts each."""

    def text(ids: Any) -> str:
        return tokenizer.decode(ids, clean_up_tokenization_spaces=False).strip()

    texts = []
    for rows in stream.pairs(first, count):
        for row in range(len(rows.index)):
            a, b = (rows.block.read_tokens(spans[row]) for spans in rows.texts)
            texts.append((text(a), text(b)))
    return texts


def rows_of(encoded: Any) -> list[dict[str, Any]]:
    """A tokenizer's batch as the list of examples that a collator takes."""
    return [{name: column[k] for name, column in encoded.items()} for k in range(len(encoded["input_ids"]))]
