"""Checks that the GPU computes what it should: packed rows, the CPU's losses, the same bits again, updates."""

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import nn

from benchmarks.peers.case import NO_DROPOUT, Case, open_stream, pad_rows, split_rows
from data_pipeline.core.errors import KinspanError
from data_pipeline.sampling.batch import Batch
from pretrain.batches import to_tensors
from pretrain.checkpoints.reader import list_checkpoints
from pretrain.modeling.families import FAMILIES
from pretrain.modeling.pair_model import PairModel, load_model

from .bench import DEVICE, ON_GPU, Bench, Row, finish, read_lines, start_command, train_here

FP32_CLOSE, BF16_CLOSE, RANKS_CLOSE = 1e-4, 0.01, 1e-5  # of losses: in nats, relative, in nats
BF16_ROUNDING, BF16_NOISE = 2.0, 2**-8  # packed may be so many times as far from fp32 as padded, and a rounding more
PAIRS = 24  # of compare_families; with fewer, rounding at DistilBERT's ReLU decides
LOSSES = ("loss", "mlm_loss", "pair_loss")
REPEATED = ("minilm-l6", "electra-base", "modernbert-base")  # bidirectional, with replaced tokens, with windows
STEPS, OVERFLOW = 6, 3  # of a run of updates; the one whose gradient is made infinite
BY_GLOO = """import functools, runpy, sys, deepspeed
deepspeed.init_distributed = functools.partial(deepspeed.init_distributed, dist_backend="gloo")
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")"""  # NCCL refuses two ranks on one GPU
STAGES = (("fp32", (0, 1, 2, 3)), ("bf16", (1, 2, 3)))
Outputs = dict[str, torch.Tensor]
Lines = list[dict[str, Any]]


def compare_families(bench: Bench) -> Iterator[Row]:
    """Compares packed rows with padded ones: a small model of each family, in fp32 and bf16, dropout off."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    batch = open_stream(Case("minilm", "ssp", "fp32", bench.corpus("bert"), 0, 0)).batch(0, PAIRS)
    for family in FAMILIES:
        ours = load_model(bench.small_model(family), seed=1)[0].eval().to(DEVICE)
        plain = build_plain(ours).eval().to(DEVICE)
        exact = compute(plain, batch, compute_padded)
        apart = measure_distances(compute(ours, batch, compute_packed), exact)
        yield Row(f"{family}, fp32", apart, max(apart.values()) <= FP32_CLOSE)
        theirs = measure_distances(compute(plain.bfloat16(), batch, compute_padded), exact)
        apart = measure_distances(compute(ours.bfloat16(), batch, compute_packed), exact)
        figures = apart | {f"padded {name}": value for name, value in theirs.items()}
        yield Row(f"{family}, bf16", figures, all(apart[k] <= BF16_ROUNDING * theirs[k] + BF16_NOISE for k in apart))


def build_plain(ours: PairModel) -> nn.ModuleDict:
    """Returns the two models of ``transformers`` with the same weights, on one encoder with its own attention."""
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
    """Returns pair logits, and logits at the masked positions, as the product computes them."""
    pair, masked = model.logits(to_tensors(batch, DEVICE))
    return pair, masked[:, : model.config.vocab_size]  # of aligned ones


def compute_padded(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the same by ``transformers``, of padded rows with an attention mask."""
    config = model.classifier.config
    rows = pad_rows(split_rows(batch), config.pad_token_id)
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if FAMILIES[config.model_type].token_types else [])]
    inputs = {name: rows[name].to(DEVICE) for name in names}
    masked = model.masked_lm(**inputs).logits[inputs["attention_mask"].bool()]
    return model.classifier(**inputs).logits[:, 0], masked[torch.from_numpy(batch.masked_positions).to(DEVICE)]


