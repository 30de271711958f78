"""Makes one update: forward and backward passes of all micro-batches, with losses divided by global counts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from data_pipeline.sampling.batch import Batch
from data_pipeline.sampling.stream import PairStream
from pretrain.engine import ranks
from pretrain.engine.deepspeed_compat import Engine, finish_update, nan_guard, without_updates
from pretrain.engine.device import refuse_out_of_memory
from pretrain.engine.layout import Layout
from pretrain.engine.loop import Outcome
from pretrain.engine.watch import note_place
from pretrain.modeling.cpu.dropout import decide_dropout
from pretrain.modeling.losses import PAPER_WEIGHTS, Loss, LossWeights
from pretrain.modeling.siamese.cached import CachedGradients, cache_gradients, compare_objectives, surrogate_loss
from pretrain.modeling.siamese.model import SiameseModel

from .batches import make_largest_batch, to_tensors

OUT_OF_MEMORY = "--micro_batch_size {}: out of memory with this many pairs of {} tokens"


@dataclass(frozen=True)
class GlobalBatch:
    """A global batch, as far as this rank knows it.

    batches:   this rank's micro-batches; None for an empty one
    counts:    properties of Batch by name, added up over the global batch
    stop:      whether some rank was asked to stop
    imbalance: the largest number of tokens of a rank, divided by the mean
    """

    batches: list[Batch | None]
    counts: dict[str, int]
    stop: bool
    imbalance: float = 1.0


def start_count_reduction(
    batches: list[Batch | None], losses: Iterable[Loss], stopping: bool = False
) -> Callable[[], GlobalBatch]:
    """Starts to sum over all ranks the counts that losses are divided by; returns a function that waits for them."""
    names = sorted({"num_tokens", *(loss.count for loss in losses)})
    local = [sum(getattr(batch, name) for batch in batches if batch) for name in names]
    tokens_by_rank = [0] * ranks.count()
    tokens_by_rank[dist.get_rank() if ranks.is_distributed() else 0] = local[names.index("num_tokens")]
    wait = ranks.start_sum([*local, int(stopping), *tokens_by_rank])

    def finish() -> GlobalBatch:
        totals = wait()
        counts, stop, tokens_by_rank = totals[: len(names)], totals[len(names)], totals[len(names) + 1 :]
        imbalance = max(tokens_by_rank) * len(tokens_by_rank) / max(sum(tokens_by_rank), 1)
        return GlobalBatch(batches, dict(zip(names, counts, strict=True)), stop > 0, imbalance)

    return finish


def train_step(
    engine: Engine,
    global_batch: GlobalBatch,
    filler: Batch,
    layout: Layout,
    rank: int,
    seed: int,
    step: int,
    weights: LossWeights = PAPER_WEIGHTS,
) -> Outcome:
    """Makes forward and backward passes over this rank's micro-batches, then the update.

    Each loss is summed over its items and divided by their count in the *global* batch, so that the gradient does not
    depend on how the batch is cut; the scales undo DeepSpeed's division by micro-steps and ranks. A loss that is not
    finite makes every gradient NaN, and the update is skipped on all ranks. Nothing here waits for the device. The
    returned sums are in the order of the model's ``sum_names``.

    filler: replaces an empty micro-batch, with weight 0
    """
    scales = make_scales(engine.module.losses, global_batch.counts, weights, layout, engine.device)
    zeros = {name: torch.zeros_like(scale) for name, scale in scales.items()}
    stats = torch.zeros(len(engine.module.sum_names), dtype=torch.float64, device=engine.device)

    def forward(index: int, embed_only: bool = False) -> tuple[torch.Tensor, ...]:
        note_place(f"step {step}, {'embedding' if embed_only else 'forward of'} micro-batch {index}")
        batch = global_batch.batches[index]
        filled, factors = batch or filler, scales if batch else zeros
        with decide_dropout(seed, step, rank * layout.accumulation + index, filled.sequence_indices):
            return engine(**to_tensors(filled, engine.device), scales=None if embed_only else factors)

    cached = _cache_gradients(engine, global_batch.batches, filler, forward, layout)
    if cached:
        stats[-len(cached.sums) :] += cached.sums
    for index, batch in enumerate(global_batch.batches):
        loss, sums, outputs = cached.only if cached and cached.only else forward(index)
        note_place(f"step {step}, backward of micro-batch {index}")
        if cached:
            loss = loss + surrogate_loss(outputs, cached.of_batches[index]) * scales["pair"]
        if batch is not None:
            stats += sums
            loss = loss * nan_guard(sums).to(loss.dtype)
        engine.backward(loss)
        note_place(f"step {step}, update {index}")
        if index < len(global_batch.batches) - 1:
            engine.step()
    skipped, norm = finish_update(engine)
    return Outcome(stats.masked_fill(skipped, 0.0), norm, skipped)


def _cache_gradients(
    engine: Engine,
    batches: list[Batch | None],
    filler: Batch,
    forward: Callable[[int, bool], tuple[torch.Tensor, ...]],
    layout: Layout,
) -> CachedGradients | None:
    """Returns the cached gradients of a bi-encoder's batch; None for other models."""
    model = engine.module
    if not isinstance(model, SiameseModel):
        return None
    sizes = [batch.num_pairs if batch else 0 for batch in batches]
    first = next((int(batch.index[0]) % layout.size for batch in batches if batch), 0)
    share = first, first + sum(sizes)
    groups = torch.zeros(layout.size, filler.sequences_per_pair, 2, dtype=torch.int64, device=engine.device)
    if any(sizes):
        local = torch.from_numpy(np.concatenate([batch.groups for batch in batches if batch]))
        local = local.pin_memory() if engine.device.type == "cuda" else local  # so that nothing waits for the copy
        groups[share[0] : share[1]] = local.to(engine.device, non_blocking=True).unflatten(0, (-1, groups.shape[1]))
    groups = ranks.sum_over_ranks(groups)  # each row is filled by one rank
    compare = compare_objectives(model, batches, share[0], groups)
    return cache_gradients(compare, len(model.pair_sum_names), sizes, forward, share, layout.size)


