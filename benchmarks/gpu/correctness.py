"""Whether the GPU computes what it should: packed rows, losses beside the CPU's, the same bits again."""

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import nn

from benchmarks.peers.case import Case, open_stream, pad_rows, split_rows
from data_pipeline.core.errors import KinspanError
from data_pipeline.sampling.batch import Batch
from pretrain.batches import to_tensors
from pretrain.checkpoints.reader import list_checkpoints
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.pair_model import PairModel, load_model

from .bench import DEVICE, KIT_MODELS, ON_GPU, Bench, Row, finish, read_lines, start_command
from .updates import BF16_CLOSE, FP32_CLOSE, NO_DROPOUT

BF16_ROUNDING = 2.0  # packed bf16 may be this many times as far from padded fp32 as padded bf16 is
PAIRS = 24  # of compare_families; with --quick 4
LOSSES = ("loss", "mlm_loss", "pair_loss")
REPEATED = ("minilm-l6", "electra-base", "modernbert-base")  # bidirectional, with replaced tokens, with windows
Outputs = dict[str, torch.Tensor]


def compare_families(bench: Bench) -> Iterator[Row]:
    """A small model of each family on the device, in fp32 and bf16, dropout off: packed rows beside padded ones."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    batch = open_stream(Case("minilm", "ssp", "fp32", bench.corpus("bert"), 0, 0)).batch(0, 4 if bench.quick else PAIRS)
    for family in FAMILIES:
        ours = load_model(bench.small_model(family), seed=1)[0].eval().to(DEVICE)
        plain = build_plain(ours).eval().to(DEVICE)
        exact = compute(plain, batch, compute_padded)
        apart = measure_distances(compute(ours, batch, compute_packed), exact)
        yield Row(f"{family}, fp32", {f"{k} apart": v for k, v in apart.items()}, max(apart.values()) <= FP32_CLOSE)
        theirs = measure_distances(compute(plain.bfloat16(), batch, compute_padded), exact)
        apart = measure_distances(compute(ours.bfloat16(), batch, compute_packed), exact)
        figures = {f"{k} apart": v for k, v in apart.items()} | {f"padded {k} apart": v for k, v in theirs.items()}
        yield Row(f"{family}, bf16", figures, all(apart[k] <= BF16_ROUNDING * theirs[k] + FP32_CLOSE for k in apart))


def build_plain(ours: PairModel) -> nn.ModuleDict:
    """The two models of ``transformers`` that a release names, with the same weights, on one encoder with its own
    attention, so that its gradient is that of both losses."""
    config = type(ours.config).from_dict(ours.config.to_dict())
    config._attn_implementation = "eager"
    family = ours.family
    classifier, masked_lm = (getattr(transformers, name)(config) for name in (family.classifier, family.masked_lm))
    classifier.load_state_dict(ours.classifier.state_dict())
    family.mlm_head_of(masked_lm).load_state_dict(ours.mlm_head.state_dict())
    setattr(masked_lm, masked_lm.base_model_prefix, classifier.base_model)
    masked_lm.get_output_embeddings().weight = classifier.get_input_embeddings().weight
    return nn.ModuleDict({"classifier": classifier, "masked_lm": masked_lm})


def compute_packed(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Pair logits, and logits at the masked positions, as the product computes them."""
    pair, masked = model.logits(to_tensors(batch, DEVICE))
    return pair, masked[:, : model.config.vocab_size]  # of aligned ones


