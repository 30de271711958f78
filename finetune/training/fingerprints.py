"""Short names for what a run depends on, so that a run is taken up again only if nothing of it has changed."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from finetune.data.answers import AnswerSet


def fingerprint_answers(data: AnswerSet) -> str:
    """Names a split by its questions, candidates and labels. Optional columns and ids do not count."""
    digest = hashlib.sha256("\0".join(data.questions).encode())
    for array in (data.starts, data.labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    for chunk in range(0, data.num_pairs, 100_000):
        digest.update("\0".join(data.answers.slice(chunk, 100_000).to_pylist()).encode())
    return digest.hexdigest()[:16]


def fingerprint_ids(data: AnswerSet) -> str:
    """Names the ids of a split, which its TREC files hold and which break ties."""
    ids = [*data.question_ids, *data.answer_ids.to_pylist()]
    return hashlib.sha256("\0".join(ids).encode()).hexdigest()[:16]


def fingerprint_model(name_or_dir: str) -> str:
    """Names the model that a run starts from: a folder by its weights and config, a hub name by itself."""
    folder = Path(name_or_dir)
    if not folder.is_dir():
        return name_or_dir
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), folder / "adapter.json", folder / "config.json"]):
        if path.is_file():
            digest.update(path.name.encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def fingerprint_identity(identity: dict[str, Any]) -> str:
    """Names a stage by what makes it this stage, as ``Stage.identity`` holds it; fit for a folder's name."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
