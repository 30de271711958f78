"""How much of a test set occurs in a pre-training corpus, and how a model does without it.

There are two measures. Both compare text in lower case (Unicode NFKC) without punctuation, so that it does not matter
how either side was tokenised ("5,000" or "5 , 000"):

exact:  the sentence's letters and digits, without white space, occur one after another inside a paragraph (OpenAI,
        2023, "GPT-4 Technical Report", appendix C, takes parts of 50 characters; we take the whole sentence)
n-gram: a sentence is contaminated if 70% or more of its 8-grams of words occur anywhere (Chowdhery et al., 2022,
        "PaLM", section 8)

GPT-3 (Brown et al., 2020, appendix C) called a text dirty if a single n-gram of 8 to 13 words occurs, of 13 where texts
are long. But sentences are short: in WikiQA's test set 19% have no 13-gram and 5% no 8-gram. And a single 8-gram is
often a mere phrase; a share tells a sentence from a phrase.

A sentence of fewer than 8 words is not judged: "He was born in London." occurs without having leaked.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_pipeline.corpus import Corpus
from data_pipeline.matching import NGRAM, THRESHOLD
from finetune.data.answers import AnswerSet

from .metrics import METRICS, TITLES, compute_means, compute_question_metrics
from .occurrences import find_occurrences


@dataclass(frozen=True)
class Contamination:
    """Which of N candidates occur in a corpus.

    judged:      ``[N]`` bool, whether the candidate has 8 words or more
    exact:       ``[N]`` bool, whether it occurs word for word
    ngram_share: ``[N]`` the share of its 8-grams that occur; NaN where it is not judged
    document:    ``[N]`` the number in the corpus of the first document that has the candidate, or else of the document
                 that has most of it; -1 where nothing occurs
    """

    judged: np.ndarray
    exact: np.ndarray
    ngram_share: np.ndarray
    document: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """``[N]`` bool: whether the candidate is contaminated by either measure."""
        return self.exact | (self.ngram_share >= THRESHOLD)  # False for NaN


def flag_questions(data: AnswerSet, rows: np.ndarray, positives_alone: bool = True) -> np.ndarray:
    """Returns which questions, ``[Q]`` bool, have a right answer (or any candidate) among ``rows``, ``[N]`` bool."""
    counted = rows & (data.labels == 1) if positives_alone else rows
    return np.bincount(data.question_of[counted], minlength=data.num_questions) > 0


def find_contamination(data: AnswerSet, corpus: Corpus, num_workers: int = 1, quiet: bool = False) -> Contamination:
    """Looks for every candidate of ``data`` in the whole of ``corpus``, see ``occurrences.find_occurrences``."""
    found = find_occurrences(data.answers.to_pylist(), corpus, num_workers, quiet)
    seen, count = found.ngram_document >= 0, data.num_pairs
    document = found.document.copy()
    for row, documents in _group_values(found.ngram_row[seen], found.ngram_document[seen]):
        if document[row] < 0:
            distinct, counts = np.unique(documents, return_counts=True)
            document[row] = distinct[counts.argmax()]
    share = np.full(count, np.nan)
    occur, all_of_row = (np.bincount(rows, minlength=count) for rows in (found.ngram_row[seen], found.ngram_row))
    np.divide(occur, all_of_row, out=share, where=found.judged)
    return Contamination(found.judged, found.document >= 0, share, document)


def measure_with_and_without(data: AnswerSet, scores: np.ndarray, flagged: np.ndarray) -> dict[str, dict[str, float]]:
    """Returns mean metrics over all questions, over those that are not ``flagged``, and over those that are.

    scores:  ``[N]``
    flagged: ``[Q]`` bool

    The keys are "all", "clean" and "contaminated"; each group also has its number of "questions", and a group without
    questions is left out. Raises KinspanError for a score that is not finite.
    """
    figures = compute_question_metrics(data, scores)
    groups = {"all": np.ones(data.num_questions, dtype=bool), "clean": ~flagged, "contaminated": flagged}
    return {
        name: {
            "questions": int(group.sum()),
            **compute_means({metric: values[group] for metric, values in figures.items()}),
        }
        for name, group in groups.items()
        if group.any()
    }


def summarize_contamination(
    data: AnswerSet, corpus: Corpus, found: Contamination, scores: Mapping[str, np.ndarray] | None = None
) -> dict[str, Any]:
    """Returns counts and metrics, fit for JSON.

    scores: of each model by its name, ``[N]``

    ``contaminated`` has for each measure the number of candidates, of right answers, of questions with such an answer,
    and of questions with any such candidate. ``models`` has for each model what ``measure_with_and_without`` returns
    where a question is flagged by a right ``answer``, and where it is flagged by any ``candidate``.
    """
    ones = np.ones(data.num_pairs, dtype=bool)
    measures = {
        "all": ones,
        "judged": found.judged,
        "exact": found.exact,
        "ngrams": found.ngram_share >= THRESHOLD,
        "either": found.rows,
    }
    answer, candidate = flag_questions(data, found.rows), flag_questions(data, found.rows, positives_alone=False)
    return {
        "corpus": corpus.short_name,
        "corpus_fingerprint": corpus.manifest.fingerprint,
        "contaminated": {name: _count(data, rows) for name, rows in measures.items()},
        "models": {
            name: {
                "answer": measure_with_and_without(data, of_model, answer),
                "candidate": measure_with_and_without(data, of_model, candidate),
            }
            for name, of_model in (scores or {}).items()
        },
    }


def _count(data: AnswerSet, rows: np.ndarray) -> dict[str, int]:
    return {
        "candidates": int(rows.sum()),
        "answers": int(data.labels[rows].sum()),
        "questions_by_answer": int(flag_questions(data, rows).sum()),
        "questions_by_candidate": int(flag_questions(data, rows, positives_alone=False).sum()),
    }


COLUMNS = {
    "candidates": "candidates",
    "answers": "right answers",
    "questions_by_answer": "questions by these",
    "questions_by_candidate": "questions by any",
}
ROWS = {
    "judged": f"of {NGRAM} words or more",
    "exact": "occur word for word",
    "ngrams": f"{THRESHOLD:.0%} of their {NGRAM}-grams or more",
    "either": "contaminated: either",
}
GROUPS = {
    ("answer", "all"): "all questions",
    ("answer", "clean"): "without contaminated answers",
    ("candidate", "clean"): "without contaminated candidates",
    ("answer", "contaminated"): "with a contaminated answer",
}


def format_contamination(
    data: AnswerSet,
    corpus: Corpus,
    found: Contamination,
    scores: Mapping[str, np.ndarray] | None = None,
    examples: int = 10,
) -> str:
    """Returns ``summarize_contamination`` as tables, and examples to look at, right answers first."""
    facts, totals = summarize_contamination(data, corpus, found, scores), corpus.manifest.totals
    counts = facts["contaminated"]
    lines = [
        f"{data.name} {data.split}: {data.num_questions:,} questions, {data.num_pairs:,} candidates, "
        f"{counts['all']['answers']:,} of them right",
        f"{facts['corpus']}: {totals['documents']:,} documents, {totals['paragraphs']:,} paragraphs, "
        f"{totals['tokens']:,} tokens",
        "",
        " " * 30 + "".join(f"{title:>20}" for title in COLUMNS.values()),
    ]
    whole = {**counts["all"], "questions_by_answer": data.num_questions, "questions_by_candidate": data.num_questions}
    for name, title in ROWS.items():
        cells = (f"{counts[name][c]:,} {100 * counts[name][c] / max(1, whole[c]):6.1f}%" for c in COLUMNS)
        lines.append(f"{title:<30}" + "".join(f"{cell:>20}" for cell in cells))
    for model, by in facts["models"].items():
        lines += ["", f"{model:<34}{'questions':>10}" + "".join(f"{TITLES[metric]:>10}" for metric in METRICS)]
        for (which, group), title in GROUPS.items():
            if group in by[which]:
                figures = by[which][group]
                numbers = "".join(f"{figures[metric]:>10.4f}" for metric in METRICS)
                lines.append(f"{title:<34}{figures['questions']:>10,}{numbers}")
    return "\n".join([*lines, *_format_examples(data, corpus, found, examples)])


def _format_examples(data: AnswerSet, corpus: Corpus, found: Contamination, count: int) -> Iterator[str]:
    rows = np.flatnonzero(found.rows)
    rows = rows[np.argsort(-data.labels[rows], kind="stable")][:count]
    for row, title in zip(rows.tolist(), look_up_titles(corpus, found.document[rows]), strict=True):
        how = "word for word" if found.exact[row] else f"{found.ngram_share[row]:.0%} of its {NGRAM}-grams"
        yield ""
        yield f"Q: {data.questions[data.question_of[row]]}"
        yield f"A: {data.answers[row].as_py()}"
        yield f"   ({'right' if data.labels[row] else 'wrong'}; {how} in {title!r})"


def look_up_titles(corpus: Corpus, numbers: np.ndarray) -> list[str]:
    """Returns the titles of documents, or their ids where they have none; ``numbers`` count through the shards."""
    starts = np.cumsum([0] + [s.documents for s in corpus.manifest.shards])
    shards = np.searchsorted(starts, numbers, side="right") - 1
    places = [(corpus.shard(k), int(n - starts[k])) for k, n in zip(shards.tolist(), numbers, strict=True)]
    return [shard.document_title(row) or shard.document_id(row) for shard, row in places]


def _group_values(keys: np.ndarray, values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each key with its values; ``keys`` ascend."""
    distinct, first = np.unique(keys, return_index=True)
    return zip(distinct.tolist(), np.split(values, first)[1:], strict=True)
