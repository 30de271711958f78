"""The tables and the descriptive paragraphs of the page, each from the results by rule."""

from collections.abc import Callable, Sequence

import numpy as np
import yaml

from data_pipeline.errors import KinspanError
from data_pipeline.files import find_file
from finetune.evaluation.significance import SIGNIFICANT, format_p

from .findings import (
    Evidence,
    compare_in_half_precision,
    compare_without_contaminated,
    format_difference,
    format_figure,
    list_contamination,
    say_contrast,
)
from .recipe import FINETUNE, Row, hash_settings
from .results import Outcome, invert_ranks, list_choice_values
from .statistics import find_detectable

ARMS_OF_CURVES = ("none", "mlm", "ssp")
TOKENS = "max_tokens"
BASELINES = {"BM25": "BM25 (all words, stemmed)", "cosine": "zero-shot cosine of all-MiniLM-L6-v2"}


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, its first column to the left."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *rows))


def describe_state(evidence: Evidence) -> str:
    """Says which groups of rows have not run, or not with all seeds."""
    groups: dict[str, list[bool]] = {}
    for name, row in evidence.rows.items():
        groups.setdefault(row.group, []).append(evidence.is_complete(name))
    short = {name: (sum(done), len(done)) for name, done in groups.items() if not all(done)}
    if not short:
        return "All rows of the recipe have run."
    done, count = sum(map(evidence.is_complete, evidence.rows)), len(evidence.rows)
    listed = "; ".join(f"{name} ({has_run} of {of})" for name, (has_run, of) in short.items())
    return (
        f"*{done} of {count} rows have run with all their seeds. Of these groups not all have, for want of hours: "
        f"{listed}.*"
    )


def describe_design(evidence: Evidence) -> str:
    """Starts, arms, settings and how they were chosen."""
    content = evidence.recipe.content
    arms = [f"| {name} | {arm['title']} |" for name, arm in content["arms"].items()]
    tokens = {start: told["pretrain"]["max_tokens"] for start, told in content["starts"].items()}
    paragraphs = [
        "**Two starts.** " + "; ".join(told["title"] for told in content["starts"].values()) + ".",
        _describe_scratch(evidence),
        "**Arms.** What comes between the start and fine-tuning, each with "
        + " or ".join(f"{count / 1e6:g} million tokens from start ({start})" for start, count in tokens.items())
        + ", the same text, batches of 32 pairs of at most 128 tokens and the same rates; MLM weighs 1 and pairs 20. "
        "The suspects of harm have settings of their own. At equal weights, which the papers have, a million tokens "
        "did not teach SSP: from (a) the held-out pair AUC was .51 after 357 updates at a rate of 1e-4 and .54 after "
        "300 at 1e-3, and with pairs at 20 and 3e-4 .58 after 300. The weight and the tokens were changed for this "
        "figure alone. No row of a comparison had run; two fits of the choices had, with equal weights: dev MAP .697 "
        "for MLM alone and .696 for SSP. Of (b) the masked-LM head is not published and starts fresh, and its "
        "gradient is large.",
        "\n".join(["| arm | |", "|---|---|", *arms]),
        "MLM alone is no exact control of the others: Adam scales an update by the size of the gradient, so that a "
        "lone loss moves the weights at full strength. The control that shares all losses has permuted pair labels. "
        "Where a pair head was trained it is kept for fine-tuning; where none was, the whole head is drawn anew. Rows "
        "with *the head redrawn* say what a trained head is worth, and exist for such arms alone. Of zero-shot rows by "
        "the pair head, those whose head was not trained show what chance is.",
        "**Fine-tuning** ends when the dev MAP has not improved in more than "
        f"{content['finetune']['patience']} validations in a row, or after {content['sets']['wikiqa']['epochs']} "
        f"epochs of WikiQA and {content['sets']['trecqa']['max_steps']} updates of TREC-QA, and the best validation "
        "counts. Where that is the last one (the tables count such seeds: *best at the end*), more updates might have "
        "gone further: most runs from start (b) and of TREC-QA reached that end. The settings of each start were "
        "chosen once, on WikiQA's dev set with a seed that no row has, and hold for all of its arms; where training "
        "questions are left out, the dev set stays whole, and arms of one seed draw the same questions. All settings: "
        "[recipe.yaml](evidence/recipe.yaml).",
        "**Precision.** Machines that multiply bf16 fast trained in it, others in fp32, pre-training and fine-tuning "
        "alike; scores are computed in fp32. Some rows of start (b) have seeds of both (the tables say how many), and "
        "of its choices one of the two fits with the higher rate of pre-training. Where seeds of MLM alone and of SSP "
        "have fp32, those ranked by the pair head were pre-trained once more, in bf16.",
        _list_choices(evidence),
        _describe_corpus(evidence),
    ]
    return "\n\n".join(part for part in paragraphs if part)


