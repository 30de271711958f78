"""Turns Natural Questions into ASNQ, the data set of TANDA's transfer step."""

from dataclasses import dataclass

from data_pipeline.core.command_line import parse
from data_pipeline.core.settings import FROM_0_TO_1, REQUIRED, WORKERS, setting
from data_pipeline.prepare.read import MAX_REJECTED, MAX_REJECTED_HELP
from finetune.data.as2 import PAPER_GRADE_COUNTS
from finetune.data.builders.asnq import QuestionTally, build_asnq
from finetune.data.builders.natural_questions import LABELS
from finetune.data.registry import PAPER_COUNTS

DESCRIPTION = """Builds ASNQ from Natural Questions as section 4 of Garg et al., 2020 (TANDA) does: every sentence of a
question's Wikipedia page, labelled by whether it is in the long answer and holds a short answer.

Input: Natural Questions' .jsonl files (also .gz, .xz, .zst), in the simplified or the original form; files, globs
or folders. A question needs a long and a short answer, by its one annotator or by two of five. Output: train.tsv,
dev.tsv and test.tsv, which kinspan finetune reads as asnq=FOLDER. The published ASNQ can be used as it is."""

EPILOG = """example:
  kinspan data asnq --train v1.0-simplified_simplified-nq-train.jsonl.gz --dev nq-dev/ --output_dir asnq"""


@dataclass
class BuildAsnqConfig:
    output_dir: str = setting(REQUIRED)
    """Folder to write to; its train.tsv, dev.tsv and test.tsv are replaced."""
    train: list[str] = setting([])
    """Files of the training set."""
    dev: list[str] = setting([])
    """Files of the development set, which is split in half into dev and test by a hash of the question."""
    max_rejected: float = setting(MAX_REJECTED, FROM_0_TO_1, help=MAX_REJECTED_HELP)
    num_workers: int = setting(1, WORKERS)
    """Number of processes that split pages into sentences."""


def format_tally(name: str, tally: QuestionTally) -> str:
    """Returns a table: the questions by outcome, and the sentences by label beside the paper's counts."""
    lines = [f"--{name}"]
    lines += [f"  questions: {reason:<52} {count:>12,}" for reason, count in tally.outcomes.items() if count]
    splits = list(tally.labels)
    lines.append(f"  {'label':<20}" + "".join(f"{split:>14}" for split in (*splits, f"TANDA {name}")))
    for label in LABELS:
        counts = [tally.labels[split][label] for split in splits] + [PAPER_GRADE_COUNTS[name][label]]
        lines.append(f"  {label:<20}" + "".join(f"{count:>14,}" for count in counts))
    of_paper = PAPER_COUNTS["asnq"][f"{name}/raw"]["Garg et al., 2020"][0]
    questions = [*(tally.questions[split] for split in splits), of_paper]
    lines.append(f"  {'questions':<20}" + "".join(f"{count:>14,}" for count in questions))
    if rejected := tally.read.rejected:
        sizes = f"{tally.read.rejected_bytes:,} of {tally.read.bytes:,} bytes"
        lines.append(f"  {rejected:,} lines could not be parsed ({sizes}); the first: {tally.first_rejected}")
    return "\n".join(lines)


def main() -> str:
    config = parse(BuildAsnqConfig, DESCRIPTION, EPILOG)
    tallies = build_asnq(config.train, config.dev, config.output_dir, config.num_workers, config.max_rejected)
    return "\n".join(format_tally(name, tally) for name, tally in tallies.items())
