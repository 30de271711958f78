"""Which settings of a pre-training run go together, and which do nothing, as far as the settings alone tell."""

import math

from data_pipeline.core.settings import check_settings, list_unused, refuse_first
from data_pipeline.sources import parse_sources
from pretrain.config import LENGTHS, PretrainConfig

RTD_SETTINGS = ("generator", "embedding_sharing", "rtd_weight")
MASKING_SETTINGS = ("mlm_weight", "mlm_probability", "whole_word_masking")


def check(config: PretrainConfig) -> None:
    """Raises KinspanError, naming the flag, for settings that are out of range or do not go together."""
    check_settings(config)
    lengths = [name for name in LENGTHS if getattr(config, name) is not None]
    is_contrastive, batch = config.pair_loss is not None, config.global_batch_size
    is_fusion = config.adapter == "fusion"
    has_pairs, has_weight = config.pair_weight, config.pair_weight or config.mlm_weight or config.rtd_weight
    refuse_first(
        [
            (not has_weight, "--pair_weight 0 with token losses of weight 0 trains nothing"),
            (
                not (config.pair_weight or config.mlm_probability),
                "--pair_weight 0 with --mlm_probability 0 trains nothing",
            ),
            (not has_pairs and is_contrastive, "--pair_loss contrastive with --pair_weight 0 trains nothing"),
            (
                not config.pair_weight and config.adapter,
                f"--adapter {config.adapter} with --pair_weight 0 trains nothing",
            ),
            (
                (config.micro_batch_size or 0) > batch,
                f"--micro_batch_size {config.micro_batch_size} is larger than --global_batch_size {batch}",
            ),
            (
                config.warmup_epochs is not None and (config.max_epochs is None or config.warmup_steps is not None),
                f"--warmup_epochs {config.warmup_epochs or 0:g} goes with --max_epochs, and without --warmup_steps",
            ),
            (len(lengths) > 1, f"--{' and --'.join(lengths)} say the same thing: give one of them"),
            (is_contrastive and config.adapter, "--adapter does not go with --pair_loss contrastive"),
            (
                is_contrastive and config.permute_pair_labels,
                "--permute_pair_labels: --pair_loss has no labels",
            ),
            (is_contrastive and config.compile, "--compile does not go with --pair_loss contrastive"),
            (
                is_contrastive and config.token_loss == "rtd",
                "--token_loss rtd does not go with --pair_loss contrastive",
            ),
            (
                is_contrastive and batch == 1 and not config.own_negatives,
                "--global_batch_size 1: the contrastive loss compares a query with the texts of others",
            ),
            (
                config.adapter and config.token_loss != "auto",
                f"--token_loss {config.token_loss}: --adapter is trained by the sentence-level loss alone",
            ),
            (is_fusion and len(config.adapters) < 2, "--adapter fusion weighs two or more --adapters"),
            (is_fusion and config.adapter_size, "--adapter_size: --adapter fusion has none"),
            (config.adapters and not is_fusion, "--adapters goes with --adapter fusion"),
        ]
    )


def find_unused_flags(config: PretrainConfig, token_loss: str) -> list[str]:
    """Returns notes about flags that were given and do nothing beside the others, and about controls."""
    is_masked = token_loss == "rtd" or (token_loss == "mlm" and config.mlm_weight and config.mlm_probability)
    reason = f"the token loss is {token_loss}" if is_masked else "no token is masked"
    objectives = [source.objective for source in parse_sources(config.corpus)]
    unused = {
        "every corpus has an objective of its own": ("objective",) if objectives and all(objectives) else (),
        reason: (() if token_loss == "rtd" else RTD_SETTINGS) + (() if is_masked else MASKING_SETTINGS),
    }
    default, notes = PretrainConfig(), list_unused(config)
    for reason, names in unused.items():
        given = [f"--{name}" for name in names if getattr(config, name) not in (getattr(default, name), 0)]
        notes += [f"ignored, as {reason}: {' and '.join(given)}"] if given else []
    if config.keep_every % config.save_steps:
        kept = math.lcm(config.keep_every, config.save_steps)
        notes.append(
            f"--keep_every {config.keep_every} with --save_steps {config.save_steps}: only the checkpoint of every "
            f"{kept:,}th step is kept for good"
        )
    if config.permute_pair_labels and config.pair_weight:
        notes.append("--permute_pair_labels: the labels say nothing of the pairs; this run is a control")
    if config.permute_pair_labels and not config.pair_weight:
        notes.append("--permute_pair_labels does nothing with --pair_weight 0")
    weights = {"mlm_weight": config.mlm_weight, "pair_weight": config.pair_weight}
    weights |= {"rtd_weight": config.rtd_weight} if token_loss == "rtd" else {}
    given = [name for name, weight in weights.items() if weight]
    if len(given) == 1 and not config.pair_weight:
        notes.append(
            f"--pair_weight 0: Adam's updates do not depend on the scale of the one loss that is left: --{given[0]} "
            f"{weights[given[0]]:g} acts through the clipping of gradients alone. As a control of a run with both "
            "losses, use --permute_pair_labels with the same weights"
        )
    return notes
