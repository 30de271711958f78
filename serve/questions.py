"""What a question may be, and how its search is named and bounded. It imports no torch, which takes seconds."""

import unicodedata

from data_pipeline.core.errors import KinspanError

BI_ENCODER, BM25, FUSION, CROSS_ENCODER, BLEND = "bi_encoder", "bm25", "fusion", "cross_encoder", "blend"
CANDIDATES = 100  # of the first stage
RERANKED = 30  # of these, as many go through the cross-encoder
MAX_QUESTION = 4000  # characters of a question that are read


def clean_question(question: str) -> str:
    """The question as it is read: on one line, without control characters, and no longer than MAX_QUESTION.

    Raises KinspanError where nothing is left.
    """
    text = question[: 2 * MAX_QUESTION].encode("utf-8", "replace").decode()
    text = " ".join("".join(" " if unicodedata.category(c) == "Cc" else c for c in text).split())[:MAX_QUESTION]
    if not text:
        raise KinspanError("the question is empty: ask something")
    return text
