"""Updates a ranker: forward and backward over micro-batches, then the optimizer's step.

A cross-encoder's loss is the binary cross-entropy of each pair (Garg et al., 2020, section 3.2: their softmax over two
logits is the sigmoid of one). A bi-encoder compares each question with all answers of the global batch. An example is a
question, one of its right answers, and as many wrong candidates as ``--own_negatives`` says. The gradient is that of
the whole batch in one graph, see pretrain.modeling.siamese.cached. A candidate that is labelled as right for a question
is never its negative, whichever example brought it into the batch.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F

from finetune.data.answers import AnswerSet
from finetune.ranking.encode import EncodedPairs
from finetune.ranking.siamese import EncodedAnswers
from pretrain.engine.deepspeed_compat import Engine, finish_update, nan_guard
from pretrain.engine.layout import Layout
from pretrain.engine.loop import Outcome
from pretrain.engine.watch import note_place
from pretrain.modeling.cpu.dropout import decide_dropout
from pretrain.modeling.siamese.cached import Comparison, cache_gradients, surrogate_loss
from pretrain.modeling.siamese.losses import compare_texts

from .groups import Groups, read_labels

NUM_SUMS = 2  # for the log: the sum of losses, and the number of questions


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The data and settings of all updates of a cross-encoder.

    pairs, labels: of the training set, row by row; labels int ``[N]``
    seed:          seed of dropout
    """

    pairs: EncodedPairs
    labels: np.ndarray
    layout: Layout
    rank: int
    seed: int

    def measure(self, rows: np.ndarray) -> np.ndarray:
        """Returns the number of tokens of each row's pair."""
        return self.pairs.measure(rows)

    def update(self, engine: Engine, groups: Groups, batch: np.ndarray, step: int) -> Outcome:
        """Trains, with all ranks, on the groups of ``batch``, the global batch of update ``step``, by index.

        The loss is the sum over the global batch divided by its number of pairs, however the batch is divided:
        DeepSpeed divides by the micro-steps and averages over ranks, which ``scale`` undoes. An update that is not
        finite is skipped on all ranks. The last batch of an epoch may be shorter than the layout's.
        """
        layout, rank = self.layout, self.rank
        scale = layout.world * layout.accumulation / len(batch)
        sums = torch.zeros(2, dtype=torch.float64, device=engine.device)
        engine.module.train()
        for number, (start, end) in enumerate(layout.micro_batches(rank, len(batch))):
            real = end > start  # an empty share computes a pair with weight 0, because collectives must match
            rows, _ = groups.select(batch[start:end] if real else batch[-1:])
            note_place(f"step {step}, micro-batch {number}")
            with decide_dropout(self.seed, step, rank * layout.accumulation + number, rows):
                logits = engine(**self.pairs.pack(rows, engine.device))
            labels = torch.from_numpy(read_labels(self.labels, rows).astype(np.float32)).to(engine.device)
            loss = F.binary_cross_entropy_with_logits(logits.float(), labels, reduction="sum")
            if real:
                sums += torch.stack([loss.detach().double(), sums.new_tensor(end - start)])
                loss = loss * nan_guard(loss)
            engine.backward(loss * (scale if real else 0.0))
            if number < layout.accumulation - 1:
                engine.step()
        skipped, norm = finish_update(engine)
        return Outcome(sums.masked_fill(skipped, 0.0), norm, skipped)


@dataclass(frozen=True, kw_only=True)
class SiameseTrainer:
    """The data and settings of all updates of a bi-encoder.

    data, texts: the training set
    seed:        seed of dropout
    """

    data: AnswerSet
    texts: EncodedAnswers
    temperature: float
    layout: Layout
    rank: int
    seed: int

    @cached_property
    def question_of(self) -> np.ndarray:
        return self.data.question_of

    @cached_property
    def distinct_numbers(self) -> np.ndarray:
        """Returns the number in AnswerSet.distinct of each text in ``texts``, ``[Q + D]``: a group, or a candidate."""
        numbers = np.zeros(len(self.texts.lengths), dtype=np.int64)
        numbers[: self.data.num_questions] = self.data.distinct.groups
        numbers[self.texts.answers] = self.data.distinct.which
        return numbers

    def list_texts(self, groups: Groups, chosen: np.ndarray) -> np.ndarray:
        """Returns the text indices of examples, ``[n, m]``: question, right answer, wrong candidates."""
        rows = groups.select(chosen)[0].reshape(len(chosen), -1)
        questions = self.texts.questions[self.question_of[rows[:, 0]]]
        return np.column_stack([questions, self.texts.answers[rows]])

    def measure(self, rows: np.ndarray) -> np.ndarray:
        """Returns the number of tokens of the longer text of each row."""
        texts, questions = self.texts, self.texts.questions[self.question_of[rows]]
        return np.maximum(texts.lengths[questions], texts.lengths[texts.answers[rows]])

    def compare(self, texts: np.ndarray) -> Comparison:
        """Returns a function that compares the examples of a global batch; ``texts``: their indices ``[N, m]``."""
        answers = np.concatenate([texts[:, 1], texts[:, 2:].ravel()])
        known, numbers = self.data.distinct, self.distinct_numbers

        def compare_rows(embeddings: torch.Tensor, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
            own = np.arange(rows.stop - rows.start), np.arange(rows.start, rows.stop)
            codes = len(known.rows) * numbers[texts[rows, 0]][:, None] + numbers[answers][None]
            barred = np.isin(codes, known.right)
            barred[own] = False  # the positives; all other right answers are left out
            barred_answers = torch.from_numpy(barred).to(embeddings.device)
            losses = compare_texts(embeddings, rows, self.temperature, barred_answers).losses
            return losses, torch.stack([losses.detach().double().sum(), losses.new_tensor(len(losses)).double()])

        return compare_rows

    def update(self, engine: Engine, groups: Groups, batch: np.ndarray, step: int) -> Outcome:
        """Trains, with all ranks, on the examples of ``batch``, the global batch of update ``step``, by index.

        The loss is the sum over the global batch divided by its number of examples, see Trainer.
        """
        layout, rank = self.layout, self.rank
        batch_texts = self.list_texts(groups, batch)
        cuts = layout.micro_batches(rank, len(batch))
        scale = layout.world * layout.accumulation / len(batch)
        engine.module.train()

        def forward(number: int, embed_only: bool = False) -> tuple[torch.Tensor, ...]:
            note_place(f"step {step}, {'embedding' if embed_only else 'forward of'} micro-batch {number}")
            start, end = cuts[number]
            # An empty share computes another example, because collectives must match.
            rows = batch_texts[start:end] if end > start else batch_texts[-1:]
            texts = rows.ravel()
            with decide_dropout(self.seed, step, rank * layout.accumulation + number, texts):
                vectors = engine(**self.texts.pack(texts, engine.device))
            return (vectors.view(*rows.shape, -1),)

        sizes = [end - start for start, end in cuts]
        share = layout.share(rank, len(batch))
        cached = cache_gradients(self.compare(batch_texts), NUM_SUMS, sizes, forward, share, len(batch))
        for number in range(len(cuts)):
            (vectors,) = cached.only or forward(number)  # a single micro-batch has already run
            note_place(f"step {step}, backward of micro-batch {number}")
            engine.backward(surrogate_loss(vectors, cached.of_batches[number]) * scale)
            if number < len(cuts) - 1:
                engine.step()
        skipped, norm = finish_update(engine)
        return Outcome(cached.sums.masked_fill(skipped, 0.0), norm, skipped)
