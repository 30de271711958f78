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

Some files begin with a document type that declares these elements and their attributes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

from data_pipeline.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from ..collect import SourceRow
from ..dataset import MULTICQA, DataSet, PaperCount, explain_missing, find_files
from ..filters import RAW
from ..tables import read_lines

LABELS = {"PerfectMatch": 1, "Relevant": 1, "Irrelevant": 0}
PART_1, PART_2 = "SemEval2016-Task3-CQA-QL-train-part1.xml", "SemEval2016-Task3-CQA-QL-train-part2.xml"
DEV = "SemEval2016-Task3-CQA-QL-dev.xml"
TESTS = {2016: "SemEval2016-Task3-CQA-QL-test.xml", 2017: "SemEval2017-task3-English-test.xml"}
TEXTS = ("OrgQSubject", "OrgQBody", "RelQSubject", "RelQBody")


def read_semeval(path: Path) -> Iterator[SourceRow]:
    """Yields the related questions, in the order of the file; titles are joined with bodies.

    PerfectMatch and Relevant are right, as in the task. The training questions are those of part 1 and of part 2, which
    must stand beside it.

    Raises KinspanError, naming the file and the line, for what is not XML, for entities that the file declares or
    leaves to another file, for a question without an id or a label, and where part 2 is missing.
    """
    yield from _read_questions(path)
    if path.name.startswith(PART_1):
        found = find_files(path.parent, [PART_2])
        if not found:
            raise KinspanError(f"{path.parent}: {PART_2} is missing: {explain_missing(path.parent, [PART_2])}")
        yield from _read_questions(found[0])


def _read_questions(path: Path) -> Iterator[SourceRow]:
    """Yields the rows of one file, line by line as the parser comes to them."""
    parser = expat.ParserCreate()
    reading = _Reading(path, parser)
    parser.StartElementHandler, parser.EndElementHandler = reading.start, reading.end
    parser.CharacterDataHandler = reading.add_text
    parser.EntityDeclHandler, parser.SkippedEntityHandler = reading.refuse_declared, reading.refuse_skipped
    parser.buffer_text = True
    try:
        for _, line in read_lines(path):
            parser.Parse(line + "\n", False)
            yield from reading.take_rows()
        parser.Parse("", True)
    except expat.ExpatError as error:
        raise KinspanError(f"{path} line {error.lineno}: not XML: {expat.ErrorString(error.code)}") from error


class _Reading:
    """What the parser has read of the question that it is in.

    texts:  of the elements of TEXTS, in parts as they come
    inside: which of them is open
    """

    def __init__(self, path: Path, parser: expat.XMLParserType) -> None:
        self.path, self.parser = path, parser
        self.texts: dict[str, list[str]] = {}
        self.asked: str | None = None
        self.related: tuple[int, str, int] | None = None  # line, id and label
        self.inside: str | None = None
        self.rows: list[SourceRow] = []

    def start(self, tag: str, attributes: dict[str, Any]) -> None:
        if tag == "OrgQuestion":
            self.texts, self.related = {}, None
            self.asked = attributes.get("ORGQ_ID") or self.refuse("OrgQuestion has no ORGQ_ID")
        elif tag == "RelQuestion":
            if self.asked is None:
                self.refuse("RelQuestion outside OrgQuestion")
            name = attributes.get("RELQ_ID") or self.refuse("RelQuestion has no RELQ_ID")
            label = attributes.get("RELQ_RELEVANCE2ORGQ")
            if label not in LABELS:
                self.refuse(
                    f"RELQ_RELEVANCE2ORGQ is {label!r}, none of {', '.join(LABELS)}; files of the tests with -input in "
                    "their names have no labels"
                )
            self.related = self.parser.CurrentLineNumber, name, LABELS[str(label)]
            self.texts |= {"RelQSubject": [], "RelQBody": []}  # a thread may follow another
        elif tag in TEXTS:
            self.inside, self.texts[tag] = tag, []

    def add_text(self, text: str) -> None:
        if self.inside:
            self.texts[self.inside].append(text)

    def end(self, tag: str) -> None:
        if tag == self.inside:
            self.inside = None
        elif tag == "RelQuestion" and self.related:
            line, name, label = self.related
            question, answer = self.join("OrgQSubject", "OrgQBody"), self.join("RelQSubject", "RelQBody")
            self.rows.append(SourceRow(line, self.asked, question, name, answer, label))
        elif tag == "OrgQuestion":
            self.asked = None

    def join(self, title: str, body: str) -> str:
        return normalise(" ".join("".join(self.texts.get(name, [])) for name in (title, body)))

    def take_rows(self) -> list[SourceRow]:
        rows, self.rows = self.rows, []
        return rows

    def refuse_declared(self, name: str, *_: Any) -> None:
        self.refuse(f"the entity {name!r} is declared here: a few of them may stand for gigabytes, and none is read")

    def refuse_skipped(self, name: str, *_: Any) -> None:
        self.refuse(f"the entity {name!r} is declared in another file, which is not read")

    def refuse(self, what: str) -> NoReturn:
        raise KinspanError(f"{self.path} line {self.parser.CurrentLineNumber}: {what}")


def _make(year: int, num_test: int) -> DataSet:
    """The data set of a year; training and dev questions are those of 2016. Most have ten related ones."""

    def name_files(split: str) -> tuple[str, ...]:
        name = {"train": PART_1, "dev": DEV, "test": TESTS[year]}[split]
        return (name,) if split == "test" else (name, f"{split}/{name}")

    nakov = f"Nakov et al., {year}"
    return DataSet(
        name=f"semeval{year}",
        help=f"Task 3 B of SemEval {year}: {PART_1} and -part2.xml, and {DEV}, in the folder or in train and dev there "
        f"(as in version 3.2), and {TESTS[year]}, with labels. Texts are titles with bodies.",
        file_names=name_files,
        read=read_semeval,
        paper_counts={
            ("train", RAW): (PaperCount(MULTICQA, 267), PaperCount("Nakov et al., 2016", 267, 2669)),
            ("dev", RAW): (PaperCount(MULTICQA, 50), PaperCount("Nakov et al., 2016", 50, 500)),
            ("test", RAW): (PaperCount(nakov, num_test, 10 * num_test),),
        },
        measured_on=RAW,  # MultiCQA counts all 88 test questions of 2017
    )


SEMEVAL2016, SEMEVAL2017 = _make(2016, 70), _make(2017, 88)
