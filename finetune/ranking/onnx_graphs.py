"""A release's model as an ONNX graph, and as one with eight-bit weights, with their measured loss on the card.

torch exports the model, since optimum, which sentence-transformers needs for that, does not support transformers 5.
"""

import inspect
import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import read_object
from data_pipeline.core.pages import render_template
from finetune.data.answers import AnswerSet
from finetune.data.filters import CLEAN
from finetune.data.registry import load_filtered
from finetune.evaluation.metrics import METRICS, TITLES, compute_means, compute_question_metrics
from pretrain.modeling.adapters.folder import is_adapter
from pretrain.modeling.scorer import Scorer, load_scorer, score_padded
from pretrain.release.folder import CARD, FACTS, make_readable
from pretrain.release.metadata import CANDIDATES, HERE, QUESTION, TEMPLATES

from .encode import encode_pairs
from .model import unpack
from .ranker import load_own_tokenizer

FOLDER, FP32, INT8 = "onnx", "model.onnx", "model_quantized.onnx"
TOLERANCE = 1e-4  # of a logit
LICENCE = "\n## Licence\n"  # the section of the card that ONNX's goes before
BATCH = 16  # pairs


def check_onnx(folder: Path) -> None:
    """Raises KinspanError where a package is missing, or where ``folder`` holds an adapter or a bi-encoder.

    folder: a release, a ranker, a pre-training run or one of its checkpoints
    """
    runs = [run for run in (folder, folder.absolute().parent.parent) if (run / "run.json").is_file()]
    facts = read_object(runs[0] / "run.json", f"{runs[0]} cannot be released without it") if runs else {}
    if is_adapter(folder) or facts.get("base"):
        raise KinspanError(f"--onnx: {folder} is an adapter, without the model that a graph needs")
    if (folder / "modules.json").is_file() or facts.get("settings", {}).get("pair_loss"):
        raise KinspanError(f"--onnx: {folder} is a bi-encoder, and only cross-encoders are exported")
    try:
        import onnx  # noqa: F401 - quantization needs it
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401 - torch.onnx needs it
    except ImportError as error:
        raise KinspanError(f"--onnx needs {error.name}: pip install 'kinspan[onnx]'") from error


