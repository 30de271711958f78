"""One update of a global batch: micro-batches forward and backward, losses divided by global counts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from data_pipeline.sampling.batch import Batch
from data_pipeline.sampling.stream import PairStream
from pretrain.engine import ranks
from pretrain.engine.deepspeed_compat import Engine, guard_update, nan_guard, read_outcome, without_updates
from pretrain.engine.device import OutOfMemory, is_out_of_memory
from pretrain.engine.layout import Layout
from pretrain.engine.loop import Outcome
from pretrain.engine.watch import note_place
from pretrain.modeling.cpu.dropout import decide_dropout
from pretrain.modeling.losses import PAPER_WEIGHTS, Loss, LossWeights
from pretrain.modeling.siamese.cached import CachedGradients, cache_gradients, compare_objectives, surrogate_loss
from pretrain.modeling.siamese.model import SiameseModel

from .batches import make_largest_batch, to_tensors


@dataclass(frozen=True)
class GlobalBatch:
    """A global batch as this rank knows it.

    batches:   this rank's micro-batches; None for an empty one
    counts:    properties of Batch by name, added up over the global batch
    stop:      some rank was asked to stop
    imbalance: tokens of the largest rank over the mean
    """

    batches: list[Batch | None]
    counts: dict[str, int]
    stop: bool
    imbalance: float = 1.0


def start_count_reduction(
    batches: list[Batch | None], losses: Iterable[Loss], stopping: bool = False
) -> Callable[[], GlobalBatch]:
    """Begins to sum over the ranks the counts that divide a global batch's losses; returns what waits for the sums."""
    names = sorted({"num_tokens", *(loss.count for loss in losses)})
    local = [sum(getattr(batch, name) for batch in batches if batch) for name in names]
    of_ranks = [0] * ranks.count()
    of_ranks[dist.get_rank() if ranks.is_distributed() else 0] = local[names.index("num_tokens")]
    wait = ranks.start_sum([*local, int(stopping), *of_ranks])

    def finish() -> GlobalBatch:
        totals = wait()
        counts, stop, of_ranks = totals[: len(names)], totals[len(names)], totals[len(names) + 1 :]
        imbalance = max(of_ranks) * len(of_ranks) / max(sum(of_ranks), 1)
        return GlobalBatch(batches, dict(zip(names, counts, strict=True)), stop > 0, imbalance)

    return finish


def train_step(
    engine: Engine,
    *,
    global_batch: GlobalBatch,
    filler: Batch,
    layout: Layout,
    rank: int,
    seed: int,
    step: int,
    weights: LossWeights = PAPER_WEIGHTS,
) -> Outcome:
    """Makes forward and backward passes over this rank's micro-batches, then the update.

    Every loss is a sum over its items divided by the count in the *global* batch that it declares, so that the gradient
    does not depend on how the batch is cut; the scale takes back that DeepSpeed divides by micro-steps and ranks. A
    loss that is not finite makes every gradient so, and the update is skipped on all ranks. Nothing here waits for the
    device. The sums that it returns are by ``sum_names`` of the model.

    filler: stands in for an empty micro-batch, at no weight
    """
    scales = make_scales(engine.module.losses, global_batch.counts, weights, layout, engine.device)
    nothing = {name: torch.zeros_like(scale) for name, scale in scales.items()}
    norm = None
    stats = torch.zeros(len(engine.module.sum_names), dtype=torch.float64, device=engine.device)

    def forward(number: int, alone: bool = False) -> tuple[torch.Tensor, ...]:
        note_place(f"step {step}, {'embedding' if alone else 'forward of'} micro-batch {number}")
        batch = global_batch.batches[number]
        shown, factors = batch or filler, scales if batch else nothing
        with decide_dropout(seed, step, rank * layout.accumulation + number, shown.sequences):
            return engine(**to_tensors(shown, engine.device), scales=None if alone else factors)

    cached = _cache_gradients(engine, global_batch.batches, filler, forward, layout)
    if cached:
        stats[-len(cached.sums) :] += cached.sums
    for number, batch in enumerate(global_batch.batches):
        loss, sums, outputs = cached.only if cached and cached.only else forward(number)
        note_place(f"step {step}, backward of micro-batch {number}")
        if cached:
            loss = loss + surrogate_loss(outputs, cached.of_batches[number]) * scales["pair"]
        if batch is not None:
            stats += sums
            loss = loss * nan_guard(sums).to(loss.dtype)
        engine.backward(loss)
        if number == len(global_batch.batches) - 1:
            norm = guard_update(engine)
        note_place(f"step {step}, update {number}")
        engine.step()
    skipped, norm = read_outcome(engine, norm)
    return Outcome(stats.masked_fill(skipped, 0.0), norm, skipped)


