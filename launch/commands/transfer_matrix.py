"""Measures how well models of many sources rank on many targets that they were not trained for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from data_pipeline.files import write_atomically
from finetune.data.registry import SPECS
from launch._cli import parse, run
from pretrain.runtime.settings import ABOVE_0, REQUIRED, setting

DESCRIPTION = """Ranks every target's questions by every source's model, zero-shot, beside BM25, TF-IDF and, where
given, models that were fine-tuned on the target: figures 1 to 3 and table 2 of MultiCQA (Rücklé et al., 2020) of your
own sources and targets.

A cell that was measured is kept in OUTPUT_DIR/cells; the same command again measures what is new or has changed.
Questions are those that papers measure on; of other data sets, those that have a right and a wrong candidate. Writes
OUTPUT_DIR/matrix.html and matrix.csv, and prints the table."""

EPILOG = f"""examples:
  kinspan evaluate transfer --sources beer=releases/beer physics=releases/physics \\
      --targets wikiqa=wikiqa=data/WikiQACorpus cooking=files=data/las-cooking --accuracy cooking --output_dir matrix
  kinspan evaluate transfer --sources beer=releases/beer physics=releases/physics math=releases/math \\
      --corpora beer=forums/beer physics=forums/physics math=forums/math --targets insuranceqa=files=data/insuranceqa \\
      --in_domain insuranceqa=runs/insuranceqa/seed-1/best --output_dir matrix

A target is NAME=SPEC, where SPEC is one of the following:
{SPECS}"""


@dataclass
class MatrixConfig:
    """Flags of this entry."""

    sources: list[str] = setting(REQUIRED, "Models, each NAME=FOLDER.")
    targets: list[str] = setting(REQUIRED, "Test sets, each NAME=SPEC, such as wikiqa=wikiqa=data/WikiQACorpus.")
    output_dir: str = setting(REQUIRED, "Folder for the page, the table and the cells.")
    accuracy: list[str] = setting(
        [], "Names of targets that are measured by P@1, beside InsuranceQA, which always is; the others by MAP."
    )
    corpora: list[str] = setting(
        [], "Corpora of the sources, each NAME=FOLDER: for their sizes, and how alike they are to the targets."
    )
    in_domain: list[str] = setting([], "Models that were fine-tuned on a target, each TARGET=FOLDER.")
    split: Literal["test", "dev"] = setting("test", "Which questions of the targets.")
    max_questions: int | None = setting(
        None, "A sample of so many questions of each target, always the same ones. Without it: all.", within=ABOVE_0
    )
    max_length: int = setting(300, "Most tokens of a question and a candidate.", within=ABOVE_0)


def main() -> None:
    config = parse(MatrixConfig, DESCRIPTION, EPILOG)
    sources, targets = (read_names(flag, getattr(config, flag)) for flag in ("sources", "targets"))
    corpora, in_domain = (read_names(flag, getattr(config, flag)) for flag in ("corpora", "in_domain"))
    check_names("corpora", corpora, sources, needs_all=True)
    check_names("in_domain", in_domain, targets, needs_all=False)
    from finetune.transfer.domains import compare_domains
    from finetune.transfer.fusion import weigh_sources
    from finetune.transfer.matrix import load_targets, measure_matrix
    from finetune.transfer.page import format_csv, format_table, render_page

    folder = Path(config.output_dir)
    opened = {name: Corpus(corpora[name]) for name in sources if name in corpora}
    loaded = load_targets(targets, config.split, set(config.accuracy), config.max_questions)
    matrix = measure_matrix(sources, loaded, in_domain, folder / "cells", config.max_length, print)
    fused = weigh_sources(sources, loaded, folder / "cells", config.max_length, print)
    sizes = similarity = None
    if opened:
        sizes = np.array([corpus.manifest.totals["documents"] for corpus in opened.values()])
        similarity = compare_domains(opened, {target.name: target.data.questions for target in loaded})
    print(format_table(matrix))
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "matrix.csv", format_csv(matrix, sizes, similarity))
    write_atomically(folder / "matrix.html", render_page("Transfer without labels", matrix, sizes, similarity, fused))
    print(f"page: {folder / 'matrix.html'}")


def read_names(flag: str, texts: list[str]) -> dict[str, str]:
    """What a flag of NAME=VALUE names. Raises KinspanError where a name is missing or stands twice."""
    named: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise KinspanError(f"--{flag} {text}: write NAME={'SPEC' if flag == 'targets' else 'FOLDER'}")
        if name in named:
            raise KinspanError(f"--{flag} {text}: {name} stands twice")
        named[name] = value
    return named


def check_names(flag: str, given: dict[str, str], known: dict[str, str], needs_all: bool) -> None:
    """Raises KinspanError where a flag names what is not there, or not all that it must."""
    if unknown := [name for name in given if name not in known]:
        raise KinspanError(f"--{flag} {unknown[0]}: there is no such name; there are {', '.join(known)}")
    if needs_all and given and (missing := [name for name in known if name not in given]):
        raise KinspanError(f"--{flag}: {', '.join(missing)} is missing: give the corpus of every source, or of none")


if __name__ == "__main__":
    run(main)
