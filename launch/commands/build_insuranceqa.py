"""Gives InsuranceQA's questions pools of candidates that BM25 finds among all answers, 500 as in version 2."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.core.command_line import parse
from data_pipeline.core.settings import AT_LEAST_2, REQUIRED, setting
from finetune.data.builders.pools import CANDIDATES, SPLITS, TRAIN_CANDIDATES, build_pools

DESCRIPTION = """Builds InsuranceQA with pools of candidates that BM25 finds among all answers.

Papers rank 500 candidates that a search engine found (version 2), and measure on the questions that have a right answer
among them. Distributed copies have the questions and answers, but not always these pools. Input: a folder with
answers.jsonl, train.jsonl, valid.jsonl and test.jsonl, as for insuranceqa=FOLDER. Output: the same files with other
candidates, for insuranceqa=OUTPUT_DIR. Training questions keep all their right answers.

If you have version 2 as distributed, name it as insuranceqa_v2=FOLDER, and leave this out."""

EPILOG = """example:
  kinspan data insuranceqa --input data/insuranceqa --output_dir data/insuranceqa-500"""


@dataclass
class BuildInsuranceqaConfig:
    """Flags of this entry."""

    input: str = setting(REQUIRED)
    """Folder of the data set."""
    output_dir: str = setting(REQUIRED)
    """Folder to write to."""
    candidates: int = setting(CANDIDATES, AT_LEAST_2)
    """Candidates of a dev or test question."""
    train_candidates: int = setting(TRAIN_CANDIDATES, AT_LEAST_2)
    """Candidates of a training question, beside its right answers. Training pairs are as many as questions times
    candidates; --negatives_per_question of kinspan finetune trains on a few of them in each epoch."""


def main() -> Iterator[str]:
    config = parse(BuildInsuranceqaConfig, DESCRIPTION, EPILOG)
    counts = build_pools(Path(config.input), Path(config.output_dir), config.candidates, config.train_candidates)
    for split in SPLITS:
        count = counts[split]
        share = count.found / max(1, count.questions)
        yield f"{split}: {count.questions:,} questions, {count.found:,} ({share:.1%}) with a right answer in the pool"
    yield f"insuranceqa={config.output_dir}"
