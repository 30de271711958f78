"""The page of a pre-training run, report.html: its curves and figures, what happened, pairs to look at, its settings.

It is one file without scripts that loads nothing from elsewhere. Texts of the corpus are escaped.
"""

from collections.abc import Mapping, Sequence
from html import escape
from math import exp
from typing import Any

from pretrain.runtime.history import REWOUND, STARTED
from pretrain.watching.happenings import count_starts, describe_history

Points = list[tuple[float, float]]  # steps, and the values then

PANELS = {  # of the page, with the figures of each
    "Loss": ("loss",),
    "Pair loss": ("pair_loss",),
    "Area under the ROC curve of the pairs": ("pair_auc", "pair_auc_hard", "pair_auc_easy"),
    "F1 of the positive pairs": ("pair_f1",),
    "MRR and R@1 of queries": ("pair_mrr", "pair_r1"),
    "Masked-LM loss": ("mlm_loss",),
    "Replaced-token loss": ("rtd_loss",),
    "MAP of the probe": ("map",),
    "Learning rate": ("learning_rate",),
    "Tokens per second": ("tokens_per_second",),
}
COLOURS = ("#4a90d9", "#e0852f", "#3fa66a", "#b06fc4")
MOST_POINTS = 500  # of a curve: more than a plot has room for, so that pages of long runs stay small
MOST_EVENTS = 60  # of the history, the latest
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 460, 190, 62, 24, 10  # of a plot, and its margins, in SVG's units

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --muted: #6a6f76; --good: #2e8b57 }
@media (prefers-color-scheme: dark) { :root { --muted: #a0a6ad; --good: #5cc28b } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2.5rem auto; padding: 0 1.25rem }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem }
h2 { font-size: 1.15rem; margin: 2.75rem 0 .75rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line) }
h3 { font-size: 1rem; margin: 0 }
.muted { color: var(--muted); font-size: .82rem }
.wide { overflow-x: auto }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1.5rem }
figure { margin: 0 }
svg { display: block; width: 100%; height: auto }
svg text { font: 12px system-ui, sans-serif; fill: currentColor }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .3rem 1.3rem .3rem 0; text-align: right; vertical-align: top }
th:first-child { text-align: left; font-weight: normal }
tr + tr > * { border-top: 1px solid var(--soft) }
.warning { border-left: 3px solid #d0555c; padding-left: .75rem }
.pair { border-left: 3px solid var(--line); padding: .2rem .75rem; margin: .75rem 0; overflow-wrap: anywhere }
.pair.positive { border-color: var(--good) }
.pair p { margin: .25rem 0 }
.wrong { color: #d0555c }
@media (min-width: 40rem) { th.clock { white-space: nowrap } }
td.words { text-align: left; overflow-wrap: anywhere; min-width: 12rem }
"""


def render_page(
    title: str,
    facts: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    pairs: Sequence[Mapping[str, Any]],
    warnings: Sequence[str] = (),
    history: Sequence[Mapping[str, Any]] = (),
    progress: str = "",
) -> str:
    """The page as HTML.

    facts:    what run.json says of the run
    lines:    of metrics.jsonl
    pairs:    what ``describe_pairs`` yields, each with its ``logit``, or None where it means nothing; of a bi-encoder
              with its ``cosine``
    history:  what ``read_history`` returns
    progress: a line about speed and time left
    """
    validation = [line for line in lines if line["split"] == "validation"]
    step = max((line["step"] for line in lines), default=0)
    parts = [f"<h1>{escape(title)}</h1>", f"<p>Step {step:,} of {facts['total_steps']:,}. {escape(progress)}</p>"]
    parts += [f'<p class="warning">Warning: {escape(text)}.</p>' for text in warnings]
    marks = [line["step"] for line in history[1:] if line["kind"] in (STARTED, REWOUND)]
    plots = [_draw_panel(name, figures, lines, marks) for name, figures in PANELS.items()]
    parts += ["<h2>Curves</h2>", '<div class="plots">', *filter(None, plots), "</div>"]
    if marks:
        parts.append('<p class="muted">Dashed: where the run was resumed, or went back to.</p>')
    if validation:
        parts += ["<h2>Held-out pairs</h2>", _make_table(*_compare(validation[0], validation[-1]))]
    if history:
        parts += ["<h2>What happened</h2>", *_show_history(history)]
    if pairs:
        note = "The first of each kind among the pairs that validation is made of, before they are cut to length. "
        if any("cosine" in pair for pair in pairs):
            note += "The cosine is that of their embeddings by the model of this step."
        else:
            note += "The score is the probability, by the model of this step, that the pair is a positive one."
        parts += ["<h2>Pairs to look at</h2>", f'<p class="muted">{note}</p>', *map(_show_pair, pairs)]
    settings = [(name, [str(value)]) for name, value in facts["settings"].items() if value is not None]
    parts += ["<h2>Settings</h2>", _make_table([], settings)]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{escape(title)}</title><style>{STYLE}</style>"
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _draw_panel(
    name: str, figures: Sequence[str], lines: Sequence[Mapping[str, Any]], marks: Sequence[float] = ()
) -> str:
    """One plot with a curve for each figure and split that has values; "" where none has."""
    curves: dict[str, Points] = {}
    for figure in figures:
        for line in lines:
            if figure in line:
                label = line["split"] if len(figures) == 1 else f"{figure}, {line['split']}"
                curves.setdefault(label, []).append((line["step"], line[figure]))
    if not curves:
        return ""
    thinned = {label: thin(points) for label, points in curves.items()}
    return f"<figure><h3>{escape(name)}</h3>{draw_curves(thinned, name, marks)}</figure>"


def thin(points: Points) -> Points:
    """At most about MOST_POINTS of them: of each stretch the lowest and the highest, so that what leaps is seen."""
    if len(points) <= MOST_POINTS:
        return points
    size = -(-2 * len(points) // MOST_POINTS)
    kept: Points = []
    for first in range(0, len(points), size):
        stretch = points[first : first + size]
        kept += sorted({min(stretch, key=_value), max(stretch, key=_value)})
    return kept


def _value(point: tuple[float, float]) -> float:
    return point[1]


def draw_curves(curves: Mapping[str, Points], label: str, marks: Sequence[float] = ()) -> str:
    """The curves as an SVG element; ``label`` says what it shows to those who cannot see it. ``marks``: steps at which
    there is a dashed line"""
    points = [point for curve in curves.values() for point in curve]
    last = max(step for step, _ in points) or 1
    low, high = (f(value for _, value in points) for f in (min, max))
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 0.1
    low, high = low - margin, high + margin

    def place(step: float, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - 10) * step / last
        return round(x, 1), round(TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low), 1)

    parts = []
    ticks = [low + (high - low) * k / 3 for k in range(4)]
    for value, text in zip(ticks, _format_ticks(ticks), strict=True):
        x, y = place(0, value)
        parts.append(f'<line x1="{x}" x2="{WIDTH - 10}" y1="{y}" y2="{y}" stroke="currentColor" opacity=".15"/>')
        parts.append(f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{text}</text>')
    for step in sorted(set(marks))[-MOST_EVENTS:]:
        x, _ = place(min(step, last), low)
        line = f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="currentColor"'
        parts.append(f'{line} stroke-dasharray="2 3" opacity=".45"/>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">0</text>')
    parts.append(f'<text x="{WIDTH - 10}" y="{HEIGHT - 6}" text-anchor="end">{last:,} updates</text>')
    for number, curve in enumerate(curves.values()):
        colour = COLOURS[number % len(COLOURS)]
        path = [place(*point) for point in curve]
        places = " ".join(f"{x},{y}" for x, y in path)
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if len(path) < 30:
            parts += [f'<circle cx="{x}" cy="{y}" r="2.4" fill="{colour}"/>' for x, y in path]
    legend = " ".join(
        f'<span style="color:{COLOURS[number % len(COLOURS)]}">\u25cf</span> {escape(name)}'
        for number, name in enumerate(curves)
    )
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    return f'{svg}<div class="muted">{legend}</div>'


def _format_ticks(values: Sequence[float]) -> list[str]:
    """The values with as few digits as tell them apart, and three at least; large ones as whole numbers."""
    if max(map(abs, values)) >= 1000 and len({round(value) for value in values}) == len(values):
        return [f"{value:,.0f}" for value in values]
    texts = [[f"{value:.{digits}g}" for value in values] for digits in range(3, 9)]
    return next((of_digits for of_digits in texts if len(set(of_digits)) == len(values)), texts[-1])


def _compare(first: Mapping[str, Any], last: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The head and the rows of a table of the first and the last validation."""
    names = [name for name, value in last.items() if isinstance(value, float) and name in first]
    head = [f"step {line['step']:,}" for line in (first, last)]
    return head, [(name, [f"{line[name]:.4f}" for line in (first, last)]) for name in names]


def _make_table(head: list[str], rows: list[tuple[str, list[str]]]) -> str:
    top = "".join(f"<th>{escape(text)}</th>" for text in ["", *head]) if head else ""
    body = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in rows
    )
    return f'<div class="wide"><table>{f"<tr>{top}</tr>" if top else ""}{body}</table></div>'


def _show_history(history: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = describe_history(history)
    starts = count_starts(history)
    told = f"{starts} start(s), {sum(line['kind'] == REWOUND for line in history)} rewind(s). Times are UTC."
    if len(rows) > MOST_EVENTS:
        told += f" The last {MOST_EVENTS} of {len(rows)} lines; history.jsonl has all."
    body = "".join(
        f'<tr><th class="clock">{escape(clock)}</th><td>{escape(step)}</td><td class="words">{escape(text)}</td></tr>'
        for clock, step, text in rows[-MOST_EVENTS:]
    )
    table = f'<div class="wide"><table><tr><th></th><th>step</th><th></th></tr>{body}</table></div>'
    return [f'<p class="muted">{told}</p>', table]


def _show_pair(pair: Mapping[str, Any]) -> str:
    return (
        f'<div class="pair {escape(pair["kind"])}"><span class="muted">{escape(pair["objective"])}, '
        f"{escape(pair['kind'])}: documents {escape(pair['doc_id'])} and {escape(pair['b_doc_id'])}</span>"
        f"{_show_score(pair)}<p><b>A</b> {escape(pair['a'])}</p><p><b>B</b> {escape(pair['b'])}</p></div>"
    )


def _show_score(pair: Mapping[str, Any]) -> str:
    if (cosine := pair.get("cosine")) is not None:
        return f"<p>Cosine <b>{cosine:.3f}</b>.</p>"
    logit = pair.get("logit")
    if logit is None:
        return ""
    score = 1 / (1 + exp(-logit)) if logit > -700 else 0.0
    is_right = (logit > 0) == (pair["kind"] == "positive")
    called = "positive" if logit > 0 else "negative"
    verdict = "rightly" if is_right else '<span class="wrong">wrongly</span>'
    return f"<p>Score <b>{score:.3f}</b>: called {called}, {verdict}.</p>"
