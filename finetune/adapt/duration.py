"""How long the rest of an adaptation will take, at the speed of its last updates."""

from collections import deque
from time import monotonic

import pyarrow.compute as pc

from finetune.data.answers import AnswerSet
from pretrain.runtime.log import format_time

from .budget import BATCH, FEWEST_UPDATES, Budget
from .questions import DEV, TEST, TRAIN, Questions
from .ways import MAX_LENGTH, VALIDATIONS, count_updates

RECENT = 6  # lines of the log that the speed is taken from: in fine-tuning, those from one validation to the next
CHARACTERS = 4  # of a token, about
PRETRAINING_TOKENS = 55  # of a pair, about
ANSWERS = 3  # in a bi-encoder's update for each question
RANKINGS = VALIDATIONS + 3  # of the dev questions in a fine-tuning: before, during and after it
UNTRAINED = 2  # rankings of the dev questions without any
TEST_RANKINGS = 4  # by the model as it is and the parts of the fusion
SCORED = 1 / 3  # of the time that training on a token takes, where it is only scored
SAMPLE_TOKENS = 200_000  # that are scored without questions: SelQA's and the held-out texts, each by several rankers

UNLABELLED = ("pre-training", "ranking")
LABELLED = ("pre-training", *["fine-tuning"] * 3, "ranking")


class Forecast:
    """How long each stage of an adaptation takes: the pre-training, three fine-tunings, and the ranking of test
    questions; or the pre-training, and the ranking of the questions that are shipped.

    The work of a stage is counted in tokens that are trained on. How many are done in a second is known once the log
    has two lines of updates, and is taken from the last ones, so that it follows a machine that gets busy or idle.

    updates: of the pre-training
    """

    def __init__(self, budget: Budget, questions: Questions | None) -> None:
        self.budget, self.updates = budget, FEWEST_UPDATES
        self.stages = LABELLED if questions else UNLABELLED
        self.tokens = {data.split: _count_tokens(data) for data in questions.splits} if questions else {}
        self.of_candidate = self.tokens[TRAIN] / questions.train.num_pairs if questions else 0
        self.stage, self.done = -1, 0.0  # and the share of it that is done
        self.speed: float | None = None  # tokens a second
        self.lines: deque[tuple[float, int]] = deque(maxlen=RECENT)  # of the log: when, and after how many updates

    def begin_stage(self) -> None:
        self.stage, self.done = self.stage + 1, 0.0
        self.lines.clear()

    def count(self, step: int, total: int) -> None:
        """Takes note that ``step`` updates of ``total`` are made in this stage."""
        if self.lines and self.lines[-1][1] > step:  # it goes on from an earlier checkpoint
            self.lines.clear()
        self.lines.append((monotonic(), step))
        (began, first), (now, last) = self.lines[0], self.lines[-1]
        rate = (last - first) / (now - began) if last > first else 0.0
        if self.stage == 0:
            if total == FEWEST_UPDATES:  # by whose speed a budget of time becomes a number of updates
                total = max(total, int(rate * (self.budget.seconds or 0)))
            self.updates = total
        self.done = step / total
        if rate:
            self.speed = rate * self._list_work()[self.stage] / total

    def _list_work(self) -> list[float]:
        """Tokens of each stage."""
        pretraining = self.updates * BATCH * PRETRAINING_TOKENS
        if not self.tokens:
            return [pretraining, SAMPLE_TOKENS * SCORED]
        dev, test = self.tokens[DEV], self.tokens[TEST]
        trained = count_updates(self.updates) * BATCH * self.of_candidate
        cross_encoder, bi_encoder = (count * trained + RANKINGS * dev * SCORED for count in (1, ANSWERS))
        rest = (UNTRAINED * dev + TEST_RANKINGS * test) * SCORED
        return [pretraining, bi_encoder, cross_encoder, cross_encoder, rest]

    def _list_left(self) -> list[float]:
        """Seconds that this stage and each later one take from now on; empty where the speed is not known yet."""
        if not self.speed:
            return []
        present, *later = self._list_work()[self.stage :]
        return [tokens / self.speed for tokens in (present * (1 - self.done), *later)]

    def tell_stage(self) -> str:
        """What is left of this stage; empty where the speed is not known yet."""
        return format_time(left[0]) if (left := self._list_left()) else ""

    def tell_all(self) -> str:
        """What is left in all; empty where the speed is not known yet."""
        return format_time(sum(left)) if (left := self._list_left()) else ""

    def list_kinds(self) -> str:
        """What is left of each kind of work."""
        kinds: dict[str, float] = {}
        for kind, seconds in zip(self.stages[self.stage :], self._list_left(), strict=True):
            kinds[kind] = kinds.get(kind, 0) + seconds
        return ", ".join(f"{kind} {format_time(seconds)}" for kind, seconds in kinds.items())


def _count_tokens(data: AnswerSet) -> float:
    """Tokens of all candidates as they are read, about."""
    characters = pc.min_element_wise(pc.utf8_length(data.answers), MAX_LENGTH * CHARACTERS)
    return pc.sum(characters).as_py() / CHARACTERS