def _cache_gradients(
    engine: Engine,
    batches: list[Batch | None],
    filler: Batch,
    forward: Callable[[int, bool], tuple[torch.Tensor, ...]],
    layout: Layout,
) -> CachedGradients | None:
    """Returns the cached gradients of a bi-encoder's batch; None of other models."""
    model = engine.module
    if not isinstance(model, SiameseModel):
        return None
    sizes = [batch.num_pairs if batch else 0 for batch in batches]
    first = next((int(batch.index[0]) % layout.size for batch in batches if batch), 0)
    share = first, first + sum(sizes)
    groups = torch.zeros(layout.size, filler.per_pair, 2, dtype=torch.int64, device=engine.device)
    if any(sizes):
        mine = torch.from_numpy(np.concatenate([batch.groups for batch in batches if batch]))
        mine = mine.pin_memory() if engine.device.type == "cuda" else mine  # so that the copy is not waited for
        groups[share[0] : share[1]] = mine.to(engine.device, non_blocking=True).unflatten(0, (-1, filler.per_pair))
    groups = ranks.sum_over_ranks(groups)  # each row is filled by one rank
    compare = compare_objectives(model, batches, share[0], groups)
    return cache_gradients(compare, len(model.pair_sum_names), sizes, forward, share, layout.size)


def make_scales(
    losses: Iterable[Loss], counts: dict[str, int], weights: LossWeights, layout: Layout, device: torch.device
) -> dict[str, torch.Tensor]:
    """Returns each loss's factor on the device: weight by global count, times what DeepSpeed divides by."""
    undo = layout.world * layout.accumulation
    values = {loss.name: getattr(weights, loss.name) * undo / max(counts[loss.count], 1) for loss in losses}
    row = torch.tensor(list(values.values()))
    if device.type == "cuda":
        row = row.pin_memory().to(device, non_blocking=True)
    return dict(zip(values, row.unbind(), strict=True))


def reserve_moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns tensors as large as Adam's moments will be: two for each parameter that has none yet."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p not in optimizer.state]
    return [torch.empty_like(p) for p in parameters for _ in range(2)]


def try_largest(engine: Engine, stream: PairStream, layout: Layout) -> None:
    """Runs forward and backward of the largest batch at no weight, so that too little memory shows at once.

    Twice where gradients accumulate, since the second pass holds those of the first. Adam's moments, which the first
    update makes, take their room meanwhile; but not under ZeRO 3, where DeepSpeed shows the optimizer no parameters
    between updates: what the moments lack then shows at the first update. Leaves parameters, gradients and counters as
    they were. Raises KinspanError where memory is short.
    """
    try:
        moments = reserve_moments(engine.optimizer)
        batch = make_largest_batch(stream, layout.full_pairs)
        scales = {loss.name: 0.0 for loss in engine.module.losses}
        with without_updates(engine):
            for _ in range(min(layout.accumulation, 2)):
                with decide_dropout(0, 0, 0, batch.sequences):
                    loss, _, outputs = engine(**to_tensors(batch, engine.device), scales=scales)
                engine.backward(loss + 0.0 * outputs.sum())  # of a bi-encoder these hold the graph
                engine.step()
        del moments
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(layout.largest, stream.max_length) from error