def make_scales(
    losses: Iterable[Loss], counts: dict[str, int], weights: LossWeights, layout: Layout, device: torch.device
) -> dict[str, torch.Tensor]:
    """Returns each loss's factor on the device: weight / global count * DeepSpeed's divisor."""
    divisor = layout.world * layout.accumulation
    values = {loss.name: getattr(weights, loss.name) * divisor / max(counts[loss.count], 1) for loss in losses}
    row = torch.tensor(list(values.values()))
    if device.type == "cuda":
        row = row.pin_memory().to(device, non_blocking=True)
    return dict(zip(values, row.unbind(), strict=True))


def reserve_moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns tensors as large as Adam's moments will be: two for each parameter that has none yet."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p not in optimizer.state]
    return [torch.empty_like(p) for p in parameters for _ in range(2)]


def try_largest(engine: Engine, stream: PairStream, layout: Layout) -> None:
    """Runs the largest batch forward and backward with weight 0. Raises KinspanError if memory runs out.

    If gradients accumulate it runs twice, since the second pass holds those of the first. Memory is reserved for Adam's
    moments, which the first update makes; but not under ZeRO 3, where the optimizer has no parameters between updates,
    so that memory may still run out at the first one. Leaves parameters, gradients and counters as they were.
    """
    with refuse_out_of_memory(OUT_OF_MEMORY.format(layout.largest, stream.max_length)):
        moments = reserve_moments(engine.optimizer)
        batch = make_largest_batch(stream, layout.full_pairs)
        scales = {loss.name: 0.0 for loss in engine.module.losses}
        with without_updates(engine):
            for _ in range(min(layout.accumulation, 2)):
                with decide_dropout(0, 0, 0, batch.sequence_indices):
                    loss, _, outputs = engine(**to_tensors(batch, engine.device), scales=scales)
                engine.backward(loss + 0.0 * outputs.sum())  # only the outputs of a bi-encoder have a graph
                engine.step()
        del moments
