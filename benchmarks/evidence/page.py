"""Writes benchmarks/EVIDENCE.md and its figures from the committed results alone."""

from pathlib import Path

from data_pipeline.files import write_atomically

from . import tables
from .figures import FIGURES, draw_curves, draw_forest
from .findings import Evidence, format_figure, judge, judge_power, say_unfinished
from .harm import describe_harm
from .plan import Budget, format_budget

PAGE = Path(__file__).resolve().parents[1] / "EVIDENCE.md"
FOREST, DOSE, SHARES = "differences.png", "tokens.png", "labels.png"
QUESTION = """Does continued pre-training with sentence-level objectives make a better ranker than masked language
modelling alone, on the same text and for the same number of tokens? Which objective, and why? Di Liello et al. (2022)
report gains of several points with RoBERTa-base and ELECTRA-base. This is a miniature of it: encoders of 11 and 23
million parameters, and runs of half a million to three million tokens. It can show effects that are large enough to be
seen in it, and says how large that is; it cannot show what the papers' scale would."""
STATISTICS = """The unit is the question's average precision. A row's figure of a question is the mean over its seeds; a
seed is of pre-training and fine-tuning together. For each comparison below there are

- the **difference** of MAP, with a 95% interval from a hierarchical bootstrap over questions and, within each row,
  over seeds (10,000 draws), whose width is that of the standard error and of Student's t for so few seeds;
- **p over questions**: a paired randomisation test of the per-question means (100,000 random signs), which does not
  see that seeds differ;
- **p over seeds**: Welch's t-test of the seeds' MAPs, which does not see that questions differ;
- **corrected p**: the greater of both, after Holm's correction over all {count} comparisons, which stood in
  [recipe.yaml](evidence/recipe.yaml) before their runs; those that have not run yet count among them. Below .05 a
  difference is *shown*. A comparison that lacks seeds says how many have run ("so far"), and shows nothing.

No comparison was added or dropped after its result was seen. One was added after the others: that of the quickstart's
settings now, when most suspects of harm had run (see *What harms*). How wide an interval is, that Holm's correction
takes the greater p, and how the smallest detectable difference is found were changed after the results had been seen,
by a review; no verdict changed with it."""
LIMITS = """- One language, two kinds of text, two small encoders, two small test sets; 0.5 to 3 million tokens per
  arm, where the papers have billions.
- Nothing is said of rows that have not run. Which these are was not decided beforehand: the order of the groups was
  changed twice while start (b) and the rest of start (a) took turns, and at the end what had not run was put last and
  the hours set to what had. Of the groups that were moved no row had run, but for three fits with a quarter of the
  tokens.
- Each start is one set of weights. Another start from scratch, with another seed, could come out differently. Every
  pre-training from start (a) begins with the same pair head, which that start carries untrained; for
  start (b) each seed draws one.
- The settings of a start were chosen with one seed on a dev set of {dev} questions: a finer search could favour any
  arm. The rate of fine-tuning was chosen on *no continued pre-training* alone, which favours that arm over all others.
- p values judge these test sets as a sample of questions like these; WikiQA's come from one search engine's log.
- With few training questions, equal seeds of two arms draw the same ones; the tests over seeds do not use that.
- Contaminated are questions whose candidates stand in the text at hand, word for word or nearly. What start (b) had
  seen of them in its own training is not known."""
COMMANDS = """```
make evidence EVIDENCE_FLAGS=--dry_run      # the fits, what has run, and the hours
make evidence                               # goes on where it was stopped; this page at the end
make evidence EVIDENCE_FLAGS="--hours 1"    # stops after an hour, with a checkpoint
make evidence EVIDENCE_FLAGS=--page         # this page alone, from benchmarks/evidence/results
```"""


