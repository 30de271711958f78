"""TREC-QA (Wang et al., 2007) in two forms.

As JSON lines: ``{qid, question, answer, label}``. As Jacana distributes it (Yao et al., 2013), in files that look like
XML but escape nothing. There every tag has a line of its own::

    <QApairs id='1.4'>
    <question>
    What<TAB>ethnic<TAB>group ...      the tokens; below them lines of parts of speech, dependencies and entities
    </question>
    <negative>                         or <positive>; a question may have neither
    Prison<TAB>gangs<TAB>have ...
    </negative>
    </QApairs>
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from .collect import SourceRow
from .dataset import DI_LIELLO, TANDA, DataSet, PaperCount
from .filters import CLEAN, RAW
from .tables import read_candidates, read_lines, read_table

FILES = {"train": "train-all.jsonl", "dev": "dev.raw.jsonl", "test": "test.raw.jsonl"}
PAIRS, QUESTION, POSITIVE, NEGATIVE = "QApairs", "question", "positive", "negative"
OPENING = {f"<{kind}>": kind for kind in (QUESTION, POSITIVE, NEGATIVE)}


def read_trecqa(path: Path) -> Iterator[SourceRow]:
    """Yields the candidates of a split's file."""
    return read_candidates(read_table(path), {"question_id": "qid"})


_SECTION_5 = f"{TANDA}, section 5.1"

TRECQA = DataSet(
    name="trecqa",
    help="train-all.jsonl, dev.raw.jsonl and test.raw.jsonl. Each line is {qid, question, answer, label}.",
    file_names=lambda split: (FILES[split],),
    read=read_trecqa,
    paper_counts={
        ("train", RAW): (PaperCount(_SECTION_5, 1229, 53417), PaperCount(DI_LIELLO, 1226, 53417)),
        ("dev", CLEAN): (PaperCount(_SECTION_5, 65, 1117), PaperCount(DI_LIELLO, 69, 1343)),
        ("test", CLEAN): (PaperCount(_SECTION_5, 68, 1442), PaperCount(DI_LIELLO, 68, 1442)),
    },
)


def read_jacana(path: Path) -> Iterator[SourceRow]:
    """Yields questions and candidates, their tokens joined by spaces.

    Raises KinspanError, naming the line, for a tag out of place.
    """
    question_id = question = None
    for line, kind, text in _read_elements(path):
        if kind == PAIRS:
            question_id, question = text, None
            continue
        if question_id is None or (question is None) != (kind == QUESTION):
            due = "<question>" if question_id is not None and question is None else "<QApairs id='...'>"
            raise KinspanError(f"{path} line {line}: <{kind}> where {due} should stand")
        if kind == QUESTION:
            question = text
        answer = None if kind == QUESTION else text
        yield SourceRow(line, question_id, question or "", None, answer, int(kind == POSITIVE))


def _read_elements(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yields the line of each element's tag, its kind, and its tokens; of <QApairs> the id."""
    kind = text = None
    since = 0
    for number, line in read_lines(path):
        tag = line.strip()
        if kind is None:
            if tag.startswith(f"<{PAIRS}"):
                yield number, PAIRS, tag.partition("=")[2].strip(" >\"'")
            elif tag in OPENING:
                kind, text, since = OPENING[tag], None, number
        elif tag == f"</{kind}>":
            yield since, kind, text or ""
            kind = None
        elif tag in OPENING or tag.startswith((f"<{PAIRS}", f"</{PAIRS}")):
            raise KinspanError(f"{path} line {number}: {tag} before the </{kind}> of line {since}")
        elif text is None:
            text = normalise(line)
    if kind is not None:
        raise KinspanError(f"{path} line {since}: the file ends before </{kind}>")


def _name_files(split: str) -> Sequence[str]:
    larger = ("train2393.cleanup.xml", "TRAIN-ALL.xml") if split == "train" else ()
    return (*larger, f"{split}-less-than-40.manual-edit.xml", f"{split}-less-than-40.xml", f"{split.upper()}.xml")


JACANA = DataSet(
    name="jacana",
    help="TREC-QA as distributed in jacana-qa-naacl2013-data-results: train2393.cleanup.xml (or TRAIN-ALL.xml), else "
    "train-less-than-40.manual-edit.xml (or train-less-than-40.xml, TRAIN.xml); dev-less-than-40.manual-edit.xml (or "
    "dev-less-than-40.xml, DEV.xml); test-less-than-40.manual-edit.xml (or test-less-than-40.xml, TEST.xml).",
    file_names=_name_files,
    read=read_jacana,
    paper_counts=TRECQA.paper_counts,
    ambiguous=("train",),  # one training file has all questions, the other the manually labelled ones
)
