"""Says when the probe's ranking figure falls while the run's own losses improve: the run may be doing harm."""

from collections.abc import Sequence
from typing import Any

CHANCE = 0.01  # of MAP: by so little a probe of some hundred dev questions moves by itself


def find_fall(lines: Sequence[dict[str, Any]]) -> str | None:
    """Compares the last probe with the first one, as a clause without a full stop; None where there is nothing to say.

    lines: of metrics.jsonl, in their order

    The run's own loss is that of validation, or of training where no pairs are held out. A run whose loss does not
    improve either needs no warning of its own: its log shows that already.
    """
    probes = [line for line in lines if line["split"] == "probe"]
    losses = [line for line in lines if line["split"] == "validation"] or [x for x in lines if x["split"] == "train"]
    if not probes or not losses:
        return None
    (first, last), (before, after) = ((x[0], x[-1]) for x in (probes, losses))
    if last["map"] >= first["map"] - CHANCE or after["loss"] >= before["loss"]:
        return None
    return (
        f"the probe's MAP fell from {first['map']:.3f} at step {first['step']:,} to {last['map']:.3f} at step "
        f"{last['step']:,}, while the run's own loss improved from {before['loss']:.3f} to {after['loss']:.3f}: what "
        "this run learns may cost ranking; a lower --learning_rate or a shorter run forgets less"
    )