def write_page(evidence: Evidence, budget: Budget | None, page: Path = PAGE, figures: Path = FIGURES) -> None:
    """Writes the page and its figures; what has not run is left out of tables, and named."""
    parts = [
        "# Does continued pre-training make a better ranker?",
        _write_headline(evidence),
        tables.describe_state(evidence),
        "## Question",
        QUESTION,
        "## Design",
        tables.describe_design(evidence),
        "## Statistics",
        STATISTICS.format(count=len(evidence.findings)),
        tables.list_detectable(evidence),
        "## Results",
        *_write_results(evidence, page, figures),
        "## Comparisons",
        tables.list_findings(evidence),
        tables.list_half_precision(evidence),
        "## Where labels are few, and how many tokens it takes",
        *_write_curves(evidence, page, figures),
        "## What harms",
        describe_harm(evidence),
        "## Without contaminated questions",
        tables.list_contaminated(evidence),
        "## Whether the tests hold",
        _write_bars(evidence),
        "## What is shown",
        _write_conclusions(evidence),
        "## What is not",
        LIMITS.format(dev=evidence.sets.get("wikiqa", {}).get("questions", {}).get("dev", "some 120")),
        "## The papers' figures",
        tables.list_papers(evidence),
        "## The commands, and what they cost",
        COMMANDS,
        f"```\n{format_budget(budget)}\n```" if budget else "",
        tables.describe_machines(evidence),
    ]
    write_atomically(page, "\n\n".join(part for part in parts if part) + "\n")


def write_confirmation(evidence: Evidence, budget: Budget | None, page: Path) -> None:
    """Writes the page of a study with one primary comparison: its results as far as they have run, in tables alone."""
    (finding,) = evidence.measure_findings([evidence.recipe.content["primary"]])
    one, other = (row.title for row in finding.rows)
    told = judge(finding.contrast, one, other) if finding.contrast else f"{finding.title}: {say_unfinished(finding)}."
    parts = [
        "# How many labels does pre-training save?",
        f"**The primary comparison, {finding.rows[0].set}.** {told}",
        tables.describe_state(evidence),
        *_list_tables(evidence),
        "## Secondary comparisons",
        tables.list_findings(evidence),
        f"```\n{format_budget(budget)}\n```" if budget else "",
        tables.describe_machines(evidence),
    ]
    write_atomically(page, "\n\n".join(part for part in parts if part) + "\n")


def _list_tables(evidence: Evidence) -> list[str]:
    """A table for each start and set that has rows."""
    parts = []
    for start, content in evidence.recipe.content["starts"].items():
        for set_name in evidence.recipe.content["sets"]:
            if table := tables.list_rows(evidence, start, set_name):
                parts += [f"### Start {content['title']}: {set_name}", table]
    return parts


def _write_headline(evidence: Evidence) -> str:
    """The answer, in a sentence for each start."""
    lines = []
    for start in evidence.recipe.content["starts"]:
        finding = evidence.find(f"{start}/ssp/wikiqa", f"{start}/mlm/wikiqa")
        contrast = finding and finding.contrast
        unfinished = f"SSP with MLM less MLM alone: {say_unfinished(finding)}."
        told = judge(contrast, "SSP with MLM", "MLM alone") if contrast else unfinished
        lines.append(f"**Start ({start}), WikiQA, fine-tuned with early stopping.** {told}")
    return "\n\n".join(lines)


def _write_results(evidence: Evidence, page: Path, figures: Path) -> list[str]:
    parts = [*_list_tables(evidence), tables.describe_pretrainings(evidence)]
    panels: dict[str, list] = {}
    for finding in evidence.findings:
        if finding.contrast and len(finding.rows) == 2:
            row = finding.rows[0]
            panels.setdefault(f"start ({row.start}), {row.set}", []).append((finding.label, finding.contrast))
    if panels:
        draw_forest(figures / FOREST, panels)
        parts.append(_link(page, figures / FOREST, "The difference of every comparison, with its interval"))
        parts.append("*Filled: shown beyond chance. Arms have their short names, see Design.*")
    return parts


