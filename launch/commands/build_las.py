"""Turns a forum's dump into a data set of answer selection: its questions with candidates found by BM25."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_pipeline.core.command_line import parse
from data_pipeline.core.settings import AT_LEAST_2, FROM_0_TO_1, REQUIRED, setting
from data_pipeline.prepare.read import MAX_REJECTED, MAX_REJECTED_HELP
from finetune.data.builders.forum import CANDIDATES, SPLITS, build_forum_set, read_questions

log = logging.getLogger(__name__)
SHARES = {"dev": 0.15, "test": 0.15}  # shares of the questions

DESCRIPTION = """Builds a data set of answer selection from a forum, as LAS was made (Rücklé et al., 2019).

Input: a StackExchange dump (Posts.xml with PostLinks.xml beside it, or the forum's .7z), or questions:FILE.jsonl with
questions of a help desk. Output: train.jsonl, dev.jsonl and test.jsonl, which kinspan finetune and
kinspan evaluate read as files=FOLDER. --kind chooses the candidates of a question:
  title_answer  its accepted answer, and those of the questions that BM25 finds most similar: LAS
  title_body    its body, and those of similar questions
  duplicate     the question that it duplicates, and similar ones; titles and bodies of both
Training questions have no candidate of a dev or test question. Duplicates are in the same split, and the answers of
one are never wrong candidates of another. To keep the texts of dev and test out of a corpus of the same forum, give
kinspan prepare --validation_share 0.3: it uses the same hash."""

EPILOG = """examples:
  kinspan data las --input beer.stackexchange.com.7z --output_dir data/las-beer
  kinspan data las --input questions:tickets.jsonl --kind title_body --output_dir data/tickets"""


@dataclass
class BuildLasConfig:
    input: list[str] = setting(REQUIRED)
    """The forum's dump, or questions:FILE.jsonl."""
    output_dir: str = setting(REQUIRED)
    """Folder to write to; its train, dev and test are replaced."""
    kind: Literal["title_answer", "title_body", "duplicate"] = setting("title_answer")
    """Kind of the candidates."""
    candidates: int = setting(CANDIDATES, AT_LEAST_2)
    """Number of candidates of a question, with the right one."""
    max_rejected: float = setting(MAX_REJECTED, FROM_0_TO_1, help=MAX_REJECTED_HELP)


def main() -> Iterator[str]:
    config = parse(BuildLasConfig, DESCRIPTION, EPILOG)
    questions = read_questions(config.input, config.max_rejected)
    yield f"{len(questions):,} questions, {sum(bool(q.answer) for q in questions):,} with an accepted answer"
    if not any(question.links for question in questions):
        log.warning("no links between duplicates: PostLinks.xml beside Posts.xml, or the field links, has them")
    counts = build_forum_set(questions, config.kind, Path(config.output_dir), SHARES, config.candidates)
    yield ", ".join(f"{split}: {counts[split]:,} questions" for split in SPLITS)
    yield f"files={config.output_dir}"
