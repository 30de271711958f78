"""Rankings of the same questions side by side: a table, tests of significance, and a page of where they differ."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from finetune.data.answers import AnswerSet
from finetune.reports.pages import candidates, render

from .metrics import MAP, METRICS, TITLES, Figures, best_first, means
from .significance import compare, p_text

PAGE_QUESTIONS = 50
PAGE_ANSWERS = 3


def comparison(systems: dict[str, Figures], seed: int = 0) -> list[dict[str, Any]]:
    """A row for each system: ``name``, the mean of each metric, and ``against_first``: of each metric the fields of
    ``significance.Comparison`` between this system and the first; None for the first itself."""
    first = next(iter(systems.values()))
    return [
        {
            "name": name,
            **means(figures),
            "against_first": None
            if figures is first
            else {metric: asdict(compare(figures[metric], first[metric], seed)) for metric in METRICS},
        }
        for name, figures in systems.items()
    ]


def as_table(rows: list[dict[str, Any]]) -> str:
    """The figures to four decimals, and below them the differences from the first row with both p."""
    width = max(len(row["name"]) for row in rows)
    lines = [" " * width + "".join(f"  {TITLES[metric]:>7}" for metric in METRICS)]
    lines += [f"{row['name']:<{width}}" + "".join(f"  {row[metric]:7.4f}" for metric in METRICS) for row in rows]
    others = [row for row in rows if row["against_first"]]
    if others:
        lines += [
            "",
            f"against {rows[0]['name']}: difference (p of the paired t-test, of the paired randomisation test)",
            " " * width + "".join(f"  {TITLES[metric]:<22}" for metric in METRICS).rstrip(),
        ]
    for row in others:
        cells = [_against(row["against_first"][metric]) for metric in METRICS]
        lines.append(f"{row['name']:<{width}}" + "".join(f"  {cell:<22}" for cell in cells).rstrip())
    return "\n".join(lines)


def _against(test: dict[str, float]) -> str:
    p = [p_text(test[name]) for name in ("t_test", "randomisation")]
    return f"{test['difference']:+.4f} ({', '.join(p)})"


def per_question(systems: dict[str, Figures], question_ids: Sequence[str]) -> str:
    """The metrics of every question as CSV: ``system, question_id, map, mrr, p@1, ndcg@10``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["system", "question_id", *METRICS])
    for name, figures in systems.items():
        columns = [figures[metric].tolist() for metric in METRICS]
        writer.writerows([name, *row] for row in zip(question_ids, *columns, strict=True))
    return text.getvalue()


def page(
    title: str,
    data: AnswerSet,
    scores: dict[str, np.ndarray],
    systems: dict[str, Figures],
    rows: list[dict[str, Any]],
    shown: Sequence[str],
) -> str:
    """HTML: the figures, and the questions where the average precisions of the systems ``shown`` are furthest apart.

    scores:  of each system, ``[N]``
    systems: of each system, its figures by question
    rows:    of ``comparison``
    """
    precision = np.stack([systems[name][MAP] for name in shown])  # [systems, Q]
    spread = np.ptp(precision, axis=0)
    furthest = [q for q in np.argsort(-spread, kind="stable")[:PAGE_QUESTIONS].tolist() if spread[q] > 0]
    orders = {name: best_first(data, scores[name]) for name in shown}
    questions = [
        {
            "id": data.question_ids[q],
            "text": data.questions[q],
            "columns": [
                {
                    "name": name,
                    "precision": systems[name][MAP][q],
                    "answers": candidates(data, scores[name], orders[name], q, PAGE_ANSWERS),
                }
                for name in shown
            ],
        }
        for q in furthest
    ]
    return render(
        "compare.html",
        title=title,
        rows=rows,
        metrics=METRICS,
        titles=TITLES,
        against=_against,
        questions=questions,
        num_answers=PAGE_ANSWERS,
    )


def folder_names(names: Sequence[str]) -> list[str]:
    """Of each system a folder name: the last parts of its path, as few as tell them all apart."""
    parts = [Path(name).absolute().parts for name in names]
    for depth in range(1, max(map(len, parts)) + 1):
        folders = [re.sub(r"[^\w.-]+", "_", "-".join(of_name[-depth:])) for of_name in parts]
        if len({folder.casefold() for folder in folders}) == len(folders):
            return folders
    return [f"{number}-{folder}" for number, folder in enumerate(folders, 1)]
