"""What a study is: rows, each of stages that train one after another, measures and seeds."""

import re
from dataclasses import dataclass, field
from typing import Any

PRETRAIN, TUNE, TRANSFER = "pretrain", "finetune", "transfer"  # kinds of stages; TANDA's transfer serves all data sets
KINDS = (PRETRAIN, TUNE)  # of stages that a list may have
FINETUNE, HEAD, COSINE, FUSED = "finetune", "head", "cosine", "fused"  # how a row is measured


@dataclass(frozen=True)
class StageOfRow:
    """A stage before a row's own fine-tuning: its kind, and settings of that command.

    repeats: whether it runs once for each seed of the row, with this seed, and not once for all
    """

    kind: str
    settings: dict[str, Any]
    repeats: bool = False


@dataclass(frozen=True)
class StudyRow:
    """One experiment of a study: stages that train one after another, and how what they leave is measured.

    name:     of a matrix ``START/ARM[, VARIANT]/SET``, by which comparisons call it
    settings: of launch/finetune.py, which take precedence over the study's
    paper:    the paper's figures by data set and metric
    stages:   what trains before; the row's model is then that of the last one

    The rest are of a matrix (``matrix.py``):

    title:       for pages
    start:       where the first stage begins
    set:         what it is measured on
    measure:     FINETUNE; HEAD, by the pair head as it is; COSINE, of embeddings; or FUSED, with its parts
    parts:       rows that are fine-tuned, whose scores a learned fusion adds to those of BM25 and the start's cosine
    seeds:       of all stages and the fine-tuning together
    compared:    the seeds that comparisons take
    fingerprint: names all settings, so that a line is known to be of them; None: a stored line counts by the row's name
    pretrain:    the settings of its pre-training as the file has them
    share, questions: of the training questions, the share or the number that is drawn
    mean_of:     rows whose mean it is; then it is not run
    targets:     of the line's several targets, those that it is measured on
    """

    name: str
    settings: dict[str, Any]
    paper: dict[str, dict[str, float]] = field(default_factory=dict)
    stages: tuple[StageOfRow, ...] = ()
    title: str = ""
    start: str = ""
    set: str = ""
    group: str = ""
    measure: str = FINETUNE
    seeds: tuple[int, ...] = ()
    compared: tuple[int, ...] = ()
    fingerprint: str | None = None
    pretrain: dict[str, Any] | None = None
    share: float = 1.0
    questions: int | None = None
    mean_of: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    parts: tuple["StudyRow", ...] = ()

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.]+", "-", self.name).strip("-").lower()

    @property
    def tanda(self) -> bool:
        """Whether it begins with TANDA's transfer."""
        return any(stage.kind == TRANSFER for stage in self.stages)

    @property
    def lines_of(self) -> str:
        """What the file of its lines is called; sets that are targets of one line share it."""
        return self.name.removesuffix(f"/{self.set}") if self.targets else self.name

    @property
    def arm(self) -> str:
        """Its arm and variant, as in ``ssp, head redrawn``."""
        return self.name.removeprefix(f"{self.start}/").removesuffix(f"/{self.set}")


@dataclass(frozen=True)
class Study:
    """What a study's file says.

    source:    the table of a paper that the study reproduces
    about:     what a reader of the results must keep in mind; it is printed below the tables
    settings:  of all rows
    zero_shot: whether the table has the start of the first row too, as a bi-encoder without any training
    bm25:      whether the table has BM25 too
    repeat_stages: whether what comes before fine-tuning runs once for each seed, and not once for all
    where:     what each ``$name`` in the stages stands for, unless the command says otherwise
    matrix:    the file's content, where its rows are those of arms, starts and sets; None where it lists rows
    """

    title: str
    source: str
    about: str
    settings: dict[str, Any]
    rows: list[StudyRow]
    zero_shot: bool = False
    where: dict[str, str] = field(default_factory=dict)
    bm25: bool = True
    repeat_stages: bool = False
    matrix: dict[str, Any] | None = None
