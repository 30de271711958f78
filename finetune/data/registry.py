"""The data sets of answer sentence selection, each named by a line ``NAME=PLACE``.

To add a public data set, write a module like ``selqa.py``, which says how its files are called and yields their rows,
and name it in PUBLIC below; ``--help``, messages, counts and studies follow from there.
"""

import json
import logging
from pathlib import Path
from textwrap import fill

from data_pipeline.core.errors import KinspanError

from . import files
from .answers import NEGATIVE_GRADES, AnswerSet
from .as2 import ASNQ, TRECQA, WIKIQA
from .dataset import DataSet
from .filters import filter_questions, find_kept
from .multicqa import ASKUBUNTU, INSURANCEQA, INSURANCEQA_V2, WIKIPASSAGEQA
from .selqa import SELQA
from .semeval import SEMEVAL2016, SEMEVAL2017
from .techqa import ASKUBUNTU_QA, TECHQA, TECHQA_POOL

log = logging.getLogger(__name__)

PUBLIC: dict[str, DataSet] = {
    data_set.name: data_set
    for data_set in (
        *(WIKIQA, TRECQA, SELQA, ASNQ, INSURANCEQA, TECHQA, TECHQA_POOL, ASKUBUNTU_QA),
        *(INSURANCEQA_V2, WIKIPASSAGEQA, SEMEVAL2016, SEMEVAL2017, ASKUBUNTU),
    )
}
NAMES = (*PUBLIC, files.NAME, files.HUB)
# By data set, split and filter: the questions and pairs that each paper counts; null: it does not say. Garg et al. do
# not divide ASNQ's 2,672 development questions into dev and test; Di Liello et al. do.
PAPER_COUNTS = json.loads(Path(__file__).with_name("paper_counts.json").read_text(encoding="utf-8"))

_LINES = {f"{name}=FOLDER": data_set.help for name, data_set in PUBLIC.items()} | files.HELP
_WIDTH = max(map(len, _LINES)) + 4
SPECS = "data sets (NAME=PLACE; files may be compressed: .gz, .xz, .zst):\n" + "\n".join(
    fill(f"  {spec:<{_WIDTH - 2}}{text}", 120, subsequent_indent=" " * _WIDTH, break_on_hyphens=False)
    for spec, text in _LINES.items()
)


def load_split(
    spec: str, split: str, columns: dict[str, str] | None = None, negative_labels: tuple[int, ...] = NEGATIVE_GRADES
) -> AnswerSet:
    """Returns one split of a data set, unfiltered, and logs what is left out of it.

    columns:         for files= and hub=: the names of columns that differ from ours
    negative_labels: ASNQ's labels that count as negative (Garg et al., 2020, table 6); other candidates are left out

    Raises MissingSplit if the data set lacks it.
    """
    name, place = _parse_spec(spec)
    if columns and name in PUBLIC:
        raise KinspanError(f"--columns: {spec} has fixed names; only files= and hub= take others")
    if name == files.HUB:
        return files.load_hub(place, split, columns or {})
    if name == files.NAME:
        return files.load_files(Path(place), split, columns or {})
    return PUBLIC[name].load(Path(place), split, negative_labels)


def load_filtered(
    spec: str,
    split: str,
    mode: str,
    columns: dict[str, str] | None = None,
    negative_labels: tuple[int, ...] = NEGATIVE_GRADES,
) -> AnswerSet:
    """Returns the questions of a split that the filter ``mode`` keeps; logs their counts beside those of papers."""
    unfiltered = load_split(spec, split, columns, negative_labels)
    data = filter_questions(unfiltered, mode)
    sizes = data.num_questions, data.num_pairs
    log.info("%s %s (%s): %s questions, %s pairs", data.name, split, mode, *(f"{size:,}" for size in sizes))
    for paper, counts in PAPER_COUNTS.get(data.name, {}).get(f"{split}/{mode}", {}).items():
        log.info("  %s: %s questions, %s pairs", paper, *("?" if count is None else f"{count:,}" for count in counts))
    papers = find_measure(spec)[1]
    if papers and split != "train" and int(find_kept(unfiltered, papers).sum()) != data.num_questions:
        log.warning("--eval_filter %s: papers measure %s with %s", mode, data.name, papers)
    return data


def expect_data(*specs: str | None) -> None:
    """Raises KinspanError for a spec without a data set; None passes. Called before torch, which takes seconds."""
    for spec in filter(None, specs):
        name, place = _parse_spec(spec)
        if name != files.HUB and not Path(place).exists():
            raise KinspanError(f"{spec}: there is no such folder or file")
        if name == files.NAME:
            files.expect_tables(Path(place))


def _parse_spec(spec: str) -> tuple[str, str]:
    """Returns the name and the place of ``NAME=PLACE``."""
    name, _, place = spec.partition("=")
    if name not in NAMES and Path(spec).exists():
        raise KinspanError(f"{spec}: did you mean {files.NAME}={spec}?")
    if name not in NAMES or not place:
        raise KinspanError(f"{spec}: not a data set; write NAME=PLACE, where NAME is one of {', '.join(NAMES)}")
    return name, place


def parse_columns(text: str | None) -> dict[str, str] | None:
    """Parses ``question=query,label=relevant``; None stays None. Raises KinspanError if it is malformed."""
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and column for name, _, column in pairs):
        raise KinspanError(f"--columns {text}: write FIELD=COLUMN,FIELD=COLUMN, such as question=query")
    return {name: column for name, _, column in pairs}


def find_measure(spec: str) -> tuple[bool, str | None]:
    """Returns how papers measure a data set: whether by P@1, and on which questions (see DataSet.measured_on)."""
    data_set = PUBLIC.get(spec.partition("=")[0])
    return (data_set.accuracy, data_set.measured_on) if data_set else (False, None)