def _describe_scratch(evidence: Evidence) -> str:
    """How far the start that is trained here came."""
    lines = []
    for start in evidence.recipe.content["starts"]:
        made = evidence.store.read(f"start-{start}")
        if made:
            curve = made["validation_mlm_loss"]
            quarter = [loss for step, loss in curve if step >= 0.75 * curve[-1][0]]
            shown = curve[:: max(1, len(curve) // 6)]
            lines.append(
                f"Start ({start}) saw {made['tokens'] / 1e6:.1f} million tokens in {made['seconds'] / 3600:.1f} hours. "
                "Its masked-LM loss on held-out documents (nats), by update: "
                + ", ".join(f"{step:,}: {loss:.2f}" for step, loss in [*shown, curve[-1]])
                + f"; over the last quarter it fell by {quarter[0] - quarter[-1]:.2f}."
            )
    return "\n\n".join(lines)


def _list_choices(evidence: Evidence) -> str:
    rows = []
    for choice in evidence.recipe.choices:
        for value, dev in list_choice_values(evidence.store, choice):
            mark = " **chosen**" if value == choice.chosen else ""
            arms = ", ".join(row.title.partition(", ")[0] for row in choice.rows[0])
            rows.append([choice.name, arms, f"{value:g}{mark}", "not run yet" if dev is None else format_figure(dev)])
    return format_table(["choice", "by the arms", "value", "dev MAP"], rows)


def _describe_corpus(evidence: Evidence) -> str:
    for content in evidence.sets.values():
        totals = content["corpus"]["totals"]
        return (
            f"**Text.** {totals['documents']:,} documents, {totals['paragraphs']:,} paragraphs, "
            f"{totals['tokens'] / 1e6:.0f} million tokens of Wikipedia and news, for start (a) and for all arms."
        )
    return ""


def list_detectable(evidence: Evidence) -> str:
    """The smallest detectable difference of each set."""
    rows, strict = [], SIGNIFICANT / len(evidence.findings)
    for (start, set_name, share, seeds), parts in evidence.collect_parts().items():
        name = f"start ({start}), {set_name}" + ("" if share == 1 else f", {share:.0%} of the questions")
        each = sorted(find_detectable([of_one]) for of_one in parts)
        figures = (find_detectable(parts), find_detectable(parts, strict))
        spread = f"{format_figure(each[0])} to {format_figure(each[-1])}"
        rows.append([name, " and ".join(map(str, seeds)), str(len(parts)), spread, *map(format_figure, figures)])
    if not rows:
        return ""
    told = (
        "**The smallest detectable difference**: what a true difference must be for both tests to find it at 5% in 80 "
        "of 100 studies, which are simulated with the mean variances of the comparisons on a set; alone, and at the "
        "level that Holm's method gives the smallest p. A null result does not speak against a smaller difference."
    )
    header = ["set", "seeds", "comparisons", "alone, least to most", "alone, mean", "corrected, mean"]
    return f"{told}\n\n{format_table(header, rows)}"


def list_rows(evidence: Evidence, start: str, set_name: str) -> str:
    """The table of a start on a set, BM25 and the cosine first; empty where no row has run."""
    outcomes = [o for o in evidence.outcomes.values() if (o.row.start, o.row.set) == (start, set_name)]
    if not outcomes:
        return ""
    rows = []
    for name, title in BASELINES.items():
        figures = evidence.sets[set_name]["baselines"][name]
        rr = invert_ranks(np.array(figures["rank"]))
        rows.append([title, "", format_figure(np.mean(figures["ap"])), format_figure(rr.mean()), "", "", "", ""])
    rows += [_format_row(outcome) for outcome in outcomes]
    return format_table(["", "seeds", "MAP (sd)", "MRR", "dev MAP", "updates", "best at the end", "precision"], rows)


def _format_row(outcome: Outcome) -> list[str]:
    lines, count = outcome.lines, len(outcome.ap)
    title = outcome.row.title + ("" if count == len(outcome.row.compared) else " (not all seeds yet)")
    tuned = [line for line in lines if line["finetune"]]
    dev = format_figure(np.mean([line["dev_map"] for line in tuned])) if tuned else ""
    updates = f"{np.mean([line['finetune']['best_step'] for line in tuned]):.0f}" if tuned else ""
    at_end = sum(line["finetune"]["best_step"] == line["finetune"]["steps"] for line in tuned)
    precisions = outcome.precisions
    counts = [f"{precisions.count(p)} {p}" for p in dict.fromkeys(precisions)]
    trained = precisions[0] if len(counts) == 1 else ", ".join(counts)
    cells = [title, str(count), format_map(outcome), format_figure(outcome.rr.mean()), dev, updates]
    return [*cells, str(at_end) if tuned else "", trained if tuned else ""]


def format_map(outcome: Outcome) -> str:
    """Mean over seeds, and their standard deviation in brackets."""
    deviation = f" ({format_figure(outcome.maps.std(ddof=1))})" if len(outcome.maps) > 1 else ""
    return format_figure(outcome.maps.mean()) + deviation


def describe_pretrainings(evidence: Evidence) -> str:
    """What the arms came to on held-out pairs, so that a null is not for want of learning."""
    rows, seen = [], set()
    for outcome in evidence.outcomes.values():
        made = [line["pretrain"] for line in outcome.lines if line["pretrain"]]
        key = outcome.row.start, hash_settings(outcome.row.pretrain)
        if not made or key in seen:
            continue
        seen.add(key)
        cells = [f"({outcome.row.start}) {outcome.row.title}", f"{np.mean([m['tokens'] for m in made]) / 1e6:.2f} M"]
        cells.append(f"{np.mean([m['steps'] for m in made]):,.0f}")
        for figure in ("mlm_loss", "pair_loss", "pair_auc"):
            pairs = [[m[when].get(figure) for when in ("first_validation", "last_validation")] for m in made]
            known = [pair for pair in pairs if None not in pair]
            cells.append(" to ".join(f"{value:.3f}" for value in np.mean(known, axis=0)) if known else "")
        rows.append(cells)
    if not rows:
        return ""
    header = ["pre-training", "tokens", "updates", "masked-LM loss", "pair loss", "AUC of pairs"]
    told = (
        "What the arms learned, on held-out documents, before and after. A pair loss of .500 is that of always giving "
        "the share of positives, one in five, so that permuted labels come to it too; a pair head of start (a) that is "
        "not trained has more. The masked-LM loss of start (a) no longer falls at the arms' rate."
    )
    return f"{told}\n\n{format_table(header, rows)}"


def list_findings(evidence: Evidence) -> str:
    """Every comparison of the recipe with its tests."""
    rows = []
    for finding in evidence.findings:
        row, c = finding.rows[0], finding.contrast or finding.partial
        title = f"({row.start}) {finding.title}" + ("" if row.set == "wikiqa" else f"; {row.set}")
        title += f" *({finding.progress})*" if finding.partial else ""
        if c is None:
            rows.append([title, "not run yet", "", "", "", ""])
            continue
        seeds = "" if c.over_seeds is None else format_p(c.over_seeds)
        interval = f"{format_difference(c.low)} to {format_difference(c.high)}"
        corrected = f"**{format_p(c.corrected)}**" if c.is_shown else format_p(c.corrected)
        corrected = "" if finding.partial else corrected
        rows.append([title, format_difference(c.difference), interval, format_p(c.over_questions), seeds, corrected])
    header = ["comparison", "MAP", "95% interval", "p over questions", "p over seeds", "corrected p"]
    return format_table(header, rows)


def list_half_precision(evidence: Evidence) -> str:
    """The comparisons of rows with seeds of both precisions, by those in bf16 alone; empty where there is none."""
    rows = []
    for finding in evidence.findings:
        both, half = finding.contrast, compare_in_half_precision(evidence, finding)
        if both and half and half.over_seeds is not None:
            cells = [f"({finding.rows[0].start}) {finding.title}", " and ".join(map(str, half.parts.num_seeds))]
            cells += [format_difference(both.difference), format_difference(half.difference)]
            interval = f"{format_difference(half.low)} to {format_difference(half.high)}"
            rows.append([*cells, interval, format_p(half.over_questions), format_p(half.over_seeds)])
    if not rows:
        return ""
    header = ["comparison", "seeds in bf16", "all seeds", "in bf16", "95% interval", "p over questions", "p over seeds"]
    told = "Of these some rows have seeds in fp32 and in bf16. By those in bf16 alone, p not corrected:"
    return f"{told}\n\n{format_table(header, rows)}"


def list_contaminated(evidence: Evidence) -> str:
    """MAP with and without the questions whose answers the text holds, and the comparisons of two rows without them."""
    parts = []
    for start in evidence.recipe.content["starts"]:
        for set_name, content in evidence.sets.items():
            listed = list_contamination(evidence, start, set_name)
            if not listed:
                continue
            counts = {kind: len(numbers) for kind, numbers in content["contaminated"].items()}
            asked = content["questions"]["test"]
            rows = [[row.title, *map(format_figure, figures)] for row, *figures in listed]
            header = [
                f"start ({start}), {set_name}: MAP",
                f"all {asked} questions",
                f"without {counts['answer']} whose answer is in the text",
                f"without {counts['candidate']} of which any candidate is",
            ]
            parts.append(format_table(header, rows))
    rows = []
    for finding in evidence.findings:
        without = compare_without_contaminated(evidence, finding)
        if without and finding.contrast:
            difference, questions, seeds = without
            rows.append(
                [
                    f"({finding.rows[0].start}) {finding.title}; {finding.rows[0].set}",
                    format_difference(finding.contrast.difference),
                    format_difference(difference),
                    format_p(questions),
                    "" if seeds is None else format_p(seeds),
                ]
            )
    if rows:
        header = ["comparison", "all", "without answers in the text", "p over questions", "p over seeds"]
        parts.append("The comparisons without them, p not corrected:\n\n" + format_table(header, rows))
    return "\n\n".join(parts) or "Not run yet."


def collect_shares(evidence: Evidence) -> dict[str, dict[float, np.ndarray]]:
    """MAP of each seed by arm and share of the training questions, on WikiQA from start (a)."""
    return _collect_curves(evidence, ("of the questions",), lambda row: row.share)


def collect_doses(evidence: Evidence) -> dict[str, dict[float, np.ndarray]]:
    """MAP of each seed by arm and tokens of continued pre-training, on WikiQA from start (a)."""
    return _collect_curves(
        evidence, ("of the tokens", "times the tokens"), lambda row: (row.pretrain or {}).get(TOKENS)
    )


def _collect_curves(
    evidence: Evidence, endings: tuple[str, ...], place: Callable[[Row], float | None]
) -> dict[str, dict[float, np.ndarray]]:
    """By arm, and by ``place``, of the complete rows, as they are and of those whose variant ends so."""
    curves: dict[str, dict[float, np.ndarray]] = {}
    for name, outcome in evidence.outcomes.items():
        row = outcome.row
        if not evidence.is_complete(name):
            continue
        arm, _, variant = row.name.removeprefix("a/").removesuffix("/wikiqa").partition(", ")
        if (row.start, row.set, row.measure) != ("a", "wikiqa", FINETUNE) or arm not in ARMS_OF_CURVES:
            continue
        if (not variant or variant.endswith(endings)) and (x := place(row)) is not None:
            curves.setdefault(evidence.recipe.content["arms"][arm]["title"], {})[x] = outcome.maps
    return {arm: dict(sorted(points.items())) for arm, points in curves.items()}


def say_whether_few_labels_matter(evidence: Evidence) -> str:
    """Whether the gain of SSP is larger where labels are few: the contrast of four rows."""
    finding = next((f for f in evidence.findings if len(f.rows) == 4), None)
    if finding is None or finding.contrast is None:
        return "Whether the gain is larger where labels are few: not run yet."
    contrast = finding.contrast
    told = (
        "The gain of SSP over the start with 5% of the training questions, less its gain with all: "
        f"{say_contrast(contrast)}."
    )
    if not contrast.is_shown:
        return f"{told} That continued pre-training matters most where labels are few is not shown."
    more = "more" if contrast.difference > 0 else "less"
    return f"{told} It matters {more} where labels are few."


def list_papers(evidence: Evidence) -> str:
    """The papers' figures from the recipes of their tables."""
    rows = []
    for name in evidence.recipe.content["papers"]:
        path = find_file(name)
        if path is None:
            raise KinspanError(f"{name}, whose figures the page shows, is missing")
        study = yaml.safe_load(path.read_text(encoding="utf-8"))
        for row in study["rows"]:
            figures = [row.get("paper", {}).get(s, {}).get("map") for s in evidence.recipe.content["sets"]]
            if any(figures):
                rows.append([row["name"], *("" if f is None else format_figure(f) for f in figures), study["source"]])
    return format_table(["MAP", *evidence.recipe.content["sets"], "source"], rows)


def describe_machines(evidence: Evidence) -> str:
    """Where the results were computed."""
    tuned = [line for outcome in evidence.outcomes.values() for line in outcome.lines if line["finetune"]]
    machines = {f"{line['machine']}, trained in {line['finetune']['precision']}" for line in tuned}
    if not machines:
        return ""
    told = "Computed on: " + "; ".join(sorted(machines)) + "."
    for start in evidence.recipe.content["starts"]:
        outcomes = [o for o in evidence.outcomes.values() if o.row.start == start]
        # An ELECTRA made of the start has a fingerprint of its own.
        own = [o for o in outcomes if (o.row.pretrain or {}).get("token_loss") != "rtd"]
        if len(weights := {line["start"] for o in own for line in o.lines}) > 1:
            told += f" Start ({start}) was made {len(weights)} times on these machines, to different bits."
    return told
