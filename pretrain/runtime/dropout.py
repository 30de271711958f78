"""Seeds of dropout."""

import hashlib


def dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """Seeds dropout of one micro-batch, numbered over all ranks, so that no generator state needs saving."""
    digest = hashlib.blake2b(f"{seed}/dropout/{step}/{micro_batch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
