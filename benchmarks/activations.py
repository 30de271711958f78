"""Measures the memory of activations: what forward and backward need beside weights, gradients and Adam's moments.

torch's profiler reports every allocation of tensors. The figure is the most that was allocated above the level at the
start of a forward pass, at which weights, moments and gradients (zeros, of their full size) are there already, until
the end of backward. The second update is measured. Ours runs the model as pretrain.step does, on packed pairs;
the Trainer is the real one, padded to the longest pair. Each runs in a process of its own, and on the same pairs.

Bar: at most half of the Trainer's, RoBERTa-base, 32 pairs of at most 128 tokens."""

import os
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from benchmarks import _common
from benchmarks.peers import case as cases
from benchmarks.peers.case import Case

BAR = 0.5

EPILOG = """example:
  python launch/prepare.py --input enwiki2015_AA.jsonl.xz --tokenizer roberta-base --output_dir corpora/aa-roberta
  python benchmarks/activations.py --corpus corpora/aa-roberta"""


class Meter:
    """Counts what is allocated from ``start`` to ``stop``; ``peak`` is then the most above the start, in bytes."""

    peak = 0

    def start(self, model: Any) -> None:
        """Gives each parameter a gradient of zeros before, as it is never without one then."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self.profiler.start()

    def stop(self) -> None:
        self.profiler.stop()
        self.peak = find_peak([e.nbytes() for e in list_allocations(self.profiler)])


def list_allocations(profiler: Any) -> list[Any]:
    """What the profiler recorded of memory, in the order of time."""
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    return sorted(events, key=lambda e: e.start_ns())


def find_peak(changes: list[int]) -> int:
    """The highest sum of the first so many changes, and at least 0."""
    level = peak = 0
    for change in changes:
        level += change
        peak = max(peak, level)
    return peak


def measure_ours(case: Case) -> int:
    import torch

    from benchmarks.peers.ours import load
    from pretrain.batches import to_tensors
    from pretrain.modeling.randomness import decide_dropout

    model = load(case).train()
    if case.precision == "bf16":
        model.bfloat16()
    stream, meter = cases.open_stream(case), Meter()
    for step in range(2):
        batch = stream.batch(step * case.pairs, case.pairs)
        counts = {loss.name: getattr(batch, loss.count) for loss in model.losses}
        if step:
            meter.start(model)
        inputs = to_tensors(batch, torch.device("cpu"))
        with decide_dropout(cases.SEED, step, 0, batch.index):
            loss, _, _ = model(**inputs, scales={name: 1 / count for name, count in counts.items()})
        loss.backward()
    meter.stop()
    return meter.peak


def measure_trainer(case: Case) -> int:
    from transformers import TrainerCallback

    from benchmarks.peers.plain import load_plain
    from benchmarks.peers.trainer import train_once

    model, meter = load_plain(case), Meter()

    class Measure(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 1:
                meter.start(model)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 1:
                meter.stop()

    rows = cases.split_rows(cases.open_stream(case).batch(0, 2 * case.pairs))
    train_once(case, model, rows, Measure())
    return meter.peak


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", required=True, help=_common.CORPUS_HELP + " With the model's tokenizer.")
    parser.add_argument("--model", default="roberta-base", choices=["minilm", *cases.MODELS], help="Which.")
    parser.add_argument("--objective", default="ssp", help="Whose pairs.")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"), help="Which.")
    parser.add_argument("--pairs", type=int, default=32, help="Pairs of the forward pass.")
    parser.add_argument("--threads", type=int, default=2, help="Of each.")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    case = Case(args.model, args.objective, args.precision, args.corpus, args.pairs, rounds=1)
    peaks = {}
    for name, function in (("ours", measure_ours), ("Trainer", measure_trainer)):
        peaks[name] = _common.in_fresh_process(function, case)
        print(f"{name}: {peaks[name] / 1e6:,.0f} MB", flush=True)
    ratio = peaks["ours"] / peaks["Trainer"]
    title = f"{case.model}, {case.objective}, {case.precision}, {case.pairs} pairs"
    rows = [(name, f"{peak / 1e6:,.0f}", f"{peak / peaks['Trainer']:.2f}") for name, peak in peaks.items()]
    _common.print_table((title, "MB of activations", "of the Trainer's"), rows)
    figures = {"ours_bytes": peaks["ours"], "trainer_bytes": peaks["Trainer"], "ratio": ratio, "bar": BAR}
    _common.report("activations", figures | {"case": title})


if __name__ == "__main__":
    _common.run(main)
