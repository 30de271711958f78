"""ASNQ (Garg et al., 2020): every sentence of the Wikipedia page of a question of Natural Questions, with a grade."""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from .answers import NEGATIVE_GRADES, POSITIVE_GRADE
from .collect import SourceRow
from .dataset import DI_LIELLO, TANDA, DataSet, PaperCount
from .filters import RAW
from .tables import read_fields

# Garg et al., 2020, table 1: how many sentences have each grade. Its development set is our dev and test together.
PAPER_GRADE_COUNTS = {
    "train": {1: 19_446_120, 2: 428_122, 3: 442_140, 4: 61_186},
    "dev": {1: 870_404, 2: 25_814, 3: 29_558, 4: 4_286},
}


def read_asnq(path: Path) -> Iterator[SourceRow]:
    """Yields the lines ``question \\t sentence \\t grade``; the file has neither a line of names nor quoting.

    Raises KinspanError, naming the line, where there are not three fields or the grade is not 1, 2, 3 or 4.
    """
    grades = {str(grade): grade for grade in (*NEGATIVE_GRADES, POSITIVE_GRADE)}
    for number, (question, sentence, label) in read_fields(path, "question", "sentence", "label"):
        if label not in grades:
            raise KinspanError(f"{path} line {number}: label {label!r} is none of 1, 2, 3 and 4")
        yield SourceRow(number, None, question, None, normalise(sentence), grades[label])


_TABLE_1 = f"{TANDA}, section 4 and table 1"

ASNQ = DataSet(
    name="asnq",
    help="train.tsv, dev.tsv and test.tsv. Each line has a question, a sentence and a label from 1 to 4. The files are "
    "read as distributed, or as kinspan data asnq builds them from Natural Questions.",
    file_names=lambda split: (f"{split}.tsv",),
    read=read_asnq,
    paper_counts={  # Garg et al. do not divide the 2,672 development questions into dev and test; Di Liello et al. do
        ("train", RAW): (PaperCount(_TABLE_1, 57242, 20377568), PaperCount(DI_LIELLO, 57242, 20377568)),
        ("dev", RAW): (PaperCount(_TABLE_1, 2672, 930062), PaperCount(DI_LIELLO, 1336, 463914)),
        ("test", RAW): (PaperCount(DI_LIELLO, 1336, 466148),),
    },
    graded=True,
)
