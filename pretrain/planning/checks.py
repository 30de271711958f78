"""Which settings of a pre-training run go together, as far as the settings alone tell."""

from data_pipeline.errors import KinspanError
from pretrain.config import PretrainConfig
from pretrain.runtime.settings import check_ranges


def check(config: PretrainConfig) -> None:
    """Raises KinspanError, naming the flag, for settings that are out of range or do not go together."""
    check_ranges(config)
    if not config.pair_weight and not config.mlm_weight and (config.token_loss == "mlm" or not config.rtd_weight):
        raise KinspanError("--pair_weight 0 with token losses of weight 0 trains nothing: give one of them a weight")
    if config.micro_batch_size and config.micro_batch_size > config.global_batch_size:
        raise KinspanError(
            f"--micro_batch_size {config.micro_batch_size} is larger than --global_batch_size "
            f"{config.global_batch_size}: lower the first or raise the second"
        )
    if config.on_spike == "rewind" and config.save_steps * config.keep_checkpoints < config.log_steps:
        raise KinspanError(
            f"--on_spike rewind: --save_steps {config.save_steps} and --keep_checkpoints {config.keep_checkpoints} "
            f"leave no checkpoint from before a line of the log (--log_steps {config.log_steps}): keep more of them"
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
        for name in ("temperature", "symmetric", "own_negatives"):
            if getattr(config, name):
                raise KinspanError(f"--{name} says something of the contrastive loss: give --pair_loss contrastive too")
        return
    for name, why in (
        ("adapter", "whole models alone are trained by it"),
        ("permute_pair_labels", "it has no labels"),
        ("probe", "probes fine-tune cross-encoders"),
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
        for name in ("adapter_size", "adapters"):
            if getattr(config, name):
                raise KinspanError(f"--{name} says something of an adapter: give --adapter too")
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
    if config.probe:
        raise KinspanError("--probe fine-tunes whole models: leave it out with --adapter")
