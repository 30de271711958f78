"""How long the rest of an adaptation will take, at the speed of its last updates."""

from collections import deque
from dataclasses import dataclass
from math import ceil
from time import monotonic

import pyarrow as pa
import pyarrow.compute as pc

from pretrain.engine.log import format_time

from .budget import BATCH, FEWEST_UPDATES, Budget
from .questions import Questions, thin
from .ways import LARGER, MAX_LENGTH, VALIDATED, count_updates

RECENT = 6  # lines of the log that the speed is taken from
CHARACTERS = 4  # of a token, about
PRETRAINING_TOKENS = 55  # of a pair, about
TEXTS = 2  # candidates in a bi-encoder's update for each question
SCORED = 1 / 3  # of the time that training on a token takes, where it is only scored
SAMPLE_TOKENS = 200_000  # that are scored without questions: SelQA's and the held-out texts, each by several rankers
LONG = 15 * 60  # seconds

PRETRAINING, FINE_TUNING, RANKING = "pre-training", "fine-tuning", "ranking"


@dataclass(frozen=True)
class Stage:
    """What a stage does, in tokens that are trained on, or that take as long.

    update:     tokens of an update
    validation: of each validation: before the first update, after every ``between`` and after the last
    after:      of the ranking in the end
    """

    kind: str
    updates: int = 0
    update: float = 0.0
    between: int = 1
    validation: float = 0.0
    after: float = 0.0

    def count_done(self, step: int, is_validated: bool) -> float:
        """Tokens after ``step`` updates; is_validated: and after the validation that follows them."""
        return step * self.update + (ceil(step / self.between) + is_validated) * self.validation

    @property
    def whole(self) -> float:
        return self.count_done(self.updates, True) + self.after


class Forecast:
    """How long each stage of an adaptation takes: the pre-training, three fine-tunings, and the ranking of test
    questions; or the pre-training, and the ranking of the questions that are shipped.

    How long a token takes is known once the log has two lines of updates, and is taken from the last ones, so that it
    follows a machine that gets busy or idle. The first lines of a stage count for less, since they include its start.

    updates: of the pre-training
    """

    def __init__(self, budget: Budget, questions: Questions | None) -> None:
        self.budget, self.updates = budget, FEWEST_UPDATES
        self.tokens = _Tokens(questions) if questions else None
        self.number, self.done = -1, 0.0  # of the stage, and its tokens that are done
        self.pace: float | None = None  # seconds of a token
        self.earlier: float | None = None  # at the end of the stage before
        self.lines: deque[tuple[float, float]] = deque(maxlen=RECENT)  # of the log: when, and tokens that were done

    def begin_stage(self) -> None:
        self.number, self.done, self.earlier = self.number + 1, 0.0, self.pace
        self.lines.clear()

    def count(self, step: int, total: int, is_validated: bool = False) -> None:
        """Takes note that ``step`` updates of ``total`` are made in this stage."""
        if self.number == 0:
            self.updates = total
        stage = self.list_stages()[self.number]
        done = stage.count_done(step, is_validated)
        if self.lines and self.lines[-1][1] > done:  # it goes on from an earlier checkpoint
            self.lines.clear()
        self.lines.append((monotonic(), done))
        (began, first), (now, self.done) = self.lines[0], self.lines[-1]
        if self.done > first:
            share = 1.0 if self.earlier is None else (len(self.lines) - 1) / (RECENT - 1)
            self.pace = share * (now - began) / (self.done - first) + (1 - share) * (self.earlier or 0.0)
        if self.number == 0 and total == FEWEST_UPDATES and self.pace and self.budget.seconds:
            # by whose speed a budget of time becomes a number of updates
            self.updates = max(total, round(self.budget.seconds / (self.pace * stage.update)))

    def list_stages(self) -> list[Stage]:
        pretraining = Stage(PRETRAINING, self.updates, BATCH * PRETRAINING_TOKENS)
        tokens, counts = self.tokens, count_updates(self.updates)
        if tokens is None:
            return [pretraining, Stage(RANKING, after=SAMPLE_TOKENS * SCORED)]
        update, (updates, between) = BATCH * tokens.candidate, counts
        pairs = Stage(FINE_TUNING, updates, update, between, tokens.validated * SCORED, tokens.dev * SCORED)
        updates, between = updates // LARGER, between // LARGER
        texts = Stage(
            FINE_TUNING, updates, TEXTS * update, between, tokens.dev_texts * SCORED, tokens.dev_texts * SCORED
        )
        ranking = tokens.dev + tokens.test + 2 * tokens.test_texts  # by the pre-trained model and the parts of a fusion
        return [pretraining, texts, pairs, pairs, Stage(RANKING, after=ranking * SCORED)]

    def _list_left(self) -> list[float]:
        """Seconds that this stage and each later one take from now on; empty where the pace is not known yet."""
        if not self.pace:
            return []
        present, *later = (stage.whole for stage in self.list_stages()[self.number :])
        return [tokens * self.pace for tokens in (present - self.done, *later)]

    def tell_stage(self) -> str:
        """What is left of this stage; empty where the pace is not known yet."""
        return format_time(left[0]) if (left := self._list_left()) else ""

    def tell_all(self) -> str:
        """What is left in all; empty where the pace is not known yet."""
        return format_time(sum(left)) if (left := self._list_left()) else ""

    @property
    def is_long(self) -> bool:
        return sum(self._list_left()) > LONG

    def list_kinds(self) -> str:
        """What is left of each kind of work."""
        kinds: dict[str, float] = {}
        for stage, seconds in zip(self.list_stages()[self.number :], self._list_left(), strict=True):
            kinds[stage.kind] = kinds.get(stage.kind, 0) + seconds
        return ", ".join(f"{kind} {format_time(seconds)}" for kind, seconds in kinds.items())


class _Tokens:
    """Tokens of questions, about, as they are read: of all candidates, or of the distinct texts alone, which a
    bi-encoder reads.

    candidate: of a training candidate
    validated: of those dev candidates by which a cross-encoder is validated
    """

    def __init__(self, questions: Questions) -> None:
        dev, test = questions.dev.answers, questions.test.answers
        self.dev, self.test, self.dev_texts, self.test_texts = map(
            _count_tokens, (dev, test, dev.unique(), test.unique())
        )
        self.validated = _count_tokens(thin(questions.dev, VALIDATED).answers)
        self.candidate = _count_tokens(questions.train.answers) / questions.train.num_pairs


def _count_tokens(texts: pa.LargeStringArray) -> float:
    characters = pc.min_element_wise(pc.utf8_length(texts), MAX_LENGTH * CHARACTERS)
    return pc.sum(characters).as_py() / CHARACTERS
