"""TechQA (Castelli et al., 2020): questions to a vendor's support, answered by passages of its notes.

The passages that were searched are not in these files. So a question's candidates are all distinct answers of its
split, as in the retrieval of Yu et al., 2020, "A Technical Question Answering System with Transfer Learning". Two
answerable questions of dev have no text of an answer; they are left out.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from data_pipeline.errors import KinspanError, quote_error
from data_pipeline.prepare.encode import normalise
from data_pipeline.prepare.readers.compression import open_decompressed

from .collect import SourceRow
from .dataset import DataSet

SPLITS = {"train": "training_Q_A.json", "dev": "dev_Q_A.json", "test": "test_Q_A.json"}
FIELDS = ("QUESTION_ID", "QUESTION_TITLE", "QUESTION_TEXT", "ANSWER", "ANSWERABLE")


def read_techqa(path: Path) -> Iterator[SourceRow]:
    """Yields each answerable question with every distinct answer of the file; its own one is right.

    Raises KinspanError for a file that is no list of such questions.
    """
    questions = list(read_answerable(path))
    answers = {row.answer: row.answer_id for row in questions}
    for row in questions:
        for text, name in answers.items():
            yield row._replace(answer_id=name, answer=text, label=int(text == row.answer))


def read_answerable(path: Path) -> Iterator[SourceRow]:
    """Yields each answerable question with its own answer alone.

    An answer's id is a hash of its text, so that the same answer has the same id in all splits. Raises KinspanError for
    a file that is no list of such questions.
    """
    questions = [record for record in _read_records(path) if record["ANSWERABLE"] == "Y"]
    for number, record in enumerate(questions, 1):
        if right := normalise(record["ANSWER"]):
            name = hashlib.blake2b(right.encode(), digest_size=6).hexdigest()
            question = f"{record['QUESTION_TITLE']} {record['QUESTION_TEXT']}"
            yield SourceRow(number, record["QUESTION_ID"], question, name, right, 1)


def _read_records(path: Path) -> list[dict[str, str]]:
    try:
        with open_decompressed(path) as file:
            records = json.loads(file.read())
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise KinspanError(f"{path} cannot be read: {quote_error(error)}") from error
    if not isinstance(records, list):
        raise KinspanError(f"{path}: not a list of questions")
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict) or not all(isinstance(record.get(field), str) for field in FIELDS):
            raise KinspanError(f"{path} question {number}: {', '.join(FIELDS)} must all be there, as strings")
    return records


TECHQA = DataSet(
    name="techqa",
    help="training_Q_A.json and dev_Q_A.json as distributed, also with techqa- before their names; a labelled "
    "test_Q_A.json is not. The candidates of an answerable question are all distinct answers of its split.",
    file_names=lambda split: (SPLITS[split], f"techqa-{SPLITS[split]}"),
    read=read_techqa,
)
