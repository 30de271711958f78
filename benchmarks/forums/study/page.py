"""Writes benchmarks/FORUMS.md, its figure and the matrices from the committed results alone."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.evidence.figures import draw_forest
from benchmarks.evidence.findings import format_difference, format_figure
from benchmarks.evidence.results import Store
from data_pipeline.files import write_atomically
from finetune.evaluation.bm25 import BM25, WORDS
from finetune.evaluation.metrics import MAP
from finetune.evaluation.significance import format_p

from .findings import Findings
from .materials import SIMILARITY
from .recipe import COSINE, FUSION, INSURANCEQA, KINDS, MEAN, MULTI, UNTRAINED, WIKIQA, Recipe
from .runner import PILOT, format_hours

PAGE = Path(__file__).resolve().parents[2] / "FORUMS.md"
FIGURES = "forums/study/figures"  # beside the page
GROUPS = {KINDS[0]: "title, body", KINDS[1]: "title, answer", INSURANCEQA: "InsuranceQA", WIKIQA: "WikiQA"}
QUESTION = """Questions and their bodies, without a label, train a ranker: does it rank what it has not seen? Rücklé et
al. (2020) train an adapter for each of 140 forums, one model of all, and fusions of adapters, and rank nine other data
sets zero-shot. This is a miniature of it: six small forums{sizes}, small encoders, and pairs of {length}
tokens. It can show effects that are large enough to be seen in it."""
DESIGN = """- **Trained**: an adapter (Pfeiffer's bottleneck) of each of five forums; one model, all of its weights, of
  all six in turn; a fusion of the five adapters, trained round robin on their forums. All on (title, body) against
  (title, body of another question), {single} updates of 32 pairs for an adapter, {multi} for the model of all, {fusion}
  for the fusion. Rates were not searched.
- **Ranked**: {questions} held-out questions of each of the five forums by title, among 100 bodies and among 100
  accepted answers (as many as there are where there are fewer), which BM25 finds; InsuranceQA, with 500 candidates by
  BM25; WikiQA. No model is trained on a question that is asked here, but wrong candidates may be texts that it was
  trained on. As a baseline, BM25 compares {words};
  to find candidates, it left function words out and stemmed none. Baselines read whole texts, the cosine 64 tokens of
  each text, and the pair heads 64 of both together.
- **Seeds** are of the order of pairs, of dropout where the start has any, and of new weights, the pair head's too.
- **Figures** are MAP, over the questions of a group together; the matrices have the paper's figures, P@1 for answers
  and InsuranceQA.
- **Tests** are those of [EVIDENCE.md](EVIDENCE.md): intervals of a hierarchical bootstrap over questions and seeds; p
  by a randomisation test over questions and by Welch's test over seeds, the greater one after Holm's correction over
  all {count} comparisons, which stood in [recipe.yaml](forums/study/recipe.yaml) before the runs; with a single seed
  nothing is shown. The *best* adapter of a group is chosen with the labels, which favours it."""
COMMANDS = """```
python -m benchmarks.forums.study --dry_run     # the hours, and what has run
python -m benchmarks.forums.study --start runs/evidence/starts/a-c4cf326d73ca/release --dumps dumps \\
    --wikiqa WikiQACorpus --insuranceqa insuranceqa     # goes on where it was stopped; twice at once for two cores
python -m benchmarks.forums.study --page        # this page alone, from benchmarks/forums/study/results
```"""


def write_page(recipe: Recipe, store: Store, page: Path = PAGE) -> None:
    """Writes the page and what it shows; what has not run is left out, and named."""
    found = Findings(recipe, store)
    parts = ["# What forums teach without labels", _say_headline(found), _describe_state(found), "## Question"]
    arms = recipe.content["starts"][recipe.content["compared"]]["arms"]
    steps = {name: arms[name]["max_steps"] for name in ("single", MULTI, FUSION)}
    questions, count = recipe.content["targets"]["questions"], len(found.findings)
    parts += [QUESTION.format(length=recipe.content["max_length"], sizes=_say_sizes(found)), "## Design"]
    parts += [DESIGN.format(**steps, words=WORDS, questions=questions, count=count), "## Results"]
    for start in recipe.content["starts"]:
        if found.materials and found.list_rows(start):
            parts += _write_start(found, start, page)
    parts += _write_comparisons(found, page)
    parts += ["## What hurts", _list_harm(found), "## The commands, and what they cost", COMMANDS]
    if store.read(PILOT):
        parts.append(f"```\n{format_hours(recipe, store)}\n```")
    parts.append(_describe_machines(found))
    write_atomically(page, "\n\n".join(part for part in parts if part) + "\n")


def _say_sizes(found: Findings) -> str:
    sizes = found.materials.get("sizes", {}).values()
    return f", of {min(sizes)} to {max(sizes)} questions to train on" if sizes else ""


def _say_headline(found: Findings) -> str:
    """What the comparisons of the one model and of the fusion with the best adapter come to."""
    lines = []
    for finding in found.findings:
        if finding.names in (("multi", "best"), ("fusion", "best")) and finding.contrast:
            c = finding.contrast
            verdict = ("better" if c.difference > 0 else "worse") if c.is_shown else "not shown to differ"
            lines.append(
                f"- {GROUPS[finding.group]}: {finding.label}: {format_difference(c.difference)} "
                f"[{format_difference(c.low)}, {format_difference(c.high)}], {verdict}"
            )
    if not lines:
        return "**No row that the comparisons need has run yet.**"
    told = "**One model of all forums, and the fusion, against the best single adapter (difference of MAP):**"
    return "\n\n".join([_say_baseline(found), told, "\n".join(lines), _say_floor(found)])


def _say_baseline(found: Findings) -> str:
    """The best trained row beside BM25, on each group."""
    start, told = found.recipe.content["compared"], []
    trained = [row for row in found.list_rows(start) if row.settings is not None]
    for group, targets in found.recipe.groups.items():
        best, row = max((float(found.read(row.name, targets).ap.mean()), row.title) for row in trained)
        bm25 = float(found.read(BM25, targets).ap.mean())
        told.append(f"{GROUPS[group]} {format_figure(bm25)}, {format_figure(best)} ({row})")
    return (
        f"**BM25, and the best of all that was trained from start ({start}), MAP: {'; '.join(told)}.** So the "
        "comparisons below are of ways to train, and of none that one would search with."
    )


def _say_floor(found: Findings) -> str:
    """Which ways of training are shown above a pair head that was just drawn: the others learned nothing to compare."""
    ways = {MEAN: "the mean of the adapters", MULTI: "the one model", FUSION: "the fusion"}
    above: dict[str, list[str]] = {name: [] for name in ways}
    for finding in found.findings:
        c = finding.contrast
        if finding.names[1] == UNTRAINED and c and c.is_shown and c.difference > 0:
            above[finding.names[0]].append(GROUPS[finding.group])
    told = [f"{ways[name]} on {', '.join(groups) or 'nothing'}" for name, groups in above.items()]
    return (
        f"Shown above a pair head that was just drawn, which ranks by chance: {'; '.join(told)}. Where neither side of "
        "a comparison is, it compares two rankings by chance."
    )


def _describe_state(found: Findings) -> str:
    jobs = found.recipe.list_jobs()
    done = [(row, seed) for row, seed in jobs if not found.store.find_missing(row, (seed,))]
    seeds = {
        start: len({seed for row, seed in done if row.start == start}) for start, _ in found.recipe.content["order"]
    }
    told = ", ".join(f"start ({start}): {count} of its seeds begun" for start, count in seeds.items())
    return f"*{len(done)} of {len(jobs)} rows have run ({told}).*"


def _mean(values: np.ndarray) -> str:
    """The mean of ``[S, Q]``, with the standard deviation over seeds where there are several."""
    means = values.mean(axis=1)
    more = f" ({format_figure(float(means.std(ddof=1)))})" if len(means) > 1 else ""
    return format_figure(float(means.mean())) + more


def _write_start(found: Findings, start: str, page: Path) -> list[str]:
    content = found.recipe.content["starts"][start]
    groups = found.recipe.groups
    told = found.materials["targets"]
    counts = {group: sum(told[name]["questions"] for name in names) for group, names in groups.items()}
    head = ["", "seeds", "AUC, held-out pairs", *(f"{GROUPS[group]} ({counts[group]} questions)" for group in groups)]
    table = [_row(head), _row(["---"] * len(head))]
    rows: list[tuple[str, str, str, str]] = [
        (row.name, row.title, str(len(found.lines[row.name])), _say_auc(found.lines[row.name]))
        for row in found.list_rows(start)
    ]
    rows += [(name, name, "", "") for name in found.materials["baselines"]]
    for other, of in found.recipe.content["starts"].items():
        if other != start and "contaminated" in of and f"{other}/{COSINE}" in found.lines:
            rows.append((f"{other}/{COSINE}", f"cosine of start ({other}), contaminated", "", ""))
    for name, title, seeds, auc in rows:
        table.append(_row([title, seeds, auc, *(_mean(found.read(name, names).ap) for names in groups.values())]))
    chance = [np.concatenate([found.materials["chance"][t] for t in names]).mean() for names in groups.values()]
    table.append(_row(["random order", "", "", *(format_figure(float(value)) for value in chance)]))
    name = f"matrix-{start}.html"
    folder = page.parent / FIGURES
    folder.mkdir(parents=True, exist_ok=True)
    notes = []
    if why := content.get("contaminated"):
        notes.append(f"**Contaminated**: {why}. Its rows say little of transfer.")
    told_of = (
        "MAP; in brackets the standard deviation over seeds. Beside it how well held-out pairs, with random negatives, "
        "are told apart."
    )
    if _write_matrix(found, start, folder / name):
        # A page of half a megabyte, which shows nothing where the repository is read
        told_of += (
            f" Every forum on every target, with the spread and what the fusion takes, as a page to open: "
            f"`{FIGURES}/{name}`, which the command below writes (`--page`: in seconds, from the results)."
        )
    return [f"### Start {content['title']}", *notes, "\n".join(table), told_of, _list_targets(found, start)]


def _say_auc(lines: list[dict]) -> str:
    """How well a way of training tells held-out pairs of its own forums apart, the mean over seeds."""
    found = [line["training"]["held_out_auc"][1] for line in lines if line["training"]]
    return format_figure(float(np.mean(found))) if found else ""


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _list_targets(found: Findings, start: str) -> str:
    """MAP of each source on each forum's targets: a table of a kind for each."""
    forums, parts = found.recipe.forums, []
    for kind in KINDS:
        table = [_row([GROUPS[kind], *forums]), _row(["---"] * (1 + len(forums)))]
        names = [(row.name, row.title) for row in found.list_rows(start)] + [(BM25, BM25)]
        for name, title in names:
            cells = [_mean(found.read(name, [f"{forum}/{kind}"]).ap) for forum in forums]
            table.append(_row([title, *cells]))
        parts.append("\n".join(table))
    return "\n\n".join(parts)


def _write_matrix(found: Findings, start: str, path: Path) -> bool:
    """Writes the page of kinspan evaluate transfer, of the means over seeds, where a trained row has run."""
    from finetune.transfer.fusion import FusionWeights
    from finetune.transfer.matrix import TF_IDF, Matrix
    from finetune.transfer.page import render_page

    told, rows = found.materials, [row for row in found.list_rows(start) if row.settings is not None]
    if not rows:
        return False
    targets = [_Shown(name, of["metric"], of["questions"]) for name, of in told["targets"].items()]

    def measure(name: str) -> list[float]:
        figures = [(t, found.read(name, [t.name])) for t in targets]
        return [float((f.ap if t.metric == MAP else f.first).mean()) for t, f in figures]

    names = [*found.recipe.forums, MULTI, FUSION]
    known = [row for row in rows if row.arm in names]
    sizes = np.array([sum(told["sizes"][forum] for forum in row.forums) for row in known])
    alike = found.store.read(SIMILARITY)
    similarity = np.array([alike[row.arm] for row in known]) if alike else None
    baselines = {BM25: BM25, TF_IDF: TF_IDF}
    if f"{start}/{COSINE}" in found.lines:
        baselines["cosine of the start"] = f"{start}/{COSINE}"
    matrix = Matrix(
        [row.title for row in known],
        targets,
        np.array([measure(row.name) for row in known]),
        {title: np.array(measure(name)) for title, name in baselines.items()},
    )
    fused = {}
    for line in found.lines.get(f"{start}/{FUSION}", ()):
        if line["weights"]:
            weights = {name: np.array(values) for name, values in line["weights"].items()}
            fused["the fusion (seed 1)"] = FusionWeights(list(found.recipe.forums), weights)
    title = f"Transfer without labels: start {found.recipe.content['starts'][start]['title']}"
    write_atomically(path, render_page(title, matrix, sizes, similarity, fused))
    return True


@dataclass(frozen=True)
class _Shown:
    """A target as the page of the matrix shows it."""

    name: str
    metric: str
    num_questions: int


def _write_comparisons(found: Findings, page: Path) -> list[str]:
    run = [finding for finding in found.findings if finding.contrast]
    if not run:
        return []
    table = [_row(["targets", "less", "difference", "95% interval", "p, questions", "p, seeds", "corrected"])]
    table.append(_row(["---"] * 7))
    panels: dict[str, list] = {}
    for finding in run:
        c = finding.contrast
        assert c is not None
        over_seeds = "" if c.over_seeds is None else format_p(c.over_seeds)
        shown = "**" if c.is_shown else ""
        interval = f"{format_difference(c.low)} to {format_difference(c.high)}"
        cells = [GROUPS[finding.group], finding.label, f"{shown}{format_difference(c.difference)}{shown}", interval]
        table.append(_row([*cells, format_p(c.over_questions), over_seeds, format_p(c.corrected)]))
        panels.setdefault(GROUPS[finding.group], []).append((finding.label, c))
    figure = page.parent / FIGURES / "differences.png"
    draw_forest(figure, panels)
    return [
        f"## Comparisons, start ({found.recipe.content['compared']})",
        "\n".join(table),
        f"![The difference of every comparison, with its interval]({FIGURES}/{figure.name})",
        "*Filled, and bold in the table: shown beyond chance.*",
    ]


def _list_harm(found: Findings) -> str:
    """The rows that training made worse than the start's own cosine."""
    table = [_row(["start", "row", "targets", "MAP", "cosine of the untouched start"]), _row(["---"] * 5)]
    for start in found.recipe.content["starts"]:
        if found.materials:
            for row, group, ours, plain in found.list_harm(start):
                table.append(_row([f"({start})", row.title, GROUPS[group], *map(format_figure, (ours, plain))]))
    if len(table) == 2:
        trained = any(
            row.settings is not None for start in found.recipe.content["starts"] for row in found.list_rows(start)
        )
        return "No trained row" + (" is below the cosine of its untouched start." if trained else " has run yet.")
    told = (
        "Trained rows below the cosine of their untouched start, which costs nothing; means over seeds and questions, "
        "which no test was made of."
    )
    return told + "\n\n" + "\n".join(table)


def _describe_machines(found: Findings) -> str:
    machines = sorted({line["machine"] for lines in found.lines.values() for line in lines})
    return f"Run on: {'; '.join(machines)}." if machines else ""
