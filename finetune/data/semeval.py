"""SemEval's task 3 B (Nakov et al., 2016 and 2017): which questions of a forum are related to a new question?

A file is a sequence of new questions, each repeated for every related one, whose comments are not read::

    <OrgQuestion ORGQ_ID="Q1"> <OrgQSubject>...</OrgQSubject> <OrgQBody>...</OrgQBody>
      <Thread> <RelQuestion RELQ_ID="Q1_R4" RELQ_RELEVANCE2ORGQ="PerfectMatch"> <RelQSubject>... <RelQBody>...

Some files begin with a DTD of these elements. The parser refuses excessive expansion of entities.
"""

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from .collect import SourceRow
from .dataset import DataSet, find_beside
from .filters import RAW
from .tables import read_lines

LABELS = {"PerfectMatch": 1, "Relevant": 1, "Irrelevant": 0}
PART_1, PART_2 = "SemEval2016-Task3-CQA-QL-train-part1.xml", "SemEval2016-Task3-CQA-QL-train-part2.xml"
DEV = "SemEval2016-Task3-CQA-QL-dev.xml"
TESTS = {2016: "SemEval2016-Task3-CQA-QL-test.xml", 2017: "SemEval2017-task3-English-test.xml"}


def read_semeval(path: Path) -> Iterator[SourceRow]:
    """Yields the related questions, titles joined with bodies; those of training are in two files of a folder."""
    yield from _read_questions(path)
    if path.name.startswith(PART_1):
        yield from _read_questions(find_beside(path, PART_2))


def _read_questions(path: Path) -> Iterator[SourceRow]:
    try:
        root = ElementTree.fromstring("\n".join(text for _, text in read_lines(path)))
    except ElementTree.ParseError as error:
        raise KinspanError(f"{path} line {error.position[0]}: not XML: {error}") from error
    threads = ((asked, related) for asked in root.iter("OrgQuestion") for related in asked.iter("RelQuestion"))
    for number, (asked, related) in enumerate(threads, 1):
        names, label = (asked.get("ORGQ_ID"), related.get("RELQ_ID")), related.get("RELQ_RELEVANCE2ORGQ", "")
        if not all(names):
            raise KinspanError(f"{path} RelQuestion {number}: it has no RELQ_ID, or its OrgQuestion no ORGQ_ID")
        if label not in LABELS:  # test files with -input in their names have no labels
            raise KinspanError(f"{path} RelQuestion {number}: RELQ_RELEVANCE2ORGQ {label!r}: none of {[*LABELS]}")
        question, answer = _join(asked, "OrgQSubject", "OrgQBody"), _join(related, "RelQSubject", "RelQBody")
        yield SourceRow(number, names[0], question, names[1], answer, LABELS[label])


def _join(element: ElementTree.Element, *parts: str) -> str:
    return normalise(" ".join("".join(part.itertext()) for name in parts for part in element.iter(name)))


def _make_data_set(year: int) -> DataSet:
    """Returns the data set of a year, with the training and dev questions of 2016. Most have ten related ones."""
    files = {"train": (PART_1, f"train/{PART_1}"), "dev": (DEV, f"dev/{DEV}"), "test": (TESTS[year],)}
    return DataSet(
        name=f"semeval{year}",
        help=f"Task 3 B of SemEval {year}: {PART_1} and -part2.xml, and {DEV}, in the folder or in train and dev there "
        f"(as in version 3.2), and {TESTS[year]}, with labels. Texts are titles with bodies.",
        file_names=lambda split: files[split],
        read=read_semeval,
        unit="RelQuestion",
        measured_on=RAW,  # MultiCQA counts all 88 test questions of 2017
    )


SEMEVAL2016, SEMEVAL2017 = _make_data_set(2016), _make_data_set(2017)
