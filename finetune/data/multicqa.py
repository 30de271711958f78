"""Benchmarks that Rücklé et al., 2020 ("MultiCQA", section 3.2) measure on, as their authors distribute them.

AskUbuntu (Lei et al., 2016, after dos Santos et al., 2015): which questions of the forum are similar to a question?
Words are lower case and stand apart, and a body is its first 100 words, as in the files.

WikiPassageQA (Cohen et al., 2018): questions about a Wikipedia article, whose passages are the candidates.

The other ones are in insuranceqa.py and semeval.py. LAS is in no file: kinspan data las makes it of a forum's dump.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError
from data_pipeline.prepare.encode import normalise

from .collect import LeftOut, SourceRow
from .dataset import MULTICQA, DataSet, PaperCount, find_beside
from .filters import NO_ALL_NEGATIVE, RAW
from .tables import read_fields, read_json, read_quoted_tsv

TEXTS = "text_tokenized.txt"
FILES = {"train": "train_random.txt", "dev": "dev.txt", "test": "test.txt"}
PASSAGES = "document_passages.json"
COLUMNS = ("QID", "Question", "DocumentID", "DocumentName", "RelevantPassages")


def read_askubuntu(path: Path) -> Iterator[SourceRow | LeftOut]:
    """Yields the candidates of each question, title and body joined, in the order of the file.

    A line has the question's id, the ids of the similar ones, those of the candidates, and in dev and test their BM25
    scores, separated by tabs; ids by spaces. Similar questions that are not among the candidates, as in training,
    follow them. An id that stands twice counts once. Ids without a text in text_tokenized.txt are left out, and so is a
    question itself.
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
        for candidate in dict.fromkeys([*candidates, *similar]):
            text = texts.get(candidate)
            if text is None:
                yield LeftOut(number, f"candidates without a text in {TEXTS}")
            elif candidate != asked:
                yield SourceRow(number, asked, question, candidate, text, int(candidate in similar))


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


def read_wikipassageqa(path: Path) -> Iterator[SourceRow]:
    """Yields for each question all passages of its document, in their order.

    The file has tab-separated columns, of which RelevantPassages is like ``3,4``; the texts are in
    document_passages.json beside it, ``{document: {passage: text}}``.
    """
    texts = find_beside(path, PASSAGES)
    documents = {name: _read_document(texts, name, passages) for name, passages in read_json(texts, dict).items()}
    table = read_quoted_tsv(path)
    if missing := [column for column in COLUMNS if column not in table.fields]:
        raise KinspanError(f"{path}: no column {missing[0]!r}; there are {', '.join(table.fields)}")
    for line, record in table.records(list(COLUMNS)):
        document = record["DocumentID"].strip()
        passages = documents.get(document)
        if passages is None:
            raise KinspanError(f"{path} line {line}: document {document!r} is not in {texts.name}")
        relevant = {number.strip() for number in record["RelevantPassages"].split(",")}
        if unknown := sorted(relevant - passages.keys()):
            raise KinspanError(f"{path} line {line}: document {document} has no passage {unknown[0]!r}")
        for number, text in passages.items():
            answer_id, label = f"{document}-{number}", int(number in relevant)
            yield SourceRow(line, record["QID"], record["Question"], answer_id, text, label)


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