def compute_padded(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by ``transformers``, of padded rows with an attention mask."""
    config = model.classifier.config
    rows = pad_rows(split_rows(batch), config.pad_token_id)
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if FAMILIES[config.model_type].token_types else [])]
    inputs = {name: rows[name].to(DEVICE) for name in names}
    masked = model.masked_lm(**inputs).logits[inputs["attention_mask"].bool()]
    return model.classifier(**inputs).logits[:, 0], masked[torch.from_numpy(batch.masked_positions).to(DEVICE)]


def compute(model: Any, batch: Batch, forward: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Outputs:
    """Loss, both kinds of logits, and the gradient of the embeddings and of every layer."""
    model.zero_grad()
    pair, masked = forward(model, batch)
    labels, targets = torch.from_numpy(batch.labels).to(DEVICE), torch.from_numpy(batch.masked_labels).to(DEVICE)
    loss = F.binary_cross_entropy_with_logits(pair.float(), labels.float()) + F.cross_entropy(masked.float(), targets)
    loss.backward()
    parameters = model.classifier.base_model.parameters()
    gradient = torch.cat([p.grad.float().flatten() for p in parameters if p.grad is not None])
    found = {"loss": loss, "pair logits": pair, "masked logits": masked, "gradient": gradient}
    return {name: value.detach().double().cpu() for name, value in found.items()}


def measure_distances(one: Outputs, two: Outputs) -> dict[str, float]:
    """The distance of each pair of tensors by the length of the second."""
    return {name: float((one[name] - two[name]).norm() / two[name].norm()) for name in two}


def compare_losses(bench: Bench) -> Iterator[Row]:
    """RoBERTa-base from its config, dropout and TF32 off, on the CPU in fp32 and on the GPU in fp32 and bf16.

    The three run at once, by the product's own command. Without a GPU all are on the CPU: the check works.
    """
    steps = 2 if bench.quick else 10
    shared = _shape(16, 8, steps) | {"model": bench.model("roberta-base", **NO_DROPOUT), "warmup_steps": steps // 2}
    devices: dict[str, dict[str, str]] = {
        "fp32": {"NVIDIA_TF32_OVERRIDE": "0"},
        "fp32 cpu": {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "8" if ON_GPU else "1"},
        "bf16": {},
    }
    runs = {name: bench.settings("roberta-base", **shared, precision=name[:4]) for name in devices}
    for process in [start_command(runs[name], **variables) for name, variables in devices.items()]:
        finish(process)
    lines = {name: read_lines(settings) for name, settings in runs.items()}

    def find_gap(one: str, two: str, loss: str) -> float:
        return max(abs(a[loss] - b[loss]) for a, b in zip(lines[one], lines[two], strict=True))

    figures = {f"{loss} apart, nats": find_gap("fp32", "fp32 cpu", loss) for loss in LOSSES}
    holds = len(lines["fp32"]) == steps and max(figures.values()) <= FP32_CLOSE
    last = {"last loss": lines["fp32"][-1]["loss"]}
    yield Row(f"{steps} steps in fp32, GPU against CPU", figures | last, holds)
    # The first updates are smaller than what weights in bf16 resolve: the two come together after them
    last_gap = abs(lines["bf16"][-1]["loss"] - lines["fp32"][-1]["loss"])
    figures = {"at most apart, nats": find_gap("bf16", "fp32", "loss"), "at last": last_gap}
    yield Row(f"{steps} steps, bf16 against fp32", figures, last_gap <= BF16_CLOSE * lines["fp32"][-1]["loss"])


def repeat(bench: Bench) -> Iterator[Row]:
    """Runs of each model twice with ``--deterministic``, all at once."""
    names = REPEATED[:1] if bench.quick else REPEATED
    shape = _shape(32, 16, 2 if bench.quick else 8) | {"deterministic": True}
    runs = {name: [bench.settings(name, **shape) for _ in range(2)] for name in names}
    for process in [start_command(settings) for pair in runs.values() for settings in pair]:
        finish(process)
    for name, pair in runs.items():
        differing = count_differences(*pair)
        yield Row(f"{KIT_MODELS[name].title} twice", {"differing losses and files": differing}, not differing)


def kill_and_resume(bench: Bench) -> Iterator[Row]:
    """MiniLM-L6, killed after its first checkpoint and started again, against a run that was left alone."""
    steps, log_steps = (8, 1) if bench.quick else (400, 10)  # it must still run once its checkpoint is written
    shape = _shape(32, 16, steps) | {"save_steps": steps // 4, "log_steps": log_steps, "deterministic": True}
    whole, killed = (bench.settings("minilm-l6", **shape) for _ in range(2))
    alone, process = start_command(whole), start_command(killed)
    while not list_checkpoints(Path(killed["output_dir"]) / "checkpoints"):
        if process.poll() is not None:
            raise KinspanError("the run ended before its first checkpoint")
        time.sleep(0.02)
    process.kill()
    process.wait()
    reached = max((line["step"] for line in read_lines(killed)), default=0)
    finish(start_command(killed))
    finish(alone)
    differing = count_differences(whole, killed)
    figures = {"killed at step": reached, "of": steps, "differing losses and files": differing}
    yield Row("killed and resumed, against left alone", figures, not differing and reached < steps)


def _shape(pairs: int, micro: int, steps: int) -> dict[str, Any]:
    shape = {"global_batch_size": pairs, "micro_batch_size": micro, "max_steps": steps, "save_steps": steps}
    return shape | {"log_steps": 1}


def count_differences(*runs: dict[str, Any]) -> int:
    """How many losses, and files of weights in the newest checkpoint, two runs do not share."""
    one, two = map(_list_results, runs)
    return sum(one.get(name) != two.get(name) for name in one | two)


def _list_results(settings: dict[str, Any]) -> dict[Any, Any]:
    newest = max((Path(settings["output_dir"]) / "checkpoints").glob("step-*"))
    weights = {file.name: hashlib.sha256(file.read_bytes()).digest() for file in newest.glob("*.safetensors")}
    return weights | {line["step"]: line["loss"] for line in read_lines(settings)}
