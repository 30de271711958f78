"""The triangular learning rate."""


def learning_rate_of(step: int, peak: float, warmup: int, total: int) -> float:
    """The rate of update ``step`` (0-based): linear up to ``peak`` over ``warmup``, then linear down to zero.

    Di Liello et al., 2022, appendix B. The first update has ``peak / warmup``, and the last has the last rate above
    zero. The rate is a function of the step alone, so that checkpoints need no state of a scheduler.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * max(0.0, (total - step) / max(1, total - warmup))
