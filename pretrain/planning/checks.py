"""Which settings of a pre-training run go together, and which do nothing, as far as the settings alone tell."""

import math

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import check_settings
from data_pipeline.sources import parse_sources
from pretrain.config import PretrainConfig

RTD_SETTINGS = ("generator", "embedding_sharing", "rtd_weight")
MASKING_SETTINGS = ("mlm_weight", "mlm_probability", "whole_word_masking")


def check(config: PretrainConfig) -> None:
    """Raises KinspanError, naming the flag, for settings that are out of range or do not go together."""
    check_settings(config)
    if not (config.pair_weight or config.mlm_weight or config.rtd_weight):
        raise KinspanError("--pair_weight 0 with token losses of weight 0 trains nothing: give one of them a weight")
    if not config.pair_weight and not config.mlm_probability:
        raise KinspanError("--pair_weight 0 with --mlm_probability 0 trains nothing: raise one of them")
    if config.micro_batch_size and config.micro_batch_size > config.global_batch_size:
        raise KinspanError(
            f"--micro_batch_size {config.micro_batch_size} is larger than --global_batch_size "
            f"{config.global_batch_size}: lower the first or raise the second"
        )
    if config.warmup_epochs is not None and (config.max_epochs is None or config.warmup_steps is not None):
        raise KinspanError(
            f"--warmup_epochs {config.warmup_epochs:g} goes with --max_epochs, and without --warmup_steps"
        )
    _check_contrastive(config)
    _check_adapter(config)
    lengths = [n for n in ("max_steps", "max_epochs", "max_tokens") if getattr(config, n) is not None]
    if len(lengths) > 1:
        raise KinspanError(f"--{' and --'.join(lengths)} say the same thing: give one of them")


def _check_contrastive(config: PretrainConfig) -> None:
    """Raises KinspanError for settings that do not go with the contrastive loss, or only with it."""
    if config.pair_loss is None:
        return
    for name, why in (
        ("adapter", "whole models alone are trained by it"),
        ("permute_pair_labels", "it has no labels"),
        ("compile", "compiled encoders drop other numbers each time, and each text is encoded twice"),
    ):
        if getattr(config, name):
            raise KinspanError(f"--pair_loss contrastive does not go with --{name}: {why}")
    if config.token_loss == "rtd":
        raise KinspanError("--pair_loss contrastive does not go with --token_loss rtd: use mlm")
    if not config.pair_weight:
        raise KinspanError("--pair_loss contrastive with --pair_weight 0: leave it out, or give it a weight")
    if config.global_batch_size == 1 and not config.own_negatives:
        raise KinspanError("--global_batch_size 1: the contrastive loss compares a query with the texts of others")


def _check_adapter(config: PretrainConfig) -> None:
    """Raises KinspanError for settings that do not go with an adapter, or only with one."""
    if config.adapter is None:
        return
    if config.token_loss != "auto":
        raise KinspanError(
            f"--adapter {config.adapter} is trained by the sentence-level loss alone: leave out --token_loss"
        )
    if not config.pair_weight:
        raise KinspanError(f"--pair_weight 0 with --adapter {config.adapter} trains nothing: give it a weight")
    if config.adapter == "fusion" and (len(config.adapters) < 2 or config.adapter_size):
        raise KinspanError("--adapter fusion weighs two or more --adapters, and has no --adapter_size of its own")
    if config.adapter == "lora" and config.adapters:
        raise KinspanError("--adapter lora stands on no other --adapters: leave them out")


def find_unused_flags(config: PretrainConfig, token_loss: str) -> list[str]:
    """Lines about flags that were given and do nothing beside the others, and about controls."""
    is_masked = token_loss == "rtd" or (token_loss == "mlm" and config.mlm_weight and config.mlm_probability)
    what = f"the token loss is {token_loss}" if is_masked else "no token is masked"
    own = [source.objective for source in parse_sources(config.corpus)]
    unused = {
        "every corpus has an objective of its own": ("objective",) if own and all(own) else (),
        what: (() if token_loss == "rtd" else RTD_SETTINGS) + (() if is_masked else MASKING_SETTINGS),
        f"--lr_schedule is {config.lr_schedule}": () if config.lr_schedule == "wsd" else ("decay_share",),
        "there is no --dry_run": () if config.dry_run else ("tokens_per_second",),
    }
    default, notes = PretrainConfig(), []
    for why, names in unused.items():
        given = [f"--{name}" for name in names if getattr(config, name) not in (getattr(default, name), 0)]
        notes += [f"ignored, as {why}: {' and '.join(given)}"] if given else []
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
            f"--pair_weight 0: one loss is left, and Adam's updates do not depend on its scale: --{given[0]} "
            f"{weights[given[0]]:g} acts through the clipping of gradients alone (--max_grad_norm). As a control "
            "of a run with both losses, use --permute_pair_labels with the same weights"
        )
    return notes
