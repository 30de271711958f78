"""WikiQA, TREC-QA (Wang et al., 2007) and ASNQ (Garg et al., 2020), which labels every sentence of a Wikipedia page."""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from .answers import NEGATIVE_GRADES, POSITIVE_GRADE
from .collect import SourceRow
from .dataset import DataSet
from .tables import read_candidates, read_fields, read_table

WIKIQA_COLUMNS = {
    "question_id": "QuestionID",
    "question": "Question",
    "answer_id": "SentenceID",
    "answer": "Sentence",
    "label": "Label",
}
TRECQA_FILES = {"train": "train-all.jsonl", "dev": "dev.raw.jsonl", "test": "test.raw.jsonl"}
# Garg et al., 2020, table 1: number of sentences with each grade. Its development set is our dev and test together.
PAPER_GRADE_COUNTS = {
    "train": {1: 19_446_120, 2: 428_122, 3: 442_140, 4: 61_186},
    "dev": {1: 870_404, 2: 25_814, 3: 29_558, 4: 4_286},
}

WIKIQA = DataSet(
    name="wikiqa",
    help="WikiQA-train.tsv, WikiQA-dev.tsv and WikiQA-test.tsv, as distributed.",
    file_names=lambda split: (f"WikiQA-{split}.tsv",),
    read=lambda path: read_candidates(read_table(path), WIKIQA_COLUMNS),
)
TRECQA = DataSet(
    name="trecqa",
    help="train-all.jsonl, dev.raw.jsonl and test.raw.jsonl. Each line is {qid, question, answer, label}.",
    file_names=lambda split: (TRECQA_FILES[split],),
    read=lambda path: read_candidates(read_table(path), {"question_id": "qid"}),
)


def read_asnq(path: Path) -> Iterator[SourceRow]:
    """Yields the lines ``question \\t sentence \\t grade``; the file has no header and no quoting."""
    grades = {str(grade): grade for grade in (*NEGATIVE_GRADES, POSITIVE_GRADE)}
    for number, (question, sentence, label) in read_fields(path, "question", "sentence", "label"):
        if label not in grades:
            raise KinspanError(f"{path} line {number}: label {label!r} is none of 1, 2, 3 and 4")
        yield SourceRow(number, None, question, None, normalise(sentence), grades[label])


ASNQ = DataSet(
    name="asnq",
    help="train.tsv, dev.tsv and test.tsv. Each line has a question, a sentence and a label from 1 to 4. The files are "
    "read as distributed, or as kinspan data asnq builds them from Natural Questions.",
    file_names=lambda split: (f"{split}.tsv",),
    read=read_asnq,
    graded=True,
)