def _write_curves(evidence: Evidence, page: Path, figures: Path) -> list[str]:
    parts = []
    shares = tables.collect_shares(evidence)
    if any(len(points) > 1 for points in shares.values()):
        ticks = {share: f"{share:.0%}" for points in shares.values() for share in points}
        draw_curves(figures / SHARES, shares, "share of WikiQA's training questions", dict(sorted(ticks.items())))
        parts.append(_link(page, figures / SHARES, "MAP over the share of the training questions"))
    parts.append(tables.say_whether_few_labels_matter(evidence))
    doses = tables.collect_doses(evidence)
    if any(len(points) > 1 for points in doses.values()):
        ticks = {tokens: f"{tokens / 1e6:g} M" for points in doses.values() for tokens in points}
        draw_curves(figures / DOSE, doses, "tokens of continued pre-training", dict(sorted(ticks.items())))
        parts.append(_link(page, figures / DOSE, "MAP over the tokens of continued pre-training"))
    else:
        parts.append("How many tokens it takes: no other number of tokens has run with all its seeds.")
    return parts


def _link(page: Path, figure: Path, text: str) -> str:
    return f"![{text}]({figure.relative_to(page.parent)})"


def _write_bars(evidence: Evidence) -> str:
    rate, again = evidence.error_rate, evidence.store.read("rerun")
    row = evidence.recipe.content["calibration"]["row"]
    lines = []
    if again and again["identical"]:
        lines.append(
            f"- **The same bits again.** {again['row']}, seed {again['seed']}, was pre-trained, fine-tuned and ranked "
            f"once more from the start's weights on {again['machine']}: every score is the same (their hash is "
            f"{again['scores_again']} both times)."
        )
    elif again:
        lines.append(
            f"- **NOT the same bits.** {again['row']}, seed {again['seed']}, run once more, came to other scores."
        )
    else:
        lines.append("- The same bits again: not run yet.")
    if rate:
        lines.append(
            f"- **Error rate.** Ten seeds of {row}, split into five and five in all {rate['splits']} ways: p is below "
            f".05 in {rate['over_questions']:.1%} of the splits over questions, in {rate['over_seeds']:.1%} over "
            f"seeds, in {rate['both']:.1%} over both, which is what counts as shown here (before correction). The "
            "splits are of the same ten runs, of one row whose seeds differ little: one look, and no estimate of the "
            "rate of all rows."
        )
    else:
        lines.append("- Error rate: the ten seeds have not run yet.")
    lines.append(f"- **Power.** Labels of 10% of the training pairs flipped: {judge_power(evidence)}.")
    return "\n".join(lines)


def _write_conclusions(evidence: Evidence) -> str:
    shown = [f for f in evidence.findings if f.contrast and f.contrast.is_shown]
    run = [f for f in evidence.findings if f.contrast]
    lines = [f"{len(run)} of {len(evidence.findings)} comparisons have run; {len(shown)} are shown beyond chance."]
    for finding in shown:
        row = finding.rows[0]
        sign = "more" if finding.contrast.difference > 0 else "fewer"  # type: ignore[union-attr]
        points = format_figure(abs(finding.contrast.difference))  # type: ignore[union-attr]
        lines.append(f"- Start ({row.start}), {row.set}: {finding.title}: {points} {sign} of MAP")
    if not shown and run:
        lines.append("Nothing is. What lies outside its interval is what a comparison speaks against.")
    flipped = evidence.find(*(evidence.recipe.content["calibration"][name] for name in ("flipped", "row")))
    if flipped and flipped.contrast and not flipped.contrast.is_shown:
        points = format_figure(abs(flipped.contrast.difference))
        lines.append(
            f"So strict is the correction: even a tenth of flipped labels, which cost {points}, is not shown by it."
        )
    return lines[0] + "\n\n" + "\n".join(lines[1:]) if lines[1:] else lines[0]
