"""Variable-length flash attention for processors, slow and plain, so that what a GPU runs can be traced without one."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch


@contextmanager
def flash_on_cpu() -> Iterator[None]:
    """In the block, torch's own flash operators have kernels on processors, also within compiled graphs."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", _forward, "CPU")
    library.impl("_flash_attention_backward", _backward, "CPU")
    try:
        yield
    finally:
        library._destroy()


def _attend(q: Any, k: Any, seed: int, dropout: float, scale: float, window: tuple[int, int] | None) -> Any:
    """``[heads, length, width]``: the probabilities, the factors of dropout, and the sums of exponentials."""
    scores = scale * q.float() @ k.float().mT
    if window:
        place = torch.arange(scores.shape[-1])
        ahead = place - place[:, None]  # of the key, from the query
        scores = scores.masked_fill((ahead > window[1]) | (-ahead > window[0]), -torch.inf)
    kept = torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed)) >= dropout
    return scores.softmax(-1), kept / (1 - dropout), scores.logsumexp(-1)


def _forward(q: Any, k: Any, v: Any, starts: Any, _k: Any, longest: int, _mk: int, dropout: float, *_: Any, **named: Any):  # noqa: E501  # fmt: skip
    assert starts.dtype == torch.int32 and int(starts[-1]) == len(q) and longest >= int(starts.diff().max())  # noqa: PT018
    out, sums = torch.empty_like(q), q.new_empty(q.shape[1], len(q), dtype=torch.float32)
    state = torch.randint(2**31, (2,)).to(torch.uint64)
    for number, (start, end) in enumerate(pairwise(starts.tolist())):
        query, key, value = (x[start:end].transpose(0, 1) for x in (q, k, v))
        seed = int(state[0]) + number
        probability, factor, sums[:, start:end] = _attend(query, key, seed, dropout, *_read(named))
        out[start:end] = ((probability * factor) @ value.float()).transpose(0, 1).to(q.dtype)
    return out, sums, state, torch.empty((), dtype=torch.uint64), q.new_empty(0)


def _backward(grad: Any, q: Any, k: Any, v: Any, _o: Any, _s: Any, starts: Any, _k: Any, _mq: Any, _mk: Any, dropout: float, _c: bool, state: Any, _u: Any, **named: Any):  # noqa: E501  # fmt: skip
    grads = [torch.zeros_like(x) for x in (q, k, v)]
    scale, window = _read(named)
    for number, (start, end) in enumerate(pairwise(starts.tolist())):
        query, key, value, out = (x[start:end].transpose(0, 1).float() for x in (q, k, v, grad))
        probability, factor, _ = _attend(query, key, int(state[0]) + number, dropout, scale, window)
        d_probability = out @ value.mT * factor
        d_scores = scale * probability * (d_probability - (d_probability * probability).sum(-1, keepdim=True))
        parts = d_scores @ key, d_scores.mT @ query, (probability * factor).mT @ out
        for into, part in zip(grads, parts, strict=True):
            into[start:end] = part.transpose(0, 1).to(into.dtype)
    return tuple(grads)


def _read(named: dict[str, Any]) -> tuple[float, tuple[int, int] | None]:
    left, right = named.get("window_size_left"), named.get("window_size_right")
    return named["scale"], None if left is None else (left, right)
