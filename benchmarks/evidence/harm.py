"""What harms: the suspects beside the start that was only fine-tuned, and what foretells how a run comes out."""

import numpy as np
from scipy.stats import spearmanr

from finetune.evaluation.significance import format_p

from .findings import Evidence, format_difference, format_figure, say_contrast, say_unfinished
from .recipe import COSINE, FINETUNE, MEASURED
from .results import Outcome
from .tables import format_map, format_table

START = "b"  # where the harm is looked for: an encoder of sentence embeddings, as that of the finding
SET = "wikiqa"
SMALL = 0.005  # of MAP: a mean that is lower by less is no harm that recurs
FINDING = """**The finding.** On another encoder of sentence embeddings 400 updates of SSP at the quickstart's first
rate and weight of the masked-LM loss (2.5e-4 and .05), with 32 pairs of at most 64 tokens, had cost .02 of MAP over
three seeds, while the pair loss improved. Each row below changes of these settings what its name says; larger batches
are also fewer updates, and longer texts more tokens. The quickstart's settings now are a rate of 1e-4, a weight of .2
and 48 tokens. They were chosen when most suspects had run, among pairs of rate and weight, by the cosine on WikiQA's
*dev* set after 240 updates; the figures of that choice were not kept, and the cosine is not shown to foretell
anything (below). Their row was added then."""
CAUSE = """No cause of harm can be named: it did not recur, and suspects are compared with the start alone and not
with one another. That seeds of the finding's settings spread more is not shown either (three seeds, looked at because
they spread most). Single runs differ, with continued pre-training or without: fine-tune with several seeds, or watch
a run with `--probe`."""
OMENS = """**What foretells the MAP?** The rank correlation, over all pre-trainings from start (b), of WikiQA's test
MAP after fine-tuning with what is known of a run before it. It was thought of when most rows had run, and p is not
corrected: a hint, and no finding. Runs of an arm are not independent; the last columns take the mean of each arm as
one. Arms differ in their pairs, and two have none to learn from (MLM alone, permuted labels): part of the first line
is that."""


def describe_harm(evidence: Evidence) -> str:
    """The section of the page."""
    parts = [FINDING, list_suspects(evidence) or "Not run yet.", judge_suspects(evidence), list_omens(evidence)]
    return "\n\n".join(part for part in parts if part)


def find_suspects(evidence: Evidence) -> list[Outcome]:
    """The fine-tuned rows of the quickstart's settings, then and now."""
    rows = evidence.outcomes.values()
    return [o for o in rows if o.row.measure == FINETUNE and _name_arm(o).startswith("quick")]


def list_suspects(evidence: Evidence) -> str:
    """Each suspect with its worst seed, its difference from no continued pre-training, and its cosine; empty where none
    has run."""
    rows = []
    for outcome in find_suspects(evidence):
        row = outcome.row
        harm = evidence.find(row.name, f"{row.start}/none/{row.set}")
        difference = say_contrast(harm.contrast) if harm and harm.contrast else say_unfinished(harm)
        cosine = evidence.outcomes.get(f"{row.start}/{_name_arm(outcome)}, {MEASURED[COSINE]}/{row.set}")
        rows.append(_format_suspect(outcome, difference, format_map(cosine) if cosine else ""))
    if rows and (start := evidence.outcomes.get(f"{START}/none/{SET}")):
        known = format_figure(np.mean(evidence.sets[SET]["baselines"]["cosine"]["ap"]))
        rows.insert(0, _format_suspect(start, "", known))
    header = ["", "MAP (sd)", "worst seed", "less no continued pre-training", "cosine, without fine-tuning"]
    return format_table(header, rows) if rows else ""


def _format_suspect(outcome: Outcome, difference: str, cosine: str) -> list[str]:
    title = f"({outcome.row.start}) {outcome.row.title}"
    return [title, format_map(outcome), format_figure(outcome.maps.min()), difference, cosine]


def judge_suspects(evidence: Evidence) -> str:
    """Whether harm is shown of any; empty as long as the settings of the finding have not run."""
    contrasts = []
    for outcome in find_suspects(evidence):
        found = evidence.find(outcome.row.name, f"{outcome.row.start}/none/{outcome.row.set}")
        if found and found.contrast:
            contrasts.append(found.contrast)
    first, none = (evidence.outcomes.get(f"{START}/{arm}/{SET}") for arm in ("quick", "none"))
    if not contrasts or first is None or none is None or len(first.maps) < 2:
        return ""
    harmful, helpful = (sum(c.is_shown and c.difference * sign > 0 for c in contrasts) for sign in (-1, 1))
    told = (
        f"Of these {len(contrasts)} differences {harmful} are shown to be harm, and {helpful} to be a gain. Seeds of "
        f"the finding's settings spread by {format_figure(first.maps.std(ddof=1))} (standard deviation of "
        f"{len(first.maps)}), those of the start alone by {format_figure(none.maps.std(ddof=1))} (of {len(none.maps)})."
    )
    recurred = harmful or first.maps.mean() < none.maps.mean() - SMALL
    return told if recurred else f"{told} {CAUSE}"


def list_omens(evidence: Evidence) -> str:
    """Which figures that are known before fine-tuning go along with the MAP after it; empty where too few have run."""
    rows = []
    for name, by_arm in collect_omens(evidence, START).items():
        if len(by_arm) > 2:
            runs = np.array([pair for pairs in by_arm.values() for pair in pairs])
            arms = np.array([np.mean(pairs, axis=0) for pairs in by_arm.values()])
            cells = []
            for pairs in (runs, arms):
                rank = spearmanr(*pairs.T)
                cells += [str(len(pairs)), format_difference(rank.statistic), format_p(rank.pvalue)]
            rows.append([name, *cells])
    header = ["figure", "runs", "rank correlation", "p", "arms", "rank correlation", "p"]
    return f"{OMENS}\n\n{format_table(header, rows)}" if rows else ""


def collect_omens(evidence: Evidence, start: str) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """What is known of each pre-training from a start before it is fine-tuned, beside the test MAP after that.

    Returns, by the name of a figure and by arm, a pair for each run of which it is known: the figure, and the MAP.
    """
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for outcome in evidence.outcomes.values():
        row, arm = outcome.row, _name_arm(outcome)
        if (row.start, row.set, row.measure) != (start, SET, FINETUNE) or row.pretrain is None or "," in arm:
            continue  # a variant, such as a head redrawn, begins with the same pre-training
        measured = evidence.outcomes.get(f"{start}/{arm}, {MEASURED[COSINE]}/{SET}")
        cosines = {line["seed"]: np.mean(line["ap"]) for line in measured.lines} if measured else {}
        for line, value in zip(outcome.lines, outcome.maps, strict=True):
            last = line["pretrain"]["last_validation"]
            known = {
                "AUC of held-out pairs": last.get("pair_auc"),
                "masked-LM loss of held-out text": last.get("mlm_loss"),
                "MAP of the cosine, without fine-tuning": cosines.get(line["seed"]),
            }
            for name, figure in known.items():
                if figure is not None:
                    found.setdefault(name, {}).setdefault(arm, []).append((float(figure), float(value)))
    return found


def _name_arm(outcome: Outcome) -> str:
    """With its variant, as in ``quick, head redrawn``."""
    return outcome.row.name.split("/")[1]
