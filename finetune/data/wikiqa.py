"""WikiQA (Yang et al., 2015) as Microsoft distributes it: the sentences of a Wikipedia page's summary per question."""

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
_TABLE_2 = f"{TANDA}, table 2"

WIKIQA = DataSet(
    name="wikiqa",
    help="WikiQA-train.tsv, WikiQA-dev.tsv and WikiQA-test.tsv, as distributed.",
    file_names=lambda split: (f"WikiQA-{split}.tsv",),
    read=lambda path: read_candidates(read_table(path), COLUMNS),
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
