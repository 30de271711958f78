"""Measures one update (forward, backward, optimizer) on the CPU in fp32, against a plain Hugging Face loop.

Ours: ``pretrain.step.train_step`` with the engine that launch/pretrain.py builds (DeepSpeed, ZeRO 0, one
process), on packed micro-batches of the corpus.
Plain: ``AutoModelForMaskedLM`` of the same weights with a linear pair head on the first token, the same pairs
padded to 128 by the tokenizer, masked by ``DataCollatorForLanguageModeling``, logits at every position, the
same micro-batches, torch's AdamW and gradient clipping as they come.
Neither makes its batches within the time taken. Dropout is on in both. Only real tokens count, not padding.
The two take turns, on other pairs each step; medians count.

Bar: at least twice the plain loop's tokens/s."""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrain.runtime.engine import OptimizerSettings

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent)] + [p for p in sys.path if Path(p or ".").resolve() != _HERE]

import torch
from torch import nn

from benchmarks import _common
from data_pipeline import tokenizers
from data_pipeline.corpus import Corpus
from data_pipeline.errors import KinspanError
from data_pipeline.sampling.batch import Batch
from data_pipeline.sampling.stream import PairStream
from objectives.mlm import MaskedLM
from pretrain.config import PretrainConfig
from pretrain.modeling.default_model import default_model
from pretrain.modeling.pair_model import load_model
from pretrain.runtime.engine import build_engine, complete_settings, read_deepspeed_config, start_distributed
from pretrain.runtime.layout import Layout
from pretrain.step import start_counting, train_step

RATE, CLIP, SEED = 1e-4, 1.0, 1

EPILOG = """example:
  python launch/prepare.py --input enwiki2015_AA.jsonl.xz --output_dir corpora/aa
  python benchmarks/train_step.py --corpus corpora/aa"""


@dataclass
class Update:
    """What one update took and did: losses are means over the masked tokens and over the pairs."""

    seconds: float
    tokens: int
    mlm_loss: float
    pair_loss: float


def our_updates(model_name: str, stream: PairStream, layout: Layout) -> Callable[[int], Update]:
    """``update(k)`` trains on global batch ``k`` as launch/pretrain.py does."""
    config = PretrainConfig(
        global_batch_size=layout.size, micro_batch_size=layout.micro, learning_rate=RATE, max_grad_norm=CLIP
    )
    settings = complete_settings(
        read_deepspeed_config("ds_configs/zero0.json"), OptimizerSettings.of(config), layout, "fp32"
    )
    engine = build_engine(load_model(model_name, SEED)[0], OptimizerSettings.of(config), settings)
    engine.train()
    filler = stream.batch(0, 1)

    def update(step: int) -> Update:
        first = step * layout.size
        spans = layout.micro_batches(0)
        batches: list[Batch | None] = [stream.batch(first + a, b - a) for a, b in spans]
        began = time.perf_counter()
        result = train_step(
            engine,
            counted=start_counting(batches, engine.module.losses)(),
            filler=filler,
            layout=layout,
            rank=0,
            seed=SEED,
            step=step,
        )
        seconds = time.perf_counter() - began
        sums = dict(zip(engine.module.sum_names, result.stats.tolist(), strict=True))
        mlm_loss, pair_loss = sums["mlm_loss"] / sums["mlm_tokens"], sums["ssp/pair_loss"] / layout.size
        return Update(seconds, result.tokens, mlm_loss, pair_loss)

    return update


class Plain(nn.Module):
    """The masked-LM model as it comes, and a linear pair head on the first token's hidden state."""

    def __init__(self, model_name: str) -> None:
        super().__init__()
        from transformers import AutoModelForMaskedLM

        self.masked_lm = AutoModelForMaskedLM.from_pretrained(model_name, dtype=torch.float32)
        self.pair_head = nn.Linear(self.masked_lm.config.hidden_size, 1)

    def forward(self, inputs: dict[str, Any], pair_labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        names = ("input_ids", "attention_mask", "token_type_ids")
        hidden = self.masked_lm.base_model(**{name: inputs[name] for name in names}).last_hidden_state
        logits = self.masked_lm.cls(hidden)
        mlm = nn.functional.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten())  # ignores -100
        pair = self.pair_head(hidden[:, 0])[:, 0]
        return mlm, nn.functional.binary_cross_entropy_with_logits(pair, pair_labels)


