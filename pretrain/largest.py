"""The largest batch that the settings can make, by which memory is tried before training."""

import numpy as np

from data_pipeline.sampling.batch import Batch
from data_pipeline.sampling.stream import PairStream


def make_largest_batch(stream: PairStream, pairs: int) -> Batch:
    """So many pairs, every one at full length: with ``Layout.full_pairs``, the most that the settings can make.

    Masked are as many tokens as all but one in a billion real batches have at most; whole words spread wider.
    """
    length, masking, sequences = stream.max_length, stream.masking, pairs * stream.per_pair
    tokens = sequences * length
    probability = getattr(masking, "probability", 0.0)
    spread = 6 if getattr(masking, "continues", None) is None else 12
    masked = min(tokens, int(tokens * probability + spread * (tokens * probability) ** 0.5))
    return Batch(
        input_ids=np.full(tokens, stream.template.special[0][0], dtype=np.int32),
        token_type_ids=np.zeros(tokens, dtype=np.int32),
        position_ids=np.tile(np.arange(length, dtype=np.int32), sequences),
        starts=np.arange(sequences + 1, dtype=np.int32) * length,
        masked_positions=np.arange(masked, dtype=np.int64),
        masked_labels=np.zeros(masked, dtype=np.int64),
        noise=np.zeros(masked if masking is not None and masking.noise else 0),
        labels=np.zeros(pairs, dtype=np.int8),
        kinds=np.zeros(pairs, dtype=np.int8),
        part=np.zeros(pairs, dtype=np.int16),
        index=np.zeros(pairs, dtype=np.int64),
        groups=np.zeros((sequences if stream.apart else 0, 2), dtype=np.int64),
    )
