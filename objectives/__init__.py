"""What is predicted: pair objectives (ssp) and token objectives (mlm). One file each."""

from data_pipeline.errors import KinspanError
from data_pipeline.mixture import Mixture
from data_pipeline.pairs import Objective

from . import ssp

OBJECTIVES: dict[str, Objective] = {"ssp": ssp.SSP}
SAMPLINGS = ("matched", "paper")


def pair_objective(name: str, sampling: str = "matched") -> Objective:
    """The objective of that name.

    sampling: "matched" draws negatives as long as positives; "paper" draws their lengths freely, for
              comparison: on real text the lengths then give the label away.
    """
    if name not in OBJECTIVES:
        raise KinspanError(f"--objective {name}: there is no such objective; choose from {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name] if sampling == "matched" else ssp.SSP_PAPER


def mixture(text: str, sampling: str = "matched") -> Mixture:
    """The mixture that ``text`` names."""
    return Mixture((text,), pair_objective(text, sampling))
