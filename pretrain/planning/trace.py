"""What a computation asks of a device, counted without one: kernels, bytes of memory, arithmetic, and waits for it.

It is counted by what torch dispatches. That a kernel's inputs and outputs each pass the memory once is a convention.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

# What reads a number on the host, which waits for all that the device was given before
WAITS = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "unique_dim", "unique_consecutive"}
NO_KERNEL = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "lift_fresh", "_unsafe_view"}
NO_KERNEL |= {"detach_", "set_", "resize_", "is_same_size", "_reshape_alias", "device", "size", "stride", "is_pinned"}
SEVERAL = {  # kernels of operators that launch more than one
    "_foreach_norm": 4,
    "embedding_dense_backward": 6,
    "native_layer_norm_backward": 2,
    "_flash_attention_backward": 3,
}
PICKS = {"gather", "index", "index_select", "embedding"}  # read no more of a table than they return
PUTS = {"scatter_", "index_put_", "index_copy_", "index_copy"}  # write no more into a table than they are given
ONLY_WRITE = {"copy_", "zero_", "fill_"}
# What a compiler makes one kernel of with its neighbours
FUSED = {"add", "sub", "mul", "div", "neg", "exp", "tanh", "gelu", "gelu_backward", "tanh_backward", "native_dropout"}
FUSED |= {"native_dropout_backward", "native_layer_norm", "native_layer_norm_backward", "_to_copy", "copy", "rsub"}
FUSED |= {"_softmax", "_log_softmax", "sum", "argmax", "eq", "where", "gather", "scatter", "masked_fill", "threshold"}
FUSED |= {"add_", "sub_", "mul_", "div_", "copy_", "scatter_", "clone"}


@dataclass(frozen=True)
class Kernel:
    """An operator that launches ``count`` kernels.

    bytes:          that pass the memory
    flops:          of products of matrices, and of attention
    reads, writes:  the storages that it reads and writes, by number, with their bytes
    """

    name: str
    count: int
    bytes: int
    flops: float
    reads: dict[int, int]
    writes: dict[int, int]


class Trace(TorchDispatchMode):
    """The ``kernels`` of a computation in their order, and its ``waits`` by operator."""

    def __init__(self, attention_flops: Callable[[Any], float]) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []
        self.waits: Counter[str] = Counter()
        self.attention_flops = attention_flops
        self.held: list[Any] = []  # so that no storage's number is used again

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        masks = name == "index" and any(getattr(i, "dtype", None) in (torch.bool, torch.uint8) for i in args[1])
        if name in WAITS or masks:
            self.waits[name] += 1
        if not (func.is_view or name in NO_KERNEL):
            self.kernels.append(self._describe(func, name, args, kwargs, out))
        return out

    def _describe(self, func: Any, name: str, args: Any, kwargs: dict[str, Any], out: Any) -> Kernel:
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.held += [x.untyped_storage() for x in (*given, *made)]
        if name in PICKS:
            read, written = sum(x.nbytes for x in (*given[1:], *made)), sum(x.nbytes for x in made)
        elif name in PUTS:
            read = written = sum(x.nbytes for x in given[1:])
        else:
            target = kwargs.get("out")
            only_written = [given[0]] if name in ONLY_WRITE else [] if target is None else [target]
            read = sum(x.nbytes for x in given if not any(x is one for one in only_written))
            written = sum(x.nbytes for x in made) if made else sum(x.nbytes for x in given)
        flops = 0.0
        if name.startswith("_flash_attention"):
            flops = self.attention_flops(given[0]) * (1.0 if "forward" in name else 2.5)
        elif func.overloadpacket in flop_registry:
            flops = float(flop_registry[func.overloadpacket](*args, **kwargs, out_val=out))
        count = SEVERAL.get(name, 1)
        return Kernel(name, count, read + written, flops, _number(given), _number(made))


def _number(tensors: list[torch.Tensor]) -> dict[int, int]:
    return {x.untyped_storage()._cdata: x.nbytes for x in tensors}


class _Uploads(TorchFunctionMode):
    """Numbers of the host that are made a tensor on the device: the copy is waited for, since it is not pinned."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.tensor, torch.as_tensor) and (kwargs or {}).get("device") is not None:
            self.trace.waits["tensor of numbers"] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def trace_kernels(attention_flops: Callable[[Any], float] = lambda query: 0.0) -> Iterator[Trace]:
    """In the block, and in the backward passes begun there, what is dispatched is recorded.

    attention_flops: operations of a call of flash attention forward, by its queries ``[T, heads, width]``
    """
    trace = Trace(attention_flops)
    with _Uploads(trace), trace:
        yield trace


def fuse(kernels: list[Kernel]) -> list[Kernel]:
    """The kernels as a compiler makes them: a row of elementwise operators and of sums over rows becomes one."""
    last_read = {number: place for place, kernel in enumerate(kernels) for number in kernel.reads}
    out: list[Kernel] = []
    row: list[Kernel] = []
    for place, kernel in enumerate([*kernels, None]):
        if kernel and kernel.name in FUSED:
            row.append(kernel)
            continue
        if row:
            out.append(_join(row, lambda number, place=place: last_read.get(number, -1) >= place))  # type: ignore[misc]
        row = []
        if kernel:
            out.append(kernel)
    return out


def _join(row: list[Kernel], is_read_later: Callable[[int], bool]) -> Kernel:
    inside: set[int] = set()
    reads: dict[int, int] = {}
    for kernel in row:
        reads |= {number: size for number, size in kernel.reads.items() if number not in inside}
        inside |= kernel.writes.keys()
    writes = {number: size for kernel in row for number, size in kernel.writes.items() if is_read_later(number)}
    return Kernel("fused", 1, sum(reads.values()) + sum(writes.values()), 0.0, reads, writes)
