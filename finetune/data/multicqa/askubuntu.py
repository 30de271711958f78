"""AskUbuntu (Lei et al., 2016, after dos Santos et al., 2015): which questions of the forum are similar to a question?

Words are lower case and stand apart, and a body is its first 100 words, as in the files.
"""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.prepare.encode import normalise

from ..collect import LeftOut, SourceRow
from ..dataset import MULTICQA, DataSet, PaperCount, find_beside
from ..filters import NO_ALL_NEGATIVE
from ..tables import read_fields

TEXTS = "text_tokenized.txt"
FILES = {"train": "train_random.txt", "dev": "dev.txt", "test": "test.txt"}


def read_askubuntu(path: Path) -> Iterator[SourceRow | LeftOut]:
    """Yields the candidates of each question, title and body joined, in the order of the file.

    A line has the question's id, the ids of the similar ones, those of the candidates, and in dev and test their BM25
    scores, separated by tabs; ids by spaces. Similar questions that are not among the candidates, as in training,
    follow them. An id that stands twice counts once. Ids without a text in text_tokenized.txt are left out, and so is a
    question itself.

    Raises KinspanError, naming the file and the line, where text_tokenized.txt is missing, and where a line has another
    number of fields.
    """
    texts = {
        name.strip(): normalise(f"{title} {body}")
        for _, (name, title, body) in read_fields(find_beside(path, TEXTS), "id", "title", "body")
    }
    for number, fields in read_fields(path, "question", "similar ones", "candidates", "scores", optional=1):
        asked, similar, candidates = fields[0].strip(), fields[1].split(), fields[2].split()
        question = texts.get(asked)
        if not question:
            yield LeftOut(number, f"questions without a text in {TEXTS}")
            continue
        right = set(similar)
        for candidate in dict.fromkeys([*candidates, *similar]):
            text = texts.get(candidate)
            if text is None:
                yield LeftOut(number, f"candidates without a text in {TEXTS}")
            elif candidate != asked:
                yield SourceRow(number, asked, question, candidate, text, int(candidate in right))


ASKUBUNTU = DataSet(
    name="askubuntu",
    help="text_tokenized.txt.gz, train_random.txt, dev.txt and test.txt, as distributed by Lei et al. Questions and "
    "candidates are titles with bodies. A training question has 100 random candidates: 1.3 million pairs.",
    file_names=lambda split: (FILES[split],),
    read=read_askubuntu,
    paper_counts={
        ("train", NO_ALL_NEGATIVE): (PaperCount(MULTICQA, 12_584),),
        ("dev", NO_ALL_NEGATIVE): (PaperCount(MULTICQA, 189, 189 * 20),),
        ("test", NO_ALL_NEGATIVE): (PaperCount(MULTICQA, 186, 186 * 20),),
    },
    measured_on=NO_ALL_NEGATIVE,  # a question without a similar one is excluded, as its authors say
)
