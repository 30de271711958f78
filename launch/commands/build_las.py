"""Turns a forum's dump into a data set of answer selection: its own questions with candidates that BM25 found."""

import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_pipeline.core.command_line import parse
from data_pipeline.core.default_model import DEFAULT_MODEL_NAME
from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import AT_LEAST_2, FROM_0_TO_1, FROM_0_TO_BELOW_1, REQUIRED, setting
from data_pipeline.prepare.read import MAX_REJECTED, MAX_REJECTED_HELP
from finetune.data.builders.forum import CANDIDATES, KINDS, SPLITS, build_forum_set, read_questions

DESCRIPTION = """Builds a data set of answer selection from a forum, as LAS was made (Rücklé et al., 2019).

Input: a StackExchange dump (Posts.xml with PostLinks.xml beside it, or the forum's .7z), or questions:FILE.jsonl with
the questions of a help desk. Output: train.jsonl, dev.jsonl and test.jsonl, which kinspan finetune and
kinspan evaluate read as files=FOLDER. What a question's candidates are:
  title_answer  its accepted answer, and those of the questions that BM25 finds most similar: LAS
  title_body    its body, and those of similar questions
  duplicate     the question that it is a duplicate of, and similar ones; titles and bodies of both
Questions that links of duplicates connect, directly or by way of others, come into one split, and what one of them has
to offer is never a wrong candidate of another.

A question's split is decided by a hash of its forum's name and its own number. The name is that of the dump's folder or
archive, beer for beer.stackexchange.com.7z: keep it, and the split stays the same.

To measure a model that was pre-trained on the same forum, hold the questions of dev and test out of its corpus: the
same hash decides in kinspan prepare --validation_share, with dev's and test's shares added up."""

EPILOG = """examples:
  kinspan data las --input beer.stackexchange.com.7z --output_dir data/las-beer
  kinspan data las --input questions:tickets.jsonl --kind title_body --output_dir data/tickets"""


@dataclass
class BuildLasConfig:
    """Flags of this entry."""

    input: list[str] = setting(REQUIRED)
    """The forum's dump, or questions:FILE.jsonl."""
    output_dir: str = setting(REQUIRED)
    """Folder to write to; its train, dev and test are replaced."""
    kind: Literal["title_answer", "title_body", "duplicate"] = setting("title_answer")
    """What is to be found."""
    candidates: int = setting(CANDIDATES, AT_LEAST_2)
    """Candidates of a question, the right one among them."""
    max_rejected: float = setting(MAX_REJECTED, FROM_0_TO_1, help=MAX_REJECTED_HELP)
    dev_share: float = setting(0.15, FROM_0_TO_BELOW_1)
    """Share of the questions that are for dev."""
    test_share: float = setting(0.15, FROM_0_TO_BELOW_1)
    """Share of the questions that are for test."""


def main() -> None:
    config = parse(BuildLasConfig, DESCRIPTION, EPILOG)
    shares = {"dev": config.dev_share, "test": config.test_share}
    if sum(shares.values()) >= 1:
        raise KinspanError("--dev_share and --test_share: together they must be below 1")
    questions = read_questions(config.input, config.max_rejected)
    print(f"{len(questions):,} questions, {sum(bool(q.answer) for q in questions):,} with an accepted answer")
    groups = Counter(question.group for question in questions)
    connected = [size for size in groups.values() if size > 1]
    if any(question.links for question in questions):
        print(f"{sum(connected):,} of them are duplicates of one another, in {len(connected):,} groups")
    else:
        print(
            "which of them are duplicates of one another is unknown: there are no links (a dump has them in "
            "PostLinks.xml, beside Posts.xml)"
        )
    counts = build_forum_set(questions, config.kind, Path(config.output_dir), shares, config.candidates)
    print(", ".join(f"{split}: {counts[split]:,} questions" for split in SPLITS))
    found = sum(bool(KINDS[config.kind].finds(question)) for question in questions)
    if found < config.candidates:
        print(f"note: no question has --candidates {config.candidates}: the forum has {found:,} texts that can be one")
    print(
        f"{config.output_dir} is written. Measure a model on it, and adapt one to the forum:\n"
        f"  kinspan evaluate --model {DEFAULT_MODEL_NAME} --data files={shlex.quote(config.output_dir)}\n"
        f"  kinspan adapt --documents {shlex.join(config.input)} --questions {shlex.quote(config.output_dir)} "
        "--output_dir adapted"
    )
