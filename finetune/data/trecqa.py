"""TREC-QA (Wang et al., 2007) as JSON lines: ``{qid, question, answer, label}``."""

from collections.abc import Iterator
from pathlib import Path

from .collect import SourceRow
from .dataset import DI_LIELLO, TANDA, DataSet, PaperCount
from .filters import CLEAN, RAW
from .tables import read_candidates, read_table

FILES = {"train": "train-all.jsonl", "dev": "dev.raw.jsonl", "test": "test.raw.jsonl"}


def read_trecqa(path: Path) -> Iterator[SourceRow]:
    """Yields the candidates of a split's file."""
    return read_candidates(read_table(path), {"question_id": "qid"})


_SECTION_5 = f"{TANDA}, section 5.1"

TRECQA = DataSet(
    name="trecqa",
    help="train-all.jsonl, dev.raw.jsonl and test.raw.jsonl. Each line is {qid, question, answer, label}.",
    file_names=lambda split: (FILES[split],),
    read=read_trecqa,
    paper_counts={
        ("train", RAW): (PaperCount(_SECTION_5, 1229, 53417), PaperCount(DI_LIELLO, 1226, 53417)),
        ("dev", CLEAN): (PaperCount(_SECTION_5, 65, 1117), PaperCount(DI_LIELLO, 69, 1343)),
        ("test", CLEAN): (PaperCount(_SECTION_5, 68, 1442), PaperCount(DI_LIELLO, 68, 1442)),
    },
)
