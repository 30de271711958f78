"""A release's model as ONNX graphs: one that scores as the release does, and one with weights of eight bits."""

import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging as transformers_logging

from data_pipeline.errors import KinspanError, quote_error
from data_pipeline.files import describe_write_error, read_object
from data_pipeline.tokenizers import load_tokenizer_as_it_is
from pretrain.modeling.adapters.folder import is_adapter

from .folder import CARD, FACTS, make_readable, note_card
from .metadata import HERE
from .usage import CANDIDATES, QUESTION

FOLDER = "onnx"
FP32, INT8 = "model.onnx", "model_quantized.onnx"
TOLERANCE = 1e-4  # of a logit
SHAPES = ((1, 9), (4, 33), (8, 1.0))  # pairs and tokens of the batches that are compared; 1.0: as long as pairs may be
BEFORE = "\n## Licence\n"  # the section of the card that ONNX's goes before
NAMES = ("input_ids", "attention_mask", "token_type_ids")

_TEXT = """
## ONNX

`{folder}/{fp32}` ({fp32_megabytes:.1f} MB) scores as the model itself does: over {pairs} pairs of random tokens the
logits differ by {difference:.1g} at most. `{folder}/{int8}` ({int8_megabytes:.1f} MB) holds the weights as integers of
eight bits (onnxruntime's dynamic quantisation); {loss}

```python
import numpy as np
import onnxruntime
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{where}")
session = onnxruntime.InferenceSession("{where}/{folder}/{fp32}")
inputs = tokenizer(["{question}"], ["{candidate}"], truncation=True, max_length={max_length}, return_tensors="np")
(logits,) = session.run(None, {{i.name: inputs[i.name] for i in session.get_inputs()}})
print((1 / (1 + np.exp(-logits[:, 0]))).tolist())
```
"""
_UNMEASURED = """it moves the logits of these pairs by {mean:.2g} on average and {most:.2g} at
most. What that does to a ranking was not measured."""
_MEASURED = """what that loses:

{table}"""

Batch = dict[str, np.ndarray]
Measure = Callable[[Mapping[str, Path]], str]


def add_onnx(folder: Path, measure: Measure | None = None) -> dict[str, Any]:
    """Adds both graphs to a release, in ``onnx/``, with a section on its card; returns what that says.

    measure: given the graph of each precision ("fp32", "int8"), a table of how well they rank, in Markdown

    Raises KinspanError as ``check_onnx`` does, and where the graph's scores are not those of the model.
    """
    onnxruntime, quantization = check_onnx(folder)
    partial = folder / f"{FOLDER}.tmp"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        facts = read_object(folder / FACTS, "release it again")
        model, tokenizer = _load(folder)
        with _silence():
            _export(model, tokenizer, partial / FP32)
            quantization.quantize_dynamic(partial / FP32, partial / INT8, weight_type=quantization.QuantType.QInt8)
        graphs = {"fp32": partial / FP32, "int8": partial / INT8}
        logits = _compare(model, tokenizer, graphs, int(facts["max_length"]), onnxruntime)
        found: dict[str, Any] = _describe(logits, graphs)
        if found["difference"] > TOLERANCE:
            raise KinspanError(
                f"--onnx: the graph's logits differ from the model's by {found['difference']:.2g}, which is more than "
                f"{TOLERANCE}: nothing was added to {folder}"
            )
        table = measure(graphs) if measure else None
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        partial.replace(folder / FOLDER)
    except OSError as error:
        raise KinspanError(f"--onnx: {describe_write_error(folder / FOLDER, error)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _tell_on_card(folder, facts, found, table)
    make_readable(folder)
    return found | {"table": table}


def check_onnx(folder: Path) -> tuple[Any, Any]:
    """Returns the packages that graphs need, onnxruntime and its quantization.

    folder: of a release, a ranker, a run of the pre-training or a checkpoint of one

    Raises KinspanError where one is missing, or ``folder`` holds an adapter or a bi-encoder, which have no graph.
    """
    runs = [run for run in (folder, folder.absolute().parent.parent) if (run / "run.json").is_file()]
    facts = read_object(runs[0] / "run.json", f"{runs[0]} cannot be released without it") if runs else {}
    if is_adapter(folder) or facts.get("base"):
        raise KinspanError(
            f"--onnx: {folder} is an adapter, without the model that a graph needs: leave out --onnx, or merge one of "
            "LoRA into its base (launch/combine_adapters.py --how merge)"
        )
    if (folder / "modules.json").is_file() or facts.get("settings", {}).get("pair_loss"):
        raise KinspanError(
            f"--onnx: {folder} is a bi-encoder, and graphs are made of cross-encoders alone: leave it out"
        )
    return _import_packages()


def _import_packages() -> tuple[Any, Any]:
    try:
        import onnx  # noqa: F401 - quantization needs it
        import onnxruntime
        import onnxscript  # noqa: F401 - torch.onnx needs it
        from onnxruntime import quantization
    except ImportError as error:
        raise KinspanError(f"--onnx needs {error.name}: pip install 'kinspan[onnx]'") from error
    return onnxruntime, quantization


class _Logits(nn.Module):
    """The model with its inputs by position, as the exporter wants them."""

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True))).logits


