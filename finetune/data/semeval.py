"""SemEval's task 3 B (Nakov et al., 2016 and 2017): which questions of a forum are related to a new question?

A file is a sequence of new questions, each as often as it has related ones::

    <OrgQuestion ORGQ_ID="Q1">
      <OrgQSubject>...</OrgQSubject> <OrgQBody>...</OrgQBody>
      <Thread THREAD_SEQUENCE="Q1_R4">
        <RelQuestion RELQ_ID="Q1_R4" RELQ_RELEVANCE2ORGQ="PerfectMatch" ...>
          <RelQSubject>...</RelQSubject> <RelQBody>...</RelQBody>
        </RelQuestion>
        <RelComment ...>...</RelComment>          ten of them, which are not read
      </Thread>
    </OrgQuestion>

Some files begin with a document type that declares these elements. The parser refuses entities that grow beyond all
proportion.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError, XMLPullParser

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from .collect import SourceRow
from .dataset import MULTICQA, DataSet, find_beside
from .filters import RAW
from .tables import read_lines

LABELS = {"PerfectMatch": 1, "Relevant": 1, "Irrelevant": 0}
PART_1, PART_2 = "SemEval2016-Task3-CQA-QL-train-part1.xml", "SemEval2016-Task3-CQA-QL-train-part2.xml"
DEV = "SemEval2016-Task3-CQA-QL-dev.xml"
TESTS = {2016: "SemEval2016-Task3-CQA-QL-test.xml", 2017: "SemEval2017-task3-English-test.xml"}
TEXTS = ("OrgQSubject", "OrgQBody", "RelQSubject", "RelQBody")


def read_semeval(path: Path) -> Iterator[SourceRow]:
    """Yields the related questions, in the order of the file; titles are joined with bodies.

    PerfectMatch and Relevant are right, as in the task. The training questions are those of part 1 and of part 2, which
    must stand beside it.
    """
    yield from _read_questions(path)
    if path.name.startswith(PART_1):
        yield from _read_questions(find_beside(path, PART_2))


def _read_questions(path: Path) -> Iterator[SourceRow]:
    """Yields the rows of one file, line by line as the parser comes to them."""
    parser: Any = XMLPullParser(("start", "end"))
    texts: dict[str, str] = {}
    asked, started = None, 0
    try:
        for line, text in read_lines(path):
            parser.feed(text + "\n")
            for event, element in parser.read_events():
                tag, named = element.tag, element.attrib
                if event == "end" and tag in TEXTS:
                    texts[tag] = "".join(element.itertext())
                elif event == "start" and tag == "OrgQuestion":
                    asked, texts = named.get("ORGQ_ID"), {}
                elif event == "start" and tag == "RelQuestion":
                    started, texts = line, {name: texts.get(name, "") for name in TEXTS[:2]}  # threads may follow
                elif event == "end" and tag == "RelQuestion":
                    yield _make_row(f"{path} line {started}", started, asked, named, texts)
                elif event == "end" and tag == "OrgQuestion":
                    asked = None
                    element.clear()
        parser.close()
    except ParseError as error:
        raise KinspanError(f"{path} line {error.position[0]}: not XML: {error}") from error


def _make_row(place: str, line: int, asked: str | None, related: dict[str, str], texts: dict[str, str]) -> SourceRow:
    name, label = related.get("RELQ_ID"), related.get("RELQ_RELEVANCE2ORGQ", "")
    if not asked or not name:
        raise KinspanError(f"{place}: RelQuestion has no RELQ_ID, or stands in no OrgQuestion with an ORGQ_ID")
    if label not in LABELS:  # files of the tests with -input in their names have no labels
        raise KinspanError(f"{place}: RELQ_RELEVANCE2ORGQ is {label!r}, none of {', '.join(LABELS)}")
    question, answer = (normalise(" ".join(texts.get(part, "") for part in parts)) for parts in (TEXTS[:2], TEXTS[2:]))
    return SourceRow(line, asked, question, name, answer, LABELS[label])


def _make(year: int, num_test: int) -> DataSet:
    """Returns the data set of a year; training and dev questions are those of 2016. Most have ten related ones."""

    def name_files(split: str) -> tuple[str, ...]:
        name = {"train": PART_1, "dev": DEV, "test": TESTS[year]}[split]
        return (name,) if split == "test" else (name, f"{split}/{name}")

    nakov = "Nakov et al., 2016"
    return DataSet(
        name=f"semeval{year}",
        help=f"Task 3 B of SemEval {year}: {PART_1} and -part2.xml, and {DEV}, in the folder or in train and dev there "
        f"(as in version 3.2), and {TESTS[year]}, with labels. Texts are titles with bodies.",
        file_names=name_files,
        read=read_semeval,
        paper_counts={
            ("train", RAW): {MULTICQA: (267, None), nakov: (267, 2669)},
            ("dev", RAW): {MULTICQA: (50, None), nakov: (50, 500)},
            ("test", RAW): {f"Nakov et al., {year}": (num_test, 10 * num_test)},
        },
        measured_on=RAW,  # MultiCQA counts all 88 test questions of 2017
    )


SEMEVAL2016, SEMEVAL2017 = _make(2016, 70), _make(2017, 88)