def add_onnx(folder: Path, spec: str | None = None) -> dict[str, Any]:
    """Adds both graphs to a release, in ``onnx/``, with a section on its card; returns what that section says.

    spec: a data set, on whose clean test questions the model and both graphs are compared

    Raises KinspanError as ``check_onnx`` does, and where the fp32 graph's logits are not the model's.
    """
    check_onnx(folder)
    from onnxruntime import quantization

    facts = read_object(folder / FACTS, "release it again")
    data = load_filtered(spec, "test", CLEAN) if spec else None
    partial = folder / f"{FOLDER}.tmp"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        with _silence():
            scorer = load_scorer(str(folder), "cpu")
            export(scorer, partial / FP32)
            quantization.quantize_dynamic(partial / FP32, partial / INT8, weight_type=quantization.QuantType.QInt8)
        graphs = {name: replace(scorer, model=_Graph(partial / file, scorer)) for name, file in _FILES.items()}
        found = compare({"model": scorer, **graphs}, folder, int(facts["max_length"]), data)
        if found["difference"] > TOLERANCE:
            raise KinspanError(f"--onnx: the graph's logits differ from the model's by {found['difference']:.2g}")
        found["megabytes"] = {name: (partial / file).stat().st_size / 1e6 for name, file in _FILES.items()}
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        partial.replace(folder / FOLDER)
    except OSError as error:
        raise KinspanError(f"--onnx: {folder / FOLDER} cannot be written: {quote_error(error)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _write_section(folder, facts, found)
    return found


_FILES = {"fp32": FP32, "int8": INT8}


class _Graph(nn.Module):
    """An ONNX graph on the processor, called as the model that it was exported from."""

    device = torch.device("cpu")

    def __init__(self, path: Path, scorer: Scorer) -> None:
        import onnxruntime

        super().__init__()
        self.config = scorer.model.config
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> SequenceClassifierOutput:
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        (logits,) = self.session.run(None, {i.name: given[i.name].numpy() for i in self.session.get_inputs()})
        return SequenceClassifierOutput(logits=torch.from_numpy(logits))


def export(scorer: Scorer, path: Path) -> None:
    """Writes the model as a graph for any number of pairs and tokens.

    Raises KinspanError where torch cannot export it.
    """
    encoded = scorer.tokenizer([QUESTION] * 2, [CANDIDATES[0], CANDIDATES[0] * 2], padding=True, return_tensors="pt")
    taken = inspect.signature(scorer.model.forward).parameters
    inputs = {name: tensor for name, tensor in encoded.items() if name in taken}
    free = torch.export.Dim.DYNAMIC
    try:
        torch.onnx.export(
            scorer.model,
            kwargs=inputs,
            f=str(path),
            input_names=list(inputs),
            output_names=["logits"],
            dynamic_shapes={name: {0: free, 1: free} for name in inputs},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    except Exception as error:  # the exporter's own types are many
        raise KinspanError(f"--onnx: {type(scorer.model).__name__} cannot be exported: {quote_error(error)}") from error


def compare(scorers: dict[str, Scorer], folder: Path, max_length: int, data: AnswerSet | None) -> dict[str, Any]:
    """Compares the graphs' logits with the model's, on pairs of all lengths and on a test set.

    Returns ``pairs``, their number; ``difference``, the largest one of fp32; ``int8_mean`` and ``int8_max``, of int8;
    ``data`` and ``table``, the test set in words, and each scorer's metrics and largest difference there.
    """
    tokenizer = load_own_tokenizer(str(folder))

    def score(answers: AnswerSet) -> dict[str, np.ndarray]:
        pairs = unpack(encode_pairs(answers, tokenizer, max_length))
        return {name: score_padded(scorer, pairs, BATCH) for name, scorer in scorers.items()}

    texts = pa.array([" ".join([CANDIDATES[0]] * number) for number in range(2 * BATCH + 1)], pa.large_string())
    logits = score(AnswerSet("sample", "", ["0"], [QUESTION], np.array([0, len(texts)]), texts, texts, np.zeros(1)))
    moved = {name: np.abs(own - logits["model"]) for name, own in logits.items()}
    found = {
        "pairs": len(texts),
        "max_length": max_length,
        "difference": float(moved["fp32"].max()),
        "int8_mean": float(moved["int8"].mean()),
        "int8_max": float(moved["int8"].max()),
    }
    if data is None:
        return found
    scores = score(data)
    table = {name: compute_means(compute_question_metrics(data, own)) for name, own in scores.items()}
    for name, own in scores.items():
        table[name]["difference"] = float(np.abs(own - scores["model"]).max())
    return found | {"data": f"{data.name} {data.split}, {CLEAN}: {data.num_questions:,} questions", "table": table}


def _write_section(folder: Path, facts: dict[str, Any], found: dict[str, Any]) -> None:
    section = render_template(
        TEMPLATES,
        "onnx.md",
        found=found,
        metrics={name: TITLES[name] for name in METRICS},
        megabytes=found["megabytes"],
        where=HERE,
        question=QUESTION,
        text=CANDIDATES[0],
        max_length=found["max_length"],
    )
    card = (folder / CARD).read_text(encoding="utf-8")
    (folder / CARD).write_text(card.replace(LICENCE, f"\n{section}{LICENCE}"), encoding="utf-8")
    (folder / FACTS).write_text(json.dumps({**facts, "onnx": found}, indent=1) + "\n")
    make_readable(folder)


@contextmanager
def _silence() -> Iterator[None]:
    """Keeps the exporter's and the quantiser's own messages off the screen."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
