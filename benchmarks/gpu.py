"""Trains RoBERTa-base from its config in bf16 on one GPU, by the product's own loop, and says how it ran.

``pretrain.run.pretrain`` trains on SSP pairs of at most 128 tokens of a prepared corpus for a hundred
updates, into a folder that is deleted afterwards; there is no validation, and no checkpoint but the last.
Its log gives, as medians over windows of a few updates once the first ones are past:
  tokens/s   real tokens; there is no padding to count
  MFU        the model's floating-point operations (see pretrain/metrics.py) against a matrix product that is
             measured here on this device: 8192 x 8192 x 8192 in bf16, on random numbers
  data wait  share of the time in which training stood still for batches
  padding    share of the slots in attention that hold no token; linear layers see none in any case
and the memory that PyTorch had allocated at most.

With --quick it runs on the CPU in fp32, on a small model for six updates: a check that the script works, the
figures mean nothing."""

import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

import torch

from benchmarks import _common
from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from data_pipeline.tokenizers import load_tokenizer

EPILOG = """example:
  python launch/prepare.py --input enwiki2015_AA.jsonl.xz --tokenizer roberta-base --output_dir corpora/aa-roberta
  python benchmarks/gpu.py --corpus corpora/aa-roberta --micro_batch_size 256
  CUDA_VISIBLE_DEVICES= python benchmarks/gpu.py --corpus corpora/aa-roberta --quick"""


@dataclass(frozen=True)
class Plan:
    """What is run: sizes of the model (RoBERTa-base but for these) and of the run."""

    precision: str
    layers: int
    hidden: int
    global_batch: int
    micro_batch: int
    steps: int
    log_steps: int
    product: int  # rows and columns of the measured matrix product


QUICK = Plan("fp32", 2, 128, 32, 16, 6, 1, 1024)


def plan_of(args: Any) -> Plan:
    if args.quick:
        return QUICK
    if not torch.cuda.is_available():
        raise KinspanError("there is no CUDA device here; --quick runs the script on the CPU with a small model")
    return Plan("bf16", 12, 768, args.global_batch_size, args.micro_batch_size, args.steps, 5, 8192)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def product_tflops(size: int, precision: str) -> float:
    """TFLOP/s of a square matrix product: median of ten, after three that warm up."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    seconds = []
    for _ in range(13):
        synchronize()
        began = time.perf_counter()
        torch.mm(a, b, out=out)
        synchronize()
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / statistics.median(seconds[3:]) / 1e12


def write_model_folder(folder: Path, corpus: Corpus, plan: Plan) -> None:
    """RoBERTa-base's config, or a smaller one, and the corpus's tokenizer; no weights."""
    from transformers import RobertaConfig

    RobertaConfig(
        vocab_size=50265,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        num_hidden_layers=plan.layers,
        hidden_size=plan.hidden,
        num_attention_heads=plan.hidden // 64,
        intermediate_size=4 * plan.hidden,
    ).save_pretrained(folder)
    load_tokenizer(str(corpus.folder / "tokenizer")).save_pretrained(folder)


def train(folder: Path, corpus: Corpus, plan: Plan, zero: int, peak: float) -> tuple[list[dict], dict]:
    """Runs the product; returns its log's training lines and its summary."""
    from pretrain.config import PretrainConfig
    from pretrain.run import pretrain

    model, output = folder / "model", folder / "run"
    write_model_folder(model, corpus, plan)
    config = PretrainConfig(
        corpus=str(corpus.folder),
        model=str(model),
        output_dir=str(output),
        deepspeed_config=f"ds_configs/zero{zero}.json",
        global_batch_size=plan.global_batch,
        micro_batch_size=plan.micro_batch,
        max_length=128,
        max_steps=plan.steps,
        precision=plan.precision,  # type: ignore[arg-type]
        eval_pairs=0,
        log_steps=plan.log_steps,
        save_steps=plan.steps,
        keep_checkpoints=1,
        peak_tflops=peak,
    )
    summary = pretrain(config)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == "train"], summary


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", help=_common.CORPUS_HELP + " With RoBERTa's tokenizer. Required.")
    parser.add_argument("--micro_batch_size", type=int, default=256, help="Pairs of a forward pass.")
    parser.add_argument("--global_batch_size", type=int, default=4096, help="Pairs of an update.")
    parser.add_argument("--zero", type=int, default=1, choices=range(4), help="ZeRO stage; bf16 needs 1 or higher.")
    parser.add_argument("--steps", type=int, default=100, help="Updates.")
    parser.add_argument("--quick", action="store_true", help="A small model on the CPU, for a few updates.")
    args = parser.parse_args()
    if args.corpus is None:
        raise KinspanError("give a --corpus; launch/prepare.py writes one, see --help for how")
    if args.quick:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before anything asks for a device
    plan, corpus = plan_of(args), Corpus(args.corpus)
    peak = product_tflops(plan.product, plan.precision)
    with tempfile.TemporaryDirectory() as folder:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        lines, summary = train(Path(folder), corpus, plan, args.zero, peak)
        synchronize()
    show(plan, args.zero, peak, lines, summary)


def show(plan: Plan, zero: int, peak: float, lines: list[dict], summary: dict) -> None:
    settled = lines[min(4, len(lines) // 2) :]  # the first windows tune kernels and grow the memory pool
    names = ("tokens_per_second", "mfu_percent", "data_wait_percent", "padding_percent")
    figures: dict[str, Any] = {name: statistics.median(line[name] for line in settled) for name in names}
    on_gpu = torch.cuda.is_available()
    figures["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9 if on_gpu else _common.peak_rss() / 1e3
    figures["product_tflops"] = peak
    figures["wall_tokens_per_second"] = summary["tokens"] / max(summary["wall_seconds"], 0.1)
    figures |= {"first_loss": lines[0]["loss"], "last_loss": lines[-1]["loss"]}
    rows = [
        ("real tokens/s", f"{figures['tokens_per_second']:,.0f}"),
        ("  over the whole run, validation and saving included", f"{figures['wall_tokens_per_second']:,.0f}"),
        (f"measured {plan.product}^3 product, {plan.precision}", f"{peak:.2f} TFLOP/s"),
        ("FLOP utilisation against it", f"{figures['mfu_percent']:.1f}%"),
        ("memory at most" + ("" if on_gpu else " (of the process)"), f"{figures['memory_gb']:.2f} GB"),
        ("data wait", f"{figures['data_wait_percent']:.2f}%"),
        ("padding in attention", f"{figures['padding_percent']:.1f}%"),
        ("loss, first and last window", f"{figures['first_loss']:.2f}, {figures['last_loss']:.2f}"),
    ]
    device = torch.cuda.get_device_name() if on_gpu else _common.cpu_model()
    _common.print_table((f"{plan.layers} x {plan.hidden} on {device}", "median of the settled windows"), rows)
    figures |= {"windows": len(settled), "steps": plan.steps, "zero": zero, "precision": plan.precision}
    figures |= {"global_batch": plan.global_batch, "micro_batch": plan.micro_batch}
    figures |= {"layers": plan.layers, "hidden": plan.hidden, "quick": plan == QUICK}
    _common.report("gpu", figures)


if __name__ == "__main__":
    _common.run(main)