def compute(model: Any, batch: Batch, forward: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Outputs:
    """Returns loss, both kinds of logits, and the gradient of the embeddings and of every layer."""
    model.zero_grad()
    pair, masked = forward(model, batch)
    labels, targets = torch.from_numpy(batch.labels).to(DEVICE), torch.from_numpy(batch.masked_labels).to(DEVICE)
    loss = F.binary_cross_entropy_with_logits(pair.float(), labels.float()) + F.cross_entropy(masked.float(), targets)
    loss.backward()
    parameters = model.classifier.base_model.parameters()
    gradient = torch.cat([p.grad.float().flatten() for p in parameters if p.grad is not None])
    outputs = {"loss": loss, "pair logits": pair, "masked logits": masked, "gradient": gradient}
    return {name: value.detach().double().cpu() for name, value in outputs.items()}


def measure_distances(outputs: Outputs, exact: Outputs) -> dict[str, float]:
    """Returns the distance of each pair of tensors by the length of the second."""
    return {name: float((outputs[name] - exact[name]).norm() / exact[name].norm()) for name in exact}


def compare_losses(bench: Bench) -> Iterator[Row]:
    """Compares losses of RoBERTa-base, dropout and TF32 off: on the CPU in fp32, and on the GPU in fp32 and bf16."""
    steps = 2 if bench.quick else 10
    model = bench.model("roberta-base", **NO_DROPOUT)
    shared = _shape(16, 8, steps) | {"model": model, "warmup_steps": steps // 2, "tf32": False}
    on_cpu = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "8" if ON_GPU else "1"}
    variables: dict[str, dict[str, str]] = {"fp32": {}, "fp32 cpu": on_cpu, "bf16": {}}
    runs = {name: bench.settings("roberta-base", **shared, precision=name[:4]) for name in variables}
    for process in [start_command(runs[name], **values) for name, values in variables.items()]:
        finish(process)
    exact, cpu, half = (read_lines(runs[name]) for name in variables)
    figures = {f"{loss}, nats": find_gap(exact, cpu, loss) for loss in LOSSES}
    holds = len(exact) == steps and max(figures.values()) <= FP32_CLOSE
    yield Row(f"{steps} steps in fp32, GPU against CPU", figures, holds)
    # The first updates are smaller than what weights in bf16 resolve: the two come together after them
    last = abs(half[-1]["loss"] - exact[-1]["loss"])
    figures = {"at most, nats": find_gap(half, exact), "at last": last}
    yield Row(f"{steps} steps, bf16 against fp32", figures, last <= BF16_CLOSE * exact[-1]["loss"])


def find_gap(lines: Lines, others: Lines, loss: str = "loss") -> float:
    """Returns the largest difference of a loss between two logs."""
    return max(abs(a[loss] - b[loss]) for a, b in zip(lines, others, strict=True))


def repeat(bench: Bench) -> Iterator[Row]:
    """Trains each model twice with ``--deterministic``, all at once."""
    names = REPEATED[:1] if bench.quick else REPEATED
    shape = _shape(32, 16, 2 if bench.quick else 8) | {"deterministic": True}
    runs = {name: [bench.settings(name, **shape) for _ in range(2)] for name in names}
    for process in [start_command(settings) for pair in runs.values() for settings in pair]:
        finish(process)
    for name, pair in runs.items():
        differing = count_differences(*pair)
        yield Row(f"{name} twice", {"differing losses and files": differing}, not differing)


def kill_and_resume(bench: Bench) -> Iterator[Row]:
    """Kills MiniLM-L6 after its first checkpoint, starts it again, and compares it with a run that was left alone."""
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
    sizes = {"global_batch_size": pairs, "micro_batch_size": micro}
    return sizes | {"max_steps": steps, "save_steps": steps, "log_steps": 1}


def count_differences(*runs: dict[str, Any]) -> int:
    """Returns how many losses, and files of weights in the newest checkpoint, two runs do not share."""
    first, second = map(_list_results, runs)
    return sum(first.get(name) != second.get(name) for name in first | second)


def _list_results(settings: dict[str, Any]) -> dict[Any, Any]:
    newest = max((Path(settings["output_dir"]) / "checkpoints").glob("step-*"))
    weights = {file.name: hashlib.sha256(file.read_bytes()).digest() for file in newest.glob("*.safetensors")}
    return weights | {line["step"]: line["loss"] for line in read_lines(settings)}


def compare_updates(bench: Bench) -> Iterator[Row]:
    """Checks AdamW alone; then MiniLM-L6 in every stage of ZeRO, with one rank; then an update that overflows."""
    yield compare_adamw()
    exact: Lines = []
    for precision, stages in STAGES:
        for stage in stages:
            lines = _train(bench, precision=precision, deepspeed_config=f"ds_configs/zero{stage}.json")
            exact = exact or lines
            gap = find_gap(lines, exact)
            close = FP32_CLOSE if precision == "fp32" else BF16_CLOSE * exact[0]["loss"]
            yield Row(f"ZeRO {stage} in {precision} against ZeRO 0 in fp32", {"losses, nats": gap}, gap <= close)
    yield compare_overflow(bench)


def compare_ranks(bench: Bench) -> Iterator[Row]:
    """Trains MiniLM-L6 by two ranks on one device, which gloo joins, in ZeRO 1 and 2, against one rank."""
    model = bench.model("minilm-l6", **NO_DROPOUT)
    world = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_PORT": "29555"}
    for stage in (2,) if bench.quick else (1, 2):
        shared = {
            "model": model,
            "precision": "fp32",
            "tf32": False,
            "deepspeed_config": f"ds_configs/zero{stage}.json",
        }
        shared |= _shape(32, 16, STEPS)
        alone, both = (bench.settings("minilm-l6", **shared) for _ in range(2))
        finish(start_command(alone))
        for process in [start_command(both, "-c", BY_GLOO, RANK=rank, **world) for rank in "01"]:
            finish(process)
        gap = find_gap(read_lines(alone), read_lines(both))
        yield Row(f"two ranks on one device, ZeRO {stage}", {"losses, nats": gap}, gap <= RANKS_CLOSE)


def compare_adamw() -> Row:
    """Compares torch's fused AdamW with its plain loop; ``found_inf`` must leave every bit, as skipped updates need."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    start = 0.02 * torch.randn(1000, 257, device=DEVICE, generator=generator)  # as large as weights are
    parameters = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    fused = torch.optim.AdamW(parameters[:1], lr=1e-3, fused=True)
    plain = torch.optim.AdamW(parameters[1:], lr=1e-3, foreach=False)
    for _ in range(10):
        for parameter in parameters:
            parameter.grad = torch.randn(start.shape, device=DEVICE, generator=generator.manual_seed(_))
        fused.step()
        plain.step()
    apart = float((parameters[0] - parameters[1]).detach().abs().max())
    before = parameters[0].detach().clone()
    fused.found_inf = torch.ones((), device=DEVICE)  # type: ignore[attr-defined]
    fused.step()
    kept = torch.equal(before, parameters[0])
    return Row("fused AdamW", {"from the plain loop": apart, "a skipped update keeps it": kept}, kept and apart <= 1e-6)


def compare_overflow(bench: Bench) -> Row:
    """Checks that an update of infinite gradient moves no weight, and a later one does; in fp32 without a GPU."""
    seen: list[list[torch.Tensor]] = []
    hooks: list[Any] = []

    def before(step: int, engine: Any) -> None:
        weights = list(engine.module.parameters())
        if hooks:
            hooks.pop().remove()
        if step == OVERFLOW:
            hooks.append(weights[0].register_hook(lambda gradient: gradient + torch.inf))
        if step >= OVERFLOW:
            seen.append([weight.detach().clone() for weight in weights])

    _train(bench, before, precision="fp16" if ON_GPU else "fp32", deepspeed_config="ds_configs/zero1.json")
    moved = [any(not torch.equal(a, b) for a, b in zip(*pair, strict=True)) for pair in (seen[:2], seen[-2:])]
    figures = dict(zip(("weights moved", "moved by a later one"), moved, strict=True))
    return Row("an update that overflows", figures, moved == [False, True])


def compare_compiled(bench: Bench) -> Iterator[Row]:
    """Trains MiniLM-L6 and a small ModernBERT without dropout: a compiled graph draws other random numbers."""
    if not ON_GPU:
        yield Row("compiled", {"": "there is no GPU here, and nothing else is compiled"})
        return
    for name in ("minilm-l6", "modernbert-base"):
        changes = {} if name == "minilm-l6" else {"num_hidden_layers": 4}
        model = bench.model(name, **NO_DROPOUT, **changes)
        eager, compiled = (_train(bench, name=name, model=model, compile=wanted) for wanted in (False, True))
        gap = find_gap(eager, compiled)
        yield Row(f"{name}, compiled against eager, bf16", {"losses, nats": gap}, gap <= BF16_CLOSE * eager[0]["loss"])


def _train(bench: Bench, before: Any = lambda *_: None, name: str = "minilm-l6", **settings: Any) -> Lines:
    settings = {"model": bench.model(name, **NO_DROPOUT), **_shape(32, 32, STEPS), **settings}
    return train_here(bench.settings(name, **settings), before)