def _load(folder: Path) -> tuple[Any, Any]:
    transformers_logging.disable_progress_bar()
    with _silence():
        model = AutoModelForSequenceClassification.from_pretrained(
            str(folder), dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
        )
        return model.eval(), load_tokenizer_as_it_is(str(folder))


def _list_inputs(tokenizer: Any) -> list[str]:
    return [name for name in NAMES if name in tokenizer.model_input_names]


def _export(model: Any, tokenizer: Any, path: Path) -> None:
    """Writes the graph, for any number of pairs and tokens."""
    names = _list_inputs(tokenizer)
    batch = _draw_batch(tokenizer, 2, 16, 0)
    free = torch.export.Dim.DYNAMIC
    try:
        torch.onnx.export(
            _Logits(model, names),
            tuple(torch.from_numpy(batch[name]) for name in names),
            str(path),
            input_names=names,
            output_names=["logits"],
            dynamic_shapes=(tuple({0: free, 1: free} for _ in names),),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    except Exception as error:  # the exporter's own types are many
        raise KinspanError(f"--onnx: {type(model).__name__} cannot be exported: {quote_error(error)}") from error


def _draw_batch(tokenizer: Any, pairs: int, tokens: int, seed: int) -> Batch:
    """Pairs of random tokens, of which each is shorter than the one before it, padded as the tokenizer does."""
    generator = np.random.default_rng(seed)
    ordinary = np.setdiff1d(np.arange(len(tokenizer)), tokenizer.all_special_ids)
    ids = generator.choice(ordinary, size=(pairs, tokens))
    ids[:, 0] = tokenizer.cls_token_id
    lengths = np.maximum(tokens - 2 * np.arange(pairs), 3)[:, None]
    places = np.arange(tokens)[None]
    mask = places < lengths
    ids[~mask] = tokenizer.pad_token_id
    types = (places >= lengths // 2) & mask
    return {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": types.astype(np.int64)}


def _compare(model: Any, tokenizer: Any, graphs: Mapping[str, Path], longest: int, onnxruntime: Any) -> Batch:
    """The logits of the same random pairs by the model ("torch") and by each graph."""
    names = _list_inputs(tokenizer)
    batches = [
        _draw_batch(tokenizer, pairs, tokens if isinstance(tokens, int) else longest, seed)
        for seed, (pairs, tokens) in enumerate(SHAPES, 1)
    ]
    batches = [{name: batch[name] for name in names} for batch in batches]
    with torch.no_grad():
        ours = [model(**{n: torch.from_numpy(x) for n, x in batch.items()}).logits.numpy() for batch in batches]
    found = {"torch": np.concatenate(ours)}
    for precision, path in graphs.items():
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found[precision] = np.concatenate([session.run(None, batch)[0] for batch in batches])
    return found


def _describe(logits: Batch, graphs: Mapping[str, Path]) -> dict[str, Any]:
    moved = np.abs(logits["int8"] - logits["torch"])
    return {
        "pairs": len(logits["torch"]),
        "difference": float(np.abs(logits["fp32"] - logits["torch"]).max()),
        "int8_mean": float(moved.mean()),
        "int8_most": float(moved.max()),
        **{f"{name}_megabytes": path.stat().st_size / 1e6 for name, path in graphs.items()},
    }


def _tell_on_card(folder: Path, facts: dict[str, Any], found: dict[str, Any], table: str | None) -> None:
    loss = _UNMEASURED.format(mean=found["int8_mean"], most=found["int8_most"])
    section = _TEXT.format(
        **found,
        folder=FOLDER,
        fp32=FP32,
        int8=INT8,
        loss=_MEASURED.format(table=table) if table else loss,
        where=HERE,
        question=QUESTION,
        candidate=CANDIDATES[0],
        max_length=facts["max_length"],
    )
    card = (folder / CARD).read_text(encoding="utf-8")
    (folder / CARD).write_text(card.replace(BEFORE, f"{section}{BEFORE}"), encoding="utf-8")
    (folder / FACTS).write_text(json.dumps({**facts, "onnx": {**found, "table": table}}, indent=1) + "\n")
    note_card(folder)


@contextmanager
def _silence() -> Iterator[None]:
    """Keeps what exporter, quantiser and transformers print of their inner workings off the screen."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
