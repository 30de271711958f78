"""Checks a pre-training run's settings against one another, and finds settings without effect; opens no file."""

from data_pipeline.core.settings import check_settings, list_unused, refuse_first
from pretrain.config import LENGTHS, PretrainConfig

RTD_SETTINGS = ("generator", "embedding_sharing", "rtd_weight")
MASKING_SETTINGS = ("mlm_weight", "mlm_probability", "whole_word_masking")


def check(config: PretrainConfig) -> None:
    """Raises KinspanError, naming the flag, for settings that are out of range or contradict one another."""
    check_settings(config)
    lengths = [name for name in LENGTHS if getattr(config, name) is not None]
    is_contrastive, batch, warmup = config.pair_loss is not None, config.global_batch_size, config.warmup_epochs
    is_fusion, has_pairs = config.adapter == "fusion", config.pair_weight > 0
    has_tokens = (config.mlm_weight != 0 or config.rtd_weight) and config.mlm_probability
    refuse_first(
        [
            (not has_pairs and not has_tokens, "--pair_weight 0 without a token loss trains nothing"),
            (not has_pairs and is_contrastive, "--pair_loss contrastive with --pair_weight 0 trains nothing"),
            (not has_pairs and config.adapter, f"--adapter {config.adapter} with --pair_weight 0 trains nothing"),
            ((config.micro_batch_size or 0) > batch, f"--micro_batch_size is larger than --global_batch_size {batch}"),
            (warmup is not None and config.max_epochs is None, f"--warmup_epochs {warmup} needs --max_epochs"),
            (warmup is not None and config.warmup_steps is not None, "--warmup_epochs and --warmup_steps: give one"),
            (len(lengths) > 1, f"--{' and --'.join(lengths)}: give one of them"),
            (is_contrastive and config.adapter, "--adapter does not go with --pair_loss contrastive"),
            (is_contrastive and config.permute_pair_labels, "--permute_pair_labels does not go with --pair_loss"),
            (is_contrastive and config.compile, "--compile does not go with --pair_loss contrastive"),
            (is_contrastive and config.token_loss == "rtd", "--token_loss rtd does not go with --pair_loss"),
            (
                is_contrastive and batch == 1 and not config.own_negatives,
                "--global_batch_size 1: --pair_loss contrastive needs the texts of other pairs",
            ),
            (config.adapter and config.token_loss != "auto", "--token_loss does not go with --adapter"),
            (is_fusion and len(config.adapters) < 2, "--adapter fusion needs two or more --adapters"),
            (is_fusion and config.adapter_size, "--adapter_size does not go with --adapter fusion"),
            (config.adapters and not is_fusion, "--adapters needs --adapter fusion"),
        ]
    )


def find_unused_flags(config: PretrainConfig, token_loss: str) -> list[str]:
    """Returns notes on given flags that have no effect, and on permuted labels."""
    is_masked = token_loss == "rtd" or (token_loss == "mlm" and config.mlm_weight != 0 and config.mlm_probability)
    unused = (() if token_loss == "rtd" else RTD_SETTINGS) + (() if is_masked else MASKING_SETTINGS)
    default, notes = PretrainConfig(), list_unused(config)
    if ignored := [f"--{name}" for name in unused if getattr(config, name) not in (getattr(default, name), 0)]:
        reason = f"the token loss is {token_loss}" if is_masked else "no token is masked"
        notes.append(f"ignored, as {reason}: {' and '.join(ignored)}")
    if config.permute_pair_labels:
        notes.append("--permute_pair_labels: the labels are shuffled, so this run is a control")
    return notes
