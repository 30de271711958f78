"""A training step is measured on a case: a model, its pairs, and the pairs as padded rows for those who pad."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import _common
from data_pipeline.core.default_model import default_model
from data_pipeline.sampling.batch import Batch
from data_pipeline.sampling.stream import PairStream
from data_pipeline.tokenizers import load_tokenizer

RATE, CLIP, SEED = 1e-4, 1.0, 1
IGNORED = -100  # the label of a token that is not masked
SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
MODELS = {"roberta-base": _common.read_model("roberta-base"), "small-bert": ("bert", SMALL)}  # type and config
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass(frozen=True)
class Case:
    """A model ("minilm" with its weights, or one of MODELS) on an objective's pairs, in a corpus of its tokenizer.

    ``pairs`` make an update, and ``rounds`` updates count after one that warms up. ``precision``: "fp32" or "bf16"
    """

    model: str
    objective: str
    precision: str
    corpus: str
    pairs: int
    rounds: int
    dropout: bool = True


def write_model(case: Case, folder: Path) -> str:
    """Writes the case's model, which both sides load, into the folder: MiniLM's weights, or a config alone."""
    from transformers import AutoConfig

    changes = {} if case.dropout else NO_DROPOUT
    if case.model == "minilm":
        source = Path(default_model())
        for path in source.iterdir():
            (folder / path.name).symlink_to(path)
        config = json.loads((source / "config.json").read_text()) | changes
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps(config))
        return str(folder)
    kind, options = MODELS[case.model]
    tokenizer = load_tokenizer(str(Path(case.corpus) / "tokenizer"))
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    AutoConfig.for_model(kind, **(sizes | options | changes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def open_stream(case: Case) -> PairStream:
    """Returns the pairs of a case, masked for its token loss."""
    return _common.open_stream(case.corpus, case.objective)


def split_rows(batch: Batch) -> list[dict[str, Any]]:
    """Returns the pairs of a packed batch, one by one, as a data set's examples.

    They are masked already, with the labels of what was masked at those tokens and IGNORED elsewhere.
    """
    labels = np.full(batch.num_tokens, IGNORED, dtype=np.int64)
    labels[batch.masked_positions] = batch.masked_labels
    rows = []
    for number, (a, b) in enumerate(zip(batch.starts[:-1], batch.starts[1:], strict=True)):
        row = {"input_ids": batch.input_ids[a:b], "token_type_ids": batch.token_type_ids[a:b], "labels": labels[a:b]}
        rows.append(row | {"pair_labels": int(batch.labels[number])})
    return rows


def pad_rows(rows: Sequence[dict[str, Any]], pad_id: int) -> dict[str, torch.Tensor]:
    """Pads examples to the longest, ``[n, longest]``, with the attention mask; ``pair_labels``: ``[n]``."""
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    fill = {"input_ids": pad_id, "token_type_ids": 0, "labels": IGNORED}
    padded = {name: torch.full((len(rows), int(lengths.max())), value) for name, value in fill.items()}
    for number, row in enumerate(rows):
        for name, values in padded.items():
            values[number, : lengths[number]] = torch.from_numpy(row[name])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    pair_labels = torch.tensor([float(row["pair_labels"]) for row in rows])
    return padded | {"attention_mask": mask.long(), "pair_labels": pair_labels}
