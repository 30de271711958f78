"""One update of a global batch: micro-batches forward and backward, losses divided by global counts."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from data_pipeline.errors import KinspanError
from data_pipeline.stream import Batch, PairStream

from .batches import Layout, to_tensors
from .sums import PAPER_WEIGHTS, LossWeights


@dataclass
class StepResult:
    """What an update leaves: sums of the losses and hits of this rank, and the gradient's global norm.

    stats: float64 ``[len(sum_names)]`` of the model, on the device;  tokens: in the global batch
    """

    stats: torch.Tensor
    tokens: int
    grad_norm: Any  # a number, or a tensor that is read only when it is logged


def dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """Seeds dropout of one micro-batch, numbered over all ranks, so that no generator state needs saving."""
    digest = hashlib.blake2b(f"{seed}/dropout/{step}/{micro_batch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def global_counts(batches: list[Batch | None], device: torch.device) -> tuple[int, int]:
    """Masked tokens and all tokens of the global batch: summed over ranks before the first backward."""
    masked = sum(len(b.masked_labels) for b in batches if b)
    tokens = sum(b.num_tokens for b in batches if b)
    if dist.is_initialized() and dist.get_world_size() > 1:
        counts = torch.tensor([masked, tokens], dtype=torch.int64, device=device)
        dist.all_reduce(counts)
        masked, tokens = counts.tolist()
    return masked, tokens


def train_step(
    engine: Any,
    batches: list[Batch | None],
    filler: Batch,
    layout: Layout,
    rank: int,
    seed: int,
    step: int,
    weights: LossWeights = PAPER_WEIGHTS,
) -> StepResult:
    """Forward and backward over this rank's micro-batches, then the update.

    Every loss is a sum over its items divided by their count in the *global* batch, so that the gradient does
    not depend on how the batch is cut. DeepSpeed divides by the micro-steps and averages over ranks, which the
    scale takes back. ``filler`` stands in for an empty micro-batch, at no weight.
    """
    masked, tokens = global_counts(batches, engine.device)
    undo = layout.world * layout.accumulation
    stats = torch.zeros(len(engine.module.sum_names), dtype=torch.float64, device=engine.device)
    for number, batch in enumerate(batches):
        torch.manual_seed(dropout_seed(seed, step, rank * layout.accumulation + number))
        real = 0.0 if batch is None else 1.0
        loss, sums, _ = engine(
            **to_tensors(batch or filler, engine.device),
            mlm_scale=real * weights.mlm * undo / max(masked, 1),
            rtd_scale=real * weights.rtd * undo / tokens,
            pair_scale=real * weights.pair * undo / layout.size,
        )
        stats += sums * real
        engine.backward(loss)
        last = number == len(batches) - 1
        norm = _plain_norm(engine) if last and not engine.zero_optimization() else None
        engine.step()
    return StepResult(stats, tokens, norm if norm is not None else engine.get_global_grad_norm())


def _plain_norm(engine: Any) -> torch.Tensor:
    """Without ZeRO in fp32 DeepSpeed tells no norm: taken here, after its all-reduce and before its clipping."""
    grads = [p.grad for p in engine.module.parameters() if p.grad is not None]
    return torch.stack([g.square().sum(dtype=torch.float64) for g in grads]).sum().sqrt()


def largest_batch(stream: PairStream, micro: int) -> Batch:
    """The largest micro-batch that the settings can make: every pair at full length.

    Masked are as many tokens as all but one in a billion real batches have at most; whole words spread wider.
    """
    length, masking = stream.max_length, stream.masking
    pair = stream.batch(0, 1)
    tokens = micro * length
    probability = getattr(masking, "probability", 0.0)
    spread = 6 if getattr(masking, "continues", None) is None else 12
    masked = min(tokens, int(tokens * probability + spread * (tokens * probability) ** 0.5))
    return Batch(
        input_ids=np.full(tokens, pair.input_ids[0], dtype=np.int32),
        token_type_ids=np.zeros(tokens, dtype=np.int32),
        position_ids=np.tile(np.arange(length, dtype=np.int32), micro),
        starts=np.arange(micro + 1, dtype=np.int32) * length,
        masked_positions=np.arange(masked, dtype=np.int64),
        masked_labels=np.zeros(masked, dtype=np.int64),
        noise=np.zeros(masked if masking is not None and masking.noise else 0),
        labels=np.zeros(micro, dtype=np.int8),
        kinds=np.zeros(micro, dtype=np.int8),
        part=np.zeros(micro, dtype=np.int8),
        index=np.zeros(micro, dtype=np.int64),
    )


OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_cpu")


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in OUT_OF_MEMORY)


def try_largest(engine: Any, stream: PairStream, layout: Layout) -> None:
    """Forward and backward of the largest batch, at no weight, so that too little memory shows at once.

    Twice where gradients accumulate, since the second pass holds those of the first. Leaves parameters, gradients
    and counters as they were. Raises KinspanError where memory is short.
    """
    micro_steps = engine.micro_steps
    engine.set_gradient_accumulation_boundary(False)
    try:
        batch = largest_batch(stream, layout.largest)
        for _ in range(min(layout.accumulation, 2)):
            loss, _, _ = engine(**to_tensors(batch, engine.device), mlm_scale=0.0, rtd_scale=0.0, pair_scale=0.0)
            engine.backward(loss)
            engine.step()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise KinspanError(out_of_memory_text(layout.largest, stream.max_length)) from error
    engine.zero_grad()
    engine.micro_steps = micro_steps
    engine._is_gradient_accumulation_boundary = None


def out_of_memory_text(micro: int, length: int) -> str:
    return (
        f"out of memory with {micro} pairs of {length} tokens: lower --micro_batch_size below {micro} (the global "
        f"batch stays) or --max_length (now {length}), or use a higher ZeRO stage or ds_configs/offload.json"
    )
