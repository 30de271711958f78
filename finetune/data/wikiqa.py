"""WikiQA (Yang et al., 2015) as Microsoft distributes it: the sentences of a Wikipedia page's summary per question."""

from collections.abc import Iterator
from pathlib import Path

from .collect import SourceRow
from .dataset import DI_LIELLO, TANDA, DataSet, PaperCount
from .filters import CLEAN, NO_ALL_NEGATIVE, RAW
from .tables import read_candidates, read_table

COLUMNS = {
    "question_id": "QuestionID",
    "question": "Question",
    "answer_id": "SentenceID",
    "answer": "Sentence",
    "label": "Label",
}
DOCUMENT_COLUMNS = {"document_id": "DocumentID", "title": "DocumentTitle"}


def read_wikiqa(path: Path) -> Iterator[SourceRow]:
    """Yields the candidates with document and title, and with the sentence's position, the end of an id as D12-0."""
    table = read_table(path)
    there = {name: column for name, column in DOCUMENT_COLUMNS.items() if column in table.fields}
    for row in read_candidates(table, COLUMNS | there):
        place = (row.answer_id or "").rpartition("-")[2]
        yield row._replace(position=int(place) if place.isdecimal() and len(place) < 10 else -1)


_TABLE_2 = f"{TANDA}, table 2"

WIKIQA = DataSet(
    name="wikiqa",
    help="WikiQA-train.tsv, WikiQA-dev.tsv and WikiQA-test.tsv, as distributed.",
    file_names=lambda split: (f"WikiQA-{split}.tsv",),
    read=read_wikiqa,
    paper_counts={
        ("train", RAW): (PaperCount(_TABLE_2, 2118, 20360), PaperCount(DI_LIELLO, 2118, 20360)),
        ("dev", RAW): (PaperCount(_TABLE_2, 296, 2733),),
        ("test", RAW): (PaperCount(_TABLE_2, 633, 6165),),
        ("train", NO_ALL_NEGATIVE): (PaperCount(_TABLE_2, 873, 8672),),
        ("dev", NO_ALL_NEGATIVE): (PaperCount(_TABLE_2, 126, 1130),),
        ("test", NO_ALL_NEGATIVE): (PaperCount(_TABLE_2, 243, 2351),),
        ("train", CLEAN): (PaperCount(_TABLE_2, 857, 8651),),
        ("dev", CLEAN): (PaperCount(_TABLE_2, 121, 1126), PaperCount(DI_LIELLO, 122, 1126)),
        ("test", CLEAN): (PaperCount(_TABLE_2, 237, 2341), PaperCount(DI_LIELLO, 237, 2341)),
    },
)
