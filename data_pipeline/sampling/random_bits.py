"""Draws random bits as a function of ``(seed, purpose, index)``: no generator's state must be saved.

Every example owns a fixed number of draws, random 64-bit numbers (a multiple of 4 of them), read from the
counter-based generator Philox (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"). A slice of
examples is one vectorised read, so any rank, worker or resumed run that asks for example ``i`` gets the same bits.
"""

import hashlib

import numpy as np


def make_philox_key(seed: int, purpose: str) -> np.ndarray:
    """Returns the Philox key (two 64-bit numbers) of one purpose ("mask", "replacements", ...) under one seed."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest()
    return np.frombuffer(digest, dtype="<u8")


def draw_random_bits(seed: int, purpose: str, first: int, count: int, num_draws: int) -> np.ndarray:
    """Returns ``[count, num_draws]`` uint64: the draws of examples ``first .. first + count``.

    ``num_draws`` must be a multiple of 4, because Philox makes four numbers for each value of its counter.
    """
    assert num_draws % 4 == 0, num_draws
    generator = np.random.Philox(key=make_philox_key(seed, purpose), counter=first * num_draws // 4)
    return generator.random_raw(count * num_draws).reshape(count, num_draws)


def draw_below(random_bits: np.ndarray, bound: np.ndarray | int) -> np.ndarray:
    """Draws integers uniform in ``[0, bound)``, bound up to 2^31, one from each draw, by multiply-shift (Lemire, 2019).

    Unlike ``Generator.integers`` it uses exactly one draw whatever the bound is. The bias is below bound / 2^32.
    """
    return (((random_bits >> np.uint64(32)) * np.asarray(bound, dtype=np.uint64)) >> np.uint64(32)).astype(np.int64)


def permute(positions: np.ndarray, size: int, key: np.ndarray) -> np.ndarray:
    """Returns the images of ``positions`` under a keyed permutation of ``[0, size)``, without making it.

    A four-round Feistel network on the smallest even number of bits that holds ``size``, with cycle walking
    (Black and Rogaway, 2002): values outside the range are permuted again until they fall inside.
    """
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    low = np.uint64((1 << int(half)) - 1)
    out = np.asarray(positions).astype(np.uint64)
    todo = np.arange(len(out))
    while len(todo):
        left, right = out[todo] >> half, out[todo] & low
        for round_number in range(4):
            offset = (int(key[round_number % 2]) + round_number * 0x9E3779B97F4A7C15) % 2**64
            left, right = right, left ^ (scramble(right + np.uint64(offset)) & low)
        out[todo] = (left << half) | right
        todo = todo[out[todo] >= size]
    return out.astype(np.int64)


def scramble(x: np.ndarray) -> np.ndarray:
    """Applies SplitMix64's finaliser (Steele et al., 2014): one to one, each bit changed by every other."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
