"""A study's page: Markdown whose prose is written by hand, with places for tables and figures made of the lines.

A place begins with ``<!-- TABLE name=value ... -->`` and ends with ``<!-- end -->``; what stands between is made anew.
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import write_atomically

from . import tables
from .figures import draw_curves, draw_forest
from .findings import Findings

TABLES: dict[str, Callable[..., str]] = {
    "rows": tables.list_rows,
    "groups": tables.list_groups,
    "kinds": tables.list_kinds,
    "pretrainings": tables.list_pretrainings,
    "contrasts": tables.list_contrasts,
    "contrasts_without": tables.list_contrasts_without,
    "detectable": tables.list_detectable,
}
FIGURES: dict[str, Callable[..., None]] = {"forest": draw_forest, "curves": draw_curves}
HEAD_LINES, NOTHING = 2, "Nothing of this has run yet."  # the names of columns and the rule below them
PLACE = re.compile(r"(?P<head><!-- (?P<call>\w[^\n]*?) -->\n)(?:(?!<!--).)*(?P<end><!-- end -->)", re.S)


def write_page(found: Findings, page: Path) -> None:
    """Fills the places of a page. Raises KinspanError for a place whose values cannot be meant."""
    text = page.read_text(encoding="utf-8")
    write_atomically(
        page, PLACE.sub(lambda place: f"{place['head']}{_fill(found, page, place['call'])}{place['end']}", text)
    )


def _fill(found: Findings, page: Path, call: str) -> str:
    """A table, with an empty line around it; of a figure nothing, since the page has a link to its file."""
    try:
        name, *given = shlex.split(call)
        values: dict[str, Any] = dict(text.partition("=")[::2] for text in given)
        if name in FIGURES:
            FIGURES[name](found, page.parent / values.pop("file"), **values)
            return ""
        table = TABLES[name](found, **values)
        return f"\n{table if len(table.splitlines()) > HEAD_LINES else NOTHING}\n\n"
    except (TypeError, KeyError, ValueError) as error:
        raise KinspanError(f"{page}: <!-- {call} -->: {error}") from error
