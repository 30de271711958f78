"""Templates: HTML pages that load nothing, in one style (``templates/page.html``), bars as SVG inside them, and
Markdown."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).resolve().parent / "templates"
WIDTH, HEIGHT, BASE = 440, 170, 140  # of a plot, and of the line that its bars stand on
COLOUR = "#4a90d9"  # legible on white and on black


def render_template(folder: Path, template: str, filters: Mapping[str, Callable] | None = None, **values: Any) -> str:
    """Fill a template of ``folder``. Texts are escaped in HTML, and a name without a value is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=template.endswith(".html"),
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= filters or {}
    return environment.get_template(template).render(**values)


def draw_bars(values: Sequence[float], first: int, step: int, label: str) -> str:
    """Draw a histogram as an SVG element.

    values: of each bar, which covers ``step`` whole numbers from ``first`` on; the last also has all that are larger
    label:  says what it shows to those who cannot see it
    """
    top, width = max(*values, 1e-9), WIDTH / max(1, len(values))
    parts = []
    for number, value in enumerate(values):
        low = first + number * step
        covers = f"{low:,} or more" if number == len(values) - 1 else f"{low:,}" + (f"-{low + step - 1:,}" * (step > 1))
        height = (BASE - 10) * value / top
        parts.append(
            f'<rect x="{number * width + 0.5:.1f}" y="{BASE - height:.1f}" width="{max(width - 1, 0.5):.1f}" '
            f'height="{height:.1f}" fill="{COLOUR}"><title>{covers}: {value:,}</title></rect>'
        )
    for number in sorted({0, len(values) // 2, len(values) - 1}):
        text = f"{first + number * step:,}" + ("+" if number == len(values) - 1 else "")
        anchor = "start" if number == 0 else "end" if number == len(values) - 1 else "middle"
        at = {"start": 0, "end": WIDTH}.get(anchor, (number + 0.5) * width)
        parts.append(f'<text x="{at:.1f}" y="{BASE + 18}" text-anchor="{anchor}" font-size="12">{text}</text>')
    parts.append(f'<line x1="0" x2="{WIDTH}" y1="{BASE}" y2="{BASE}" stroke="currentColor" opacity=".4"/>')
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}" fill="currentColor">'
        f"{''.join(parts)}</svg>"
    )
