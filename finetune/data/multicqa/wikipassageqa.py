"""WikiPassageQA (Cohen et al., 2018): questions about a Wikipedia article, whose passages are the candidates."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from ..collect import SourceRow
from ..dataset import MULTICQA, DataSet, PaperCount, find_beside
from ..filters import RAW
from ..tables import read_json, read_quoted_tsv

PASSAGES = "document_passages.json"
COLUMNS = ("QID", "Question", "DocumentID", "DocumentName", "RelevantPassages")


def read_wikipassageqa(path: Path) -> Iterator[SourceRow]:
    """Yields for each question all passages of its document, in their order.

    The file has tab-separated columns, of which RelevantPassages is like ``3,4``; the texts are in
    document_passages.json beside it, ``{document: {passage: text}}``.

    Raises KinspanError, naming the file and the line, where one of the files or a column is missing, where the JSON is
    not of that form, and where a question names a document or a passage that is not there, or no passage.
    """
    texts = find_beside(path, PASSAGES)
    documents = {name: _read_document(texts, name, passages) for name, passages in read_json(texts, dict).items()}
    table = read_quoted_tsv(path)
    if missing := [column for column in COLUMNS if column not in table.fields]:
        raise KinspanError(f"{path}: no column {missing[0]!r}; there are {', '.join(table.fields) or 'none'}")
    for line, record in table.records(list(COLUMNS)):
        document = record["DocumentID"].strip()
        passages = documents.get(document)
        if passages is None:
            raise KinspanError(f"{path} line {line}: document {document!r} is not in {texts.name}")
        relevant = {number.strip() for number in record["RelevantPassages"].split(",")}
        if unknown := sorted(relevant - passages.keys()):
            raise KinspanError(f"{path} line {line}: document {document} has no passage {unknown[0]!r}")
        for number, text in passages.items():
            yield SourceRow(
                line=line,
                question_id=record["QID"],
                question=record["Question"],
                answer_id=f"{document}-{number}",
                answer=text,
                label=int(number in relevant),
            )


def _read_document(path: Path, document: str, passages: Any) -> dict[str, str]:
    """Returns the texts of a document's passages by their numbers, in their order."""
    if not isinstance(passages, dict) or not all(isinstance(text, str) for text in passages.values()):
        raise KinspanError(f"{path}: document {document!r} is not an object of passages, which are strings")
    ordered = sorted(passages, key=lambda number: (int(number) if number.isdecimal() else -1, number))
    return {number: normalise(passages[number]) for number in ordered}


WIKIPASSAGEQA = DataSet(
    name="wikipassageqa",
    help="train.tsv, dev.tsv and test.tsv with the columns QID, Question, DocumentID, DocumentName and "
    "RelevantPassages, and document_passages.json. All passages of the document are candidates, 58 on average.",
    file_names=lambda split: (f"{split}.tsv",),
    read=read_wikipassageqa,
    paper_counts={
        ("train", RAW): (PaperCount(MULTICQA, 3332),),
        ("dev", RAW): (PaperCount(MULTICQA, 417),),
        ("test", RAW): (PaperCount(MULTICQA, 416),),
    },
    measured_on=RAW,
)
