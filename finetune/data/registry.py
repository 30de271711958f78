"""The data sets of answer sentence selection, each named by a line ``NAME=PLACE``.

To add a public data set, write a module like ``wikiqa.py``, which says how its files are called and yields their rows,
and name it in PUBLIC below; ``--help``, messages, counts and studies follow from there.
"""

from pathlib import Path
from textwrap import fill

from data_pipeline.core.errors import KinspanError

from . import files
from .answers import NEGATIVE_GRADES, AnswerSet
from .asnq import ASNQ
from .dataset import DataSet, PaperCount
from .filters import find_kept
from .insuranceqa import INSURANCEQA, INSURANCEQA_V2
from .multicqa import ASKUBUNTU, WIKIPASSAGEQA
from .selqa import SELQA
from .semeval import SEMEVAL2016, SEMEVAL2017
from .techqa import ASKUBUNTU_QA, TECHQA, TECHQA_POOL
from .trecqa import JACANA, TRECQA
from .wikiqa import WIKIQA

PUBLIC: dict[str, DataSet] = {
    data_set.name: data_set
    for data_set in (
        *(WIKIQA, TRECQA, JACANA, SELQA, ASNQ, INSURANCEQA, TECHQA, TECHQA_POOL, ASKUBUNTU_QA),
        *(INSURANCEQA_V2, WIKIPASSAGEQA, SEMEVAL2016, SEMEVAL2017, ASKUBUNTU),
    )
}
NAMES = (*PUBLIC, files.NAME, files.HUB)


_LINES = {f"{name}=FOLDER": data_set.help for name, data_set in PUBLIC.items()} | files.HELP
_WIDTH = max(map(len, _LINES)) + 4
SPECS = "\n".join(
    [
        "data sets (NAME=PLACE; files may be compressed: .gz, .xz, .zst):",
        *(
            fill(f"  {spec:<{_WIDTH - 2}}{text}", 120, subsequent_indent=" " * _WIDTH, break_on_hyphens=False)
            for spec, text in _LINES.items()
        ),
    ]
)


def load_split(
    spec: str,
    split: str,
    columns: dict[str, str] | None = None,
    negative_labels: tuple[int, ...] = NEGATIVE_GRADES,
) -> tuple[AnswerSet, list[str]]:
    """Returns one split of a data set, unfiltered, and a note of one line for everything left out or odd in it.

    columns:         for files= and hub=: how the columns question, answer, label, question_id and answer_id are called
                     where they have other names
    negative_labels: ASNQ's labels that count as negative (Garg et al., 2020, table 6); other candidates are left out

    Raises MissingSplit where the data set lacks it.
    """
    name, place = _parse_spec(spec)
    if columns and name in PUBLIC:
        raise KinspanError(f"{spec}: its columns have fixed names; only files= and hub= take others")
    if not negative_labels or not set(negative_labels) <= set(NEGATIVE_GRADES):
        raise KinspanError(f"negative labels {list(negative_labels)}: must be one or more of 1, 2 and 3")
    if name == files.HUB:
        return files.load_hub(place, split, columns or {})
    if name == files.NAME:
        return files.load_files(Path(place), split, columns or {})
    return PUBLIC[name].load(Path(place), split, negative_labels)


def expect_data(*specs: str | None) -> None:
    """Raises KinspanError for what names no data set, or a place where there is none; None passes.

    Commands call it before they import torch, which takes seconds.
    """
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
    """Parses ``question=query,label=relevant``; None stays None. Raises KinspanError where it is malformed."""
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and equals and column for name, equals, column in pairs):
        raise KinspanError(f"--columns {text}: write FIELD=COLUMN,FIELD=COLUMN, such as question=query")
    return {name: column for name, _, column in pairs}


def find_measure(spec: str) -> tuple[bool, str | None]:
    """Returns how papers measure a data set: whether by P@1, and on which questions (see DataSet.measured_on)."""
    data_set = PUBLIC.get(spec.partition("=")[0])
    return (data_set.accuracy, data_set.measured_on) if data_set else (False, None)


def get_paper_counts(data: AnswerSet, mode: str) -> tuple[PaperCount, ...]:
    """Returns what papers say that this split holds after the filter ``mode``; empty where none says it."""
    return PUBLIC[data.name].paper_counts.get((data.split, mode), ()) if data.name in PUBLIC else ()


def describe_counts(data: AnswerSet, mode: str) -> list[str]:
    """Returns lines with the questions and pairs that ``data`` has after the filter ``mode``, and papers' counts."""
    papers = get_paper_counts(data, mode)
    same = [c.paper for c in papers if c.questions == data.num_questions and c.pairs in (data.num_pairs, None)]
    line = f"{data.name} {data.split} ({mode}): {_format_counts(data.num_questions, data.num_pairs)}"
    agreed = f", as in {' and '.join(same)}" if same else ""
    return [
        line + agreed,
        *(f"  {c.paper} has {_format_counts(c.questions, c.pairs)}" for c in papers if c.paper not in same),
    ]


def describe_measure(whole: AnswerSet, kept: AnswerSet, mode: str) -> list[str]:
    """Returns a line where the questions that the filter ``mode`` keeps are not those that papers measure on."""
    papers = find_measure(whole.name)[1]
    if papers is None or whole.split == "train":
        return []
    count = int(find_kept(whole, papers).sum())
    if count == kept.num_questions:
        return []
    return [f"  papers measure {whole.name} on the {count:,} questions of --eval_filter {papers}, not of {mode}"]


def _format_counts(questions: int, pairs: int | None) -> str:
    return f"{questions:,} questions" + (f", {pairs:,} pairs" if pairs is not None else "")
