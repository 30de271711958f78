"""Seeds for dropout."""

import hashlib


def dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """The seed for dropout in one micro-batch, which is numbered over all ranks.

    It is a function of its arguments, so that checkpoints need not hold the state of a generator.
    """
    digest = hashlib.blake2b(f"{seed}/dropout/{step}/{micro_batch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
