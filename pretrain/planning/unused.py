"""Settings that were given and do nothing, or not what one might think."""

from pretrain.config import PretrainConfig

RTD_SETTINGS = ("generator", "embedding_sharing", "rtd_weight")
PROBE_SETTINGS = ("probe_steps", "probe_pairs")


def find_unused_flags(config: PretrainConfig, token_loss: str) -> list[str]:
    """A line about the flags of replaced-token detection, or of the probe, that were given to a run without it."""
    default = PretrainConfig()
    of_rtd, of_probe = (
        " and ".join(f"--{n}" for n in names if getattr(config, n) != getattr(default, n))
        for names in (RTD_SETTINGS, PROBE_SETTINGS)
    )
    notes = []
    if config.adapter and config.mlm_weight != default.mlm_weight and config.mlm_weight:
        notes.append("--adapter: there is no token loss, and --mlm_weight does nothing")
    if config.permute_pair_labels and config.pair_weight:
        notes.append("--permute_pair_labels: the labels say nothing of the pairs; this run is a control")
    if config.permute_pair_labels and not config.pair_weight:
        notes.append("--permute_pair_labels does nothing with --pair_weight 0")
    weights = {"mlm_weight": config.mlm_weight, "pair_weight": config.pair_weight}
    weights |= {"rtd_weight": config.rtd_weight} if token_loss == "rtd" else {}
    given = [name for name, weight in weights.items() if weight]
    if not given:
        notes.append("the weight of every loss is 0: this run learns nothing")
    if len(given) == 1 and not config.pair_weight:
        notes.append(
            f"--pair_weight 0: one loss is left, and Adam's updates do not depend on its scale: --{given[0]} "
            f"{weights[given[0]]:g} acts through the clipping of gradients alone (--max_grad_norm). As a control "
            "of a run with both losses, use --permute_pair_labels with the same weights"
        )
    if token_loss != "rtd" and of_rtd:
        notes.append(f"ignored, as the token loss is mlm: {of_rtd}")
    if config.probe is None and of_probe:
        notes.append(f"ignored, as there is no --probe: {of_probe}")
    return notes
