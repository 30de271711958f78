"""What a split holds, beside what the papers say it holds."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .answers import CLEAN, NO_ALL_NEGATIVE, RAW, AnswerSet


@dataclass(frozen=True)
class PaperCount:
    paper: str
    questions: int
    pairs: int


_TANDA, _DI_LIELLO = "Garg et al., 2020", "Di Liello et al., 2022, table 4"
_TABLE_1, _TABLE_2, _SECTION_5 = f"{_TANDA}, section 4 and table 1", f"{_TANDA}, table 2", f"{_TANDA}, section 5.1"

# By data set, split and filter. Garg et al. do not part ASNQ's 2,672 development questions; Di Liello et al. do.
PAPER_COUNTS: dict[tuple[str, str, str], tuple[PaperCount, ...]] = {
    ("wikiqa", "train", RAW): (PaperCount(_TABLE_2, 2118, 20360), PaperCount(_DI_LIELLO, 2118, 20360)),
    ("wikiqa", "dev", RAW): (PaperCount(_TABLE_2, 296, 2733),),
    ("wikiqa", "test", RAW): (PaperCount(_TABLE_2, 633, 6165),),
    ("wikiqa", "train", NO_ALL_NEGATIVE): (PaperCount(_TABLE_2, 873, 8672),),
    ("wikiqa", "dev", NO_ALL_NEGATIVE): (PaperCount(_TABLE_2, 126, 1130),),
    ("wikiqa", "test", NO_ALL_NEGATIVE): (PaperCount(_TABLE_2, 243, 2351),),
    ("wikiqa", "train", CLEAN): (PaperCount(_TABLE_2, 857, 8651),),
    ("wikiqa", "dev", CLEAN): (PaperCount(_TABLE_2, 121, 1126), PaperCount(_DI_LIELLO, 122, 1126)),
    ("wikiqa", "test", CLEAN): (PaperCount(_TABLE_2, 237, 2341), PaperCount(_DI_LIELLO, 237, 2341)),
    ("trecqa", "train", RAW): (PaperCount(_SECTION_5, 1229, 53417), PaperCount(_DI_LIELLO, 1226, 53417)),
    ("trecqa", "dev", CLEAN): (PaperCount(_SECTION_5, 65, 1117), PaperCount(_DI_LIELLO, 69, 1343)),
    ("trecqa", "test", CLEAN): (PaperCount(_SECTION_5, 68, 1442), PaperCount(_DI_LIELLO, 68, 1442)),
    ("asnq", "train", RAW): (PaperCount(_TABLE_1, 57242, 20377568), PaperCount(_DI_LIELLO, 57242, 20377568)),
    ("asnq", "dev", RAW): (PaperCount(_TABLE_1, 2672, 930062), PaperCount(_DI_LIELLO, 1336, 463914)),
    ("asnq", "test", RAW): (PaperCount(_DI_LIELLO, 1336, 466148),),
}
PAPER_COUNTS |= {("jacana", *key[1:]): counts for key, counts in PAPER_COUNTS.items() if key[0] == "trecqa"}


def statistics(data: AnswerSet) -> dict[str, float]:
    """Figures of a split as ``load_split`` gives it. Words are what spaces part; shares are of the questions.

    questions, pairs, positives; candidates_per_question, positives_per_question: means
    question_words, answer_words:                                                means
    share_all_negative: no candidate answers the question; share_all_positive: every candidate does
    """
    positives, sizes = data.positives, np.diff(data.starts)
    return {
        "questions": data.num_questions,
        "pairs": data.num_pairs,
        "positives": int(positives.sum()),
        "candidates_per_question": float(sizes.mean()),
        "positives_per_question": float(positives.mean()),
        "question_words": _mean_words(pa.array(data.questions, pa.large_string())),
        "answer_words": _mean_words(data.answers),
        "share_all_negative": float((positives == 0).mean()),
        "share_all_positive": float((positives == sizes).mean()),
    }


def _mean_words(texts: pa.Array) -> float:
    """Spaces and one more, since white space is folded."""
    spaces = pc.sum(pc.count_substring(texts, " ")).as_py()
    return (spaces + pc.sum(pc.not_equal(texts, "")).as_py()) / len(texts)


def count_lines(name: str, split: str, mode: str, data: AnswerSet) -> list[str]:
    """Questions and pairs of ``data``, which the filter ``mode`` has left, and each paper that counts otherwise."""
    ours = f"{name} {split} ({mode}): {_counts(data.num_questions, data.num_pairs)}"
    papers = PAPER_COUNTS.get((name, split, mode), ())
    same = [c.paper for c in papers if (c.questions, c.pairs) == (data.num_questions, data.num_pairs)]
    others = [c for c in papers if c.paper not in same]
    agreed = f", as in {' and '.join(same)}" if same else ""
    return [ours + agreed, *(f"  {c.paper} has {_counts(c.questions, c.pairs)}" for c in others)]


def _counts(questions: int, pairs: int) -> str:
    return f"{questions:,} questions, {pairs:,} pairs"
