"""Opening DeepSpeed's pickles safely: they may make tensors and a few named classes, and nothing else."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pretrain.runtime.deepspeed_compat import list_pickled_classes

VARIABLE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


@contextmanager
def restricted_unpickling() -> Iterator[None]:
    """In the block, ``torch.load`` refuses every class but those that DeepSpeed's checkpoints need.

    DeepSpeed asks torch for unrestricted loading; the environment variable overrules that.
    """
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        with torch.serialization.safe_globals(list_pickled_classes()):
            yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