def plain_updates(name: str, stream: PairStream, layout: Layout, tokenizer: Any) -> Callable[[int], Update]:
    """``update(k)`` trains on the pairs of global batch ``k``, given as text."""
    from transformers import DataCollatorForLanguageModeling

    torch.manual_seed(SEED)
    model = Plain(name).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    collate = DataCollatorForLanguageModeling(tokenizer)

    def padded(first: int, count: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        a, b = zip(*_common.pairs_as_text(stream, tokenizer, first, count), strict=True)
        options = {"truncation": "longest_first", "max_length": _common.MAX_LENGTH, "padding": "max_length"}
        encoded = tokenizer(list(a), list(b), return_token_type_ids=True, **options)
        return collate(_common.rows_of(encoded)), torch.from_numpy(stream.batch(first, count).labels).float()

    def update(step: int) -> Update:
        first = step * layout.size
        batches = [padded(first + a, b - a) for a, b in layout.micro_batches(0)]
        losses = []
        began = time.perf_counter()
        for inputs, labels in batches:
            mlm, pair = model(inputs, labels)
            ((mlm + pair) / len(batches)).backward()
            losses.append((mlm.detach(), pair.detach()))
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        seconds = time.perf_counter() - began
        tokens = sum(int(inputs["attention_mask"].sum()) for inputs, _ in batches)
        mlm_loss, pair_loss = (float(sum(x) / len(batches)) for x in zip(*losses, strict=True))
        return Update(seconds, tokens, mlm_loss, pair_loss)

    return update


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.add_argument("--corpus", required=True, help=_common.CORPUS_HELP + " With BERT's tokenizer.")
    parser.add_argument("--pairs", type=int, default=64, help="Pairs of an update.")
    parser.add_argument("--micro", type=int, default=32, help="Pairs of a micro-batch.")
    parser.add_argument("--steps", type=int, default=5, help="Updates of each that count; one more warms up.")
    args = parser.parse_args()
    if not 1 <= args.micro <= args.pairs or args.steps < 1:
        raise KinspanError(f"--pairs {args.pairs} --micro {args.micro} --steps {args.steps}: cannot be meant")
    name = default_model()
    corpus, tokenizer = Corpus(args.corpus), tokenizers.load_tokenizer(name)
    corpus.check_tokenizer(tokenizers.fingerprint_tokenizer(tokenizer), tokenizers.shorten_name(tokenizer.name_or_path))
    start_distributed()  # also sets the number of threads, for both alike
    layout = Layout(args.pairs, args.micro, 1)
    masking = MaskedLM(tokenizer.mask_token_id, len(tokenizer))
    stream = _common.ssp_stream(corpus, tokenizers.read_pair_template(tokenizer), masking, SEED)
    plain = plain_updates(name, stream, layout, tokenizer)
    ways = {"ours": our_updates(name, stream, layout), "plain loop": plain}
    done: dict[str, list[Update]] = {way: [] for way in ways}
    for step in range(args.steps + 1):
        for way, update in ways.items():
            done[way].append(update(step))
    torch.distributed.destroy_process_group()
    show({way: updates[1:] for way, updates in done.items()}, layout)


def show(done: dict[str, list[Update]], layout: Layout) -> None:
    rate = {way: statistics.median(u.tokens / u.seconds for u in updates) for way, updates in done.items()}
    seconds = {way: statistics.median(u.seconds for u in updates) for way, updates in done.items()}
    tokens = {way: sum(u.tokens for u in updates) for way, updates in done.items()}
    slots = layout.size * _common.MAX_LENGTH * len(done["ours"])
    rows = []
    for way, updates in done.items():
        last = updates[-1]
        losses = (f"{last.mlm_loss:.2f}", f"{last.pair_loss:.3f}")
        rows.append((way, f"{rate[way]:,.0f}", f"{seconds[way]:.2f}", f"{tokens[way]:,}", *losses))
    _common.print_table(("", "tokens/s", "seconds", "real tokens", "last MLM loss", "last pair loss"), rows)
    ratio, padding = rate["ours"] / rate["plain loop"], 1 - tokens["plain loop"] / slots
    print(f"\nours is {ratio:.2f} times as fast; {100 * padding:.0f}% of the plain loop's slots are padding")
    figures = {"tokens_per_second": rate["ours"], "plain_tokens_per_second": rate["plain loop"]}
    figures |= {"ratio": ratio, "seconds": seconds["ours"], "plain_seconds": seconds["plain loop"]}
    figures |= {"padding_share": padding, "pairs": layout.size, "micro": layout.micro}
    figures["threads"] = torch.get_num_threads()
    _common.report("train_step", figures)


if __name__ == "__main__":
    _common.run(main)
