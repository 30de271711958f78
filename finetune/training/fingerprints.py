"""Hashes of what a run depends on: it is resumed only if none of them has changed."""

import hashlib
import json
from typing import Any

import numpy as np

from finetune.data.answers import AnswerSet
from pretrain.release.folder import fingerprint_model as fingerprint_model


def fingerprint_answers(data: AnswerSet) -> str:
    """Returns a hash of a split's questions, candidates and labels. Optional columns and ids do not count."""
    digest = hashlib.sha256("\0".join(data.questions).encode())
    for array in (data.starts, data.labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    for chunk in range(0, data.num_pairs, 100_000):
        digest.update("\0".join(data.answers.slice(chunk, 100_000).to_pylist()).encode())
    return digest.hexdigest()[:16]


def fingerprint_ids(data: AnswerSet) -> str:
    """Returns a hash of the ids of a split, which its TREC files hold and which break ties."""
    ids = [*data.question_ids, *data.answer_ids.to_pylist()]
    return hashlib.sha256("\0".join(ids).encode()).hexdigest()[:16]


def fingerprint_identity(identity: dict[str, Any]) -> str:
    """Returns a hash of ``TrainingStage.identity``, fit for a folder's name."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
