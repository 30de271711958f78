"""What is measured of many forums: preparing them, reading batches of them, and training on them."""

import json
import os
import statistics
import time
from pathlib import Path

from benchmarks import _common
from benchmarks.steady import Reading, measure_run, read_process
from data_pipeline.errors import KinspanError
from pretrain.planning.forums import BALANCED, LARGEST, OF_BENCHMARKS, name_forum

SEED = 1
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def prepare_all(dumps: Path, corpora: Path, forums: dict[str, int]) -> dict[str, float]:
    """Prepares each forum's dump as a corpus, in this process, and returns what it took and what is in them."""
    from data_pipeline.prepare.pipeline import prepare
    from objectives import OBJECTIVES
    from pretrain.modeling.default_model import default_model
    from pretrain.runtime.out_of_memory import return_freed_memory

    began, spent = time.perf_counter(), time.process_time()
    held: list[float] = []
    for name in forums:
        folder = f"{name}.stackexchange.com"
        prepare([str(dumps / folder)], default_model(), corpora / folder, OBJECTIVES, quiet=True)
        return_freed_memory()
        held.append(_common.rss_anon())
    seconds, processor = time.perf_counter() - began, time.process_time() - spent
    totals = [
        json.loads((corpora / f"{name}.stackexchange.com/manifest.json").read_text())["totals"] for name in forums
    ]
    facts = {name: float(sum(total[name] for total in totals)) for name in ("documents", "tokens")}
    return {
        **facts,
        "seconds": seconds,
        "processor_seconds": processor,
        "memory_first": held[0],
        "memory_last": held[-1],
        "memory_most": max(held),
        "peak": _common.peak_rss(),
    }


def write_model(folder: Path) -> None:
    """A tiny encoder as a config alone, so that training starts from scratch."""
    from transformers import AutoConfig

    from data_pipeline.tokenizers import load_tokenizer
    from pretrain.modeling.default_model import default_model

    tokenizer = load_tokenizer(default_model())
    config = AutoConfig.for_model("bert", vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **TINY)
    config.architectures = ["BertForMaskedLM"]
    config.save_pretrained(folder)
    tokenizer.save_pretrained(str(folder))


def count_forums(forums: dict[str, int], chosen: str) -> int:
    """How many of the forums a set has."""
    known = {"balanced": set(BALANCED), "largest": set(LARGEST)}.get(chosen, set(forums) - set(OF_BENCHMARKS))
    return len({name_forum(name) for name in forums} & known)


def train(
    corpora: Path,
    model: Path,
    folder: Path,
    objective: str,
    chosen: str,
    least: int,
    pairs: int,
    steps: int,
    every: int,
) -> dict[int, Reading]:
    """Readings of a run over the forums of a set."""
    flags = ["--corpus", *map(str, sorted(corpora.iterdir())), "--model", str(model), "--objective", objective]
    flags += [
        "--forums",
        chosen,
        "--min_questions",
        str(least),
        "--schedule",
        "round_robin",
        "--max_steps",
        str(steps),
        "--eval_pairs",
        "0",
    ]
    flags += [
        "--global_batch_size",
        str(pairs),
        "--micro_batch_size",
        str(pairs),
        "--max_length",
        "128",
        "--precision",
        "fp32",
    ]
    flags += ["--mlm_probability", "0", "--mlm_weight", "0", "--save_steps", str(steps), "--log_steps", str(every // 5)]
    return measure_run(flags, folder, every)


def read_rounds(
    corpora: Path, model: Path, objective: str, chosen: str, least: int, pairs: int, rounds: int
) -> dict[int, Reading]:
    """Readings of a process that makes the batches of so many rounds, twenty of them, and does nothing else."""
    from data_pipeline.sampling.stream import PairStream
    from data_pipeline.tokenizers import load_tokenizer, read_pair_template
    from pretrain.config import PretrainConfig
    from pretrain.planning.corpora import drop_untrainable, list_sources, mix_as, open_for
    from pretrain.runtime.out_of_memory import return_freed_memory
    from pretrain.runtime.settings import cache_settings

    given = {
        "corpus": sorted(map(str, corpora.iterdir())),
        "objective": objective,
        "forums": chosen,
        "min_questions": least,
    }
    config = PretrainConfig(**given, schedule="round_robin", global_batch_size=pairs)  # type: ignore[arg-type]
    tokenizer, sources = load_tokenizer(str(model)), list_sources(config)
    opened = open_for(tokenizer, sources, cache_settings(config))
    mixture, _ = drop_untrainable(mix_as(config, sources).read_from(*opened))
    stream = PairStream(mixture, template=read_pair_template(tokenizer), seed=SEED, max_length=_common.MAX_LENGTH)
    steps = rounds * len(mixture.parts)
    readings: dict[int, Reading] = {}
    for step in range(1, steps + 1):
        stream.batch(step * pairs, pairs)
        if step % (steps // 20) == 0:
            return_freed_memory()
            if found := read_process(os.getpid(), 0.0):
                readings[step] = found
    return readings


def compare(readings: dict[int, Reading], parts: int) -> tuple[list[int], list[int], float]:
    """The first and the last readings after two rounds of all forums, and how much more memory the last ones have.

    Of each a third, and their median: a reading falls anywhere in a step, whose tensors come and go.
    """
    steps = sorted(readings)[:-1]  # at the very last one the checkpoint is written
    settled = [step for step in steps if step > 2 * parts]
    third = len(settled) // 3
    if not third:
        raise KinspanError(f"too few readings after two rounds of {parts} forums: give more --steps")
    first, last = settled[:third], settled[-third:]
    held = [statistics.median(readings[step].memory for step in part) for part in (first, last)]
    return first, last, held[1] / held[0] - 1
