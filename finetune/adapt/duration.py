"""How long an adaptation will take, from the speed of its first updates."""

import re

import pyarrow.compute as pc

from finetune.data.answers import AnswerSet

from .budget import BATCH, FEWEST_UPDATES, Budget
from .questions import Questions
from .ways import MAX_LENGTH, VALIDATIONS, count_updates

SPEED = re.compile(
    r"\bstep \d+/\d+ +train .* ([\d,]+) tokens/s .* ([\d.]+) steps/s"
)  # as the log of pre-training has it
CHARACTERS = 4  # of a token, about
CROSS_ENCODERS, ANSWERS = 2, 3  # that are fine-tuned; answers in a bi-encoder's update for each question
RANKINGS = 3 * (VALIDATIONS + 3) + 2  # of the dev questions: before, during and after each fine-tuning; without any
TEST_RANKINGS = 4  # by the model as it is and the parts of the fusion
SCORED = 1 / 3  # of the time that training on a token takes, where it is only scored
SAMPLE_TOKENS = 200_000  # that are scored without questions: SelQA's and the held-out texts, each by several rankers

DURATION = (
    "  at the present speed all of it will take about {total}: {pretraining} to pre-train, {rest} to rank a hundred "
    "questions"
)
WITH_QUESTIONS = (
    "  at the present speed all of it will take about {total}: {pretraining} to pre-train, {finetuning} to fine-tune "
    "three rankers, {rest} to rank the dev and test questions"
)


def describe_duration(line: str, budget: Budget, questions: Questions | None) -> str | None:
    """What the first line of the log that has the speed of pre-training lets one expect; None of any other line."""
    found = SPEED.search(line)
    if not found:
        return None
    tokens_per_second, updates_per_second = float(found[1].replace(",", "")), float(found[2])
    if not (tokens_per_second and updates_per_second):
        return None
    least = FEWEST_UPDATES / updates_per_second
    pretraining = max(least, budget.seconds or (budget.pairs or 0) / BATCH / updates_per_second)
    if questions is None:
        rest = SAMPLE_TOKENS * SCORED / tokens_per_second
        return _format(DURATION, pretraining=pretraining, rest=rest)
    updates = count_updates(int(pretraining * updates_per_second))
    trained = updates * BATCH * (CROSS_ENCODERS + ANSWERS) * _measure_pair(questions.train)
    scored = RANKINGS * _count_tokens(questions.dev) + TEST_RANKINGS * _count_tokens(questions.test)
    finetuning, rest = trained / tokens_per_second, scored * SCORED / tokens_per_second
    return _format(WITH_QUESTIONS, pretraining=pretraining, finetuning=finetuning, rest=rest)


def _format(text: str, **seconds: float) -> str:
    parts = {name: f"{max(1, round(count / 60))} min" for name, count in seconds.items()}
    return text.format(total=f"{max(1, round(sum(seconds.values()) / 60))} min", **parts)


def _measure_pair(data: AnswerSet) -> float:
    """Tokens of a candidate as it is read, about."""
    characters = pc.min_element_wise(pc.utf8_length(data.answers), MAX_LENGTH * CHARACTERS)
    return pc.mean(characters).as_py() / CHARACTERS


def _count_tokens(data: AnswerSet) -> float:
    return _measure_pair(data) * data.num_pairs
