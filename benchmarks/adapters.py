"""Measures training an adapter against training the whole model, and what it leaves on the disk.

adapter:          a bottleneck of 64 in every layer of a frozen encoder, and the pair head
LoRA:             rank 8 at the queries and values, and the pair head
full, pairs:      every weight, by the same loss
full, with MLM:   every weight, by the pair loss and masked language modelling, as launch/pretrain.py does by default

All train on the same pairs with dropout, in processes of their own that take turns, an update each: the engine that
launch/pretrain.py builds, ZeRO 1. The weights are drawn anew, which changes no time. Then the adapter's run writes a
checkpoint and a release, whose sizes are printed.

Bars: an adapter's update at least 1.15 times as fast as that of the whole model by the same loss; its file below 6 MB
at the size of BERT-base; no weight of the encoder in a checkpoint."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

from benchmarks import _common
from benchmarks.peers.case import MODELS
from benchmarks.peers.turns import Turn, compare, measure_rate, take_turns
from data_pipeline.errors import KinspanError

BAR, MEGABYTES = 1.15, 6.0
ADAPTER, LORA, FULL, WITH_MLM = "adapter", "LoRA", "full, pairs", "full, with MLM"
METHODS = {ADAPTER: "pfeiffer", LORA: "lora"}

EPILOG = """example:
  python benchmarks/adapters.py --corpus corpora/aa
  python benchmarks/adapters.py --corpus corpora/aa --model small-bert --pairs 4 --rounds 2"""


@dataclass(frozen=True)
class Case:
    """One way: what is trained of the weights in ``folder``, on ``pairs`` of ``corpus``, ``rounds`` times and once."""

    what: str
    folder: str
    corpus: str
    pairs: int
    rounds: int


def write_base(model: str, corpus: str, folder: Path) -> None:
    """A base of fresh weights with the corpus's tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForMaskedLM

    from data_pipeline.tokenizers import load_tokenizer

    kind, options = MODELS[model]
    tokenizer = load_tokenizer(str(Path(corpus) / "tokenizer"))
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(1)
    AutoModelForMaskedLM.from_config(AutoConfig.for_model(kind, **(sizes | options))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load(case: Case) -> Any:
    """The module that the case trains."""
    from torch import nn

    from pretrain.modeling.adapters.model import AdapterModel, load_adapter_model
    from pretrain.modeling.pair_model import PairModel, load_model

    if case.what in METHODS:
        return load_adapter_model(case.folder, METHODS[case.what], None, [], "new", 1)[0]  # type: ignore[arg-type]
    model = load_model(case.folder, 1)[0]
    if case.what == WITH_MLM:
        return model

    class PairsAlone(AdapterModel):
        """A whole model by an adapter's loss."""

        def __init__(self, classifier: Any) -> None:
            PairModel.__init__(self, classifier, nn.Identity(), ("ssp",))

    return PairsAlone(model.classifier).train()


def train(case: Case, turn: Turn) -> None:
    """An update each time that it is the case's turn."""
    from data_pipeline.corpus import Corpus
    from data_pipeline.sampling.stream import PairStream
    from data_pipeline.tokenizers import load_tokenizer, read_pair_template
    from objectives import parse_mixture
    from objectives.mlm import MaskedLM
    from pretrain.batches import make_micro_batches
    from pretrain.config import PretrainConfig
    from pretrain.modeling.losses import PAIR
    from pretrain.runtime.engine import (
        OptimizerSettings,
        build_engine,
        complete_settings,
        read_deepspeed_config,
        start_distributed,
    )
    from pretrain.runtime.layout import Layout
    from pretrain.step import start_counting, train_step

    start_distributed()
    layout = Layout(case.pairs, case.pairs, 1)
    settings = OptimizerSettings.of(PretrainConfig())
    deepspeed_settings = complete_settings(read_deepspeed_config("ds_configs/zero1.json"), settings, layout, "fp32")
    model = load(case)
    engine = build_engine(model, settings, deepspeed_settings)
    engine.train()
    tokenizer = load_tokenizer(case.folder)
    mixture = parse_mixture("ssp").read_from(Corpus(case.corpus))
    masking = None if model.losses == (PAIR,) else MaskedLM(tokenizer.mask_token_id, len(tokenizer))
    template = read_pair_template(tokenizer)
    stream = PairStream(mixture, template=template, seed=1, max_length=_common.MAX_LENGTH, masking=masking)
    filler = stream.batch(0, 1)
    for step in range(case.rounds + 1):
        batches = make_micro_batches(stream, layout, 0, step)
        turn.begin()
        counted = start_counting(batches, engine.module.losses)()
        result = train_step(engine, counted=counted, filler=filler, layout=layout, rank=0, seed=1, step=step)
        sums = dict(zip(engine.module.sum_names, result.sums.tolist(), strict=True))
        turn.end(result.tokens, {"pair": sums["ssp/pair_loss"] / case.pairs})


def measure_files(folder: str, corpus: str, method: str) -> dict[str, float]:
    """Megabytes that one update of a run leaves: of its checkpoint, and of its release's files."""
    from pretrain.config import PretrainConfig
    from pretrain.release.release import release
    from pretrain.run import pretrain

    with TemporaryDirectory() as place:
        run = {"corpus": [corpus], "model": folder, "output_dir": f"{place}/run", "adapter": method}
        sizes = {"global_batch_size": 4, "micro_batch_size": 4, "max_steps": 1, "eval_pairs": 0, "precision": "fp32"}
        pretrain(PretrainConfig(**{**run, **sizes}, peak_tflops=1.0))  # type: ignore[arg-type]
        released = release(Path(run["output_dir"]), Path(place) / "release")  # type: ignore[arg-type]
        checkpoint = Path(place) / "run/checkpoints/step-00000001"
        every = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
        out = {path.name: path.stat().st_size / 1e6 for path in released.glob("*.safetensors")}
        return {**out, "checkpoint": every / 1e6}


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", required=True, help=_common.CORPUS_HELP + " With BERT's tokenizer.")
    parser.add_argument("--model", default="bert-base", choices=("bert-base", "small-bert"), help="Its size.")
    parser.add_argument("--pairs", type=int, default=32, help="Pairs of an update, in one micro-batch.")
    parser.add_argument("--rounds", type=int, default=7, help="Updates of each that count; one more warms up.")
    parser.add_argument("--threads", type=int, default=2, help="Of each way, while it is its turn.")
    args = parser.parse_args()
    if min(args.pairs, args.rounds, args.threads) < 1:
        raise KinspanError(f"--pairs {args.pairs} --rounds {args.rounds} --threads {args.threads}: must be above 0")
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    figures: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        write_base(args.model, args.corpus, Path(folder))
        names = (ADAPTER, LORA, FULL, WITH_MLM)
        ways = {name: (train, Case(name, folder, args.corpus, args.pairs, args.rounds)) for name in names}
        done = take_turns(ways, args.rounds, lambda line: print(f"  {line}", flush=True))
        rows = []
        for name, updates in done.items():
            median = sorted(u.seconds for u in updates)[len(updates) // 2]
            own = sorted(u.seconds for u in done[ADAPTER])[len(updates) // 2]
            _, least, most = compare(done[ADAPTER], updates)
            rows.append((name, f"{measure_rate(updates):,.0f}", f"{median:.2f}", f"{median / own:.2f}"))
            rows[-1] += ("" if name == ADAPTER else f"{least:.2f} to {most:.2f}", f"{BAR}" if name == FULL else "")
            figures[f"{name}/seconds"], figures[f"{name}/ratio"] = median, median / own
        header = (f"{args.model}, SSP, fp32", "tokens/s", "s, median", "adapter is x", "by round", "bar")
        _common.print_table(header, rows)
        for name, method in METHODS.items():
            sizes = measure_files(folder, args.corpus, method)
            print(f"{name}, MB: {', '.join(f'{file} {size:.2f}' for file, size in sizes.items())}", flush=True)
            figures |= {f"{name}/{file}": size for file, size in sizes.items()}
    _common.report("adapters", figures | {"pairs": args.pairs, "rounds": args.rounds, "threads": args.threads})


if __name__ == "__main__":
    _common.run(main)
