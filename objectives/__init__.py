"""What is predicted: pair objectives (ssp, sp, psd, nsp, sop, ict) and token objectives (mlm, rtd). One file each."""

import hashlib
import importlib
import inspect
import math
import os
import sys
from dataclasses import replace

from data_pipeline.errors import KinspanError
from data_pipeline.mixture import Mixture
from data_pipeline.pairs import Objective

from . import ict, nsp, psd, sop, sp, ssp

OBJECTIVES: dict[str, Objective] = {o.name: o for o in (ssp.SSP, sp.SP, psd.PSD, nsp.NSP, sop.SOP, ict.ICT)}
PAPER_SAMPLING: dict[str, Objective] = {o.name: o for o in (ssp.SSP_PAPER, sp.SP_PAPER, psd.PSD_PAPER)}
SAMPLINGS = ("matched", "paper")
ALL = "ssp+sp+psd"  # "All" in the paper's tables
MAX_WEIGHT = 1000


def mixture(text: str, sampling: str = "matched") -> Mixture:
    """The objectives that ``--objective`` names.

    text:     one name ("ssp"), several with whole-number weights ("ssp:2+sp:1+psd:1": shares of the pairs), "all" (the
              paper's three alike), or an Objective of your own ("my_module:my_objective", looked for on Python's path
              and in the working directory)
    sampling: "matched" draws negatives as long as positives; "paper" draws their lengths freely, for
              comparison: on real text the lengths then give the label away

    Raises KinspanError where there is no such objective.
    """
    parts = [_part(part.strip(), sampling) for part in (ALL if text == "all" else text).split("+")]
    objectives = tuple(o for o, _ in parts)
    names = [o.name for o in objectives]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise KinspanError(f"--objective {text}: {twice} stands twice; give it a weight, as in {twice}:2")
    divisor = math.gcd(*(w for _, w in parts))
    return Mixture(objectives, tuple(w // divisor for _, w in parts))


def own_sources(mixture: Mixture) -> dict[str, str]:
    """SHA-256 of the file of each objective from outside the packages: edited, it is another run."""
    modules = {name: sys.modules[name.split(":")[0]] for name in mixture.names if ":" in name}
    return {name: hashlib.sha256(inspect.getsource(module).encode()).hexdigest() for name, module in modules.items()}


def _part(text: str, sampling: str) -> tuple[Objective, int]:
    """``name``, ``name:weight``, ``module:name`` or ``module:name:weight``."""
    name, _, weight = text.rpartition(":")
    if not name or not weight.isdigit():
        name, weight = text, "1"
    if not 1 <= int(weight) <= MAX_WEIGHT:
        raise KinspanError(f"--objective {text}: the weight must be a whole number from 1 to {MAX_WEIGHT}")
    return _objective(name, sampling), int(weight)


def _objective(name: str, sampling: str) -> Objective:
    if ":" in name:
        return _own_objective(name)
    if name not in OBJECTIVES:
        raise KinspanError(
            f"--objective {name}: there is no such objective; choose from {', '.join(OBJECTIVES)}, all, a mixture such "
            "as ssp:2+sp:1, or your own as my_module:my_objective"
        )
    if sampling == "paper" and name not in PAPER_SAMPLING:
        raise KinspanError(
            f"--sampling paper: {name} has no other way of sampling; only {', '.join(PAPER_SAMPLING)} do"
        )
    return OBJECTIVES[name] if sampling == "matched" else PAPER_SAMPLING[name]


def _own_objective(name: str) -> Objective:
    """An Objective from a module outside the packages, by ``module:attribute``."""
    module_name, attribute = name.split(":", 1)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # whatever the user's module raises: one line
        raise KinspanError(f"--objective {name} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(found, Objective):
        raise KinspanError(f"--objective {name} is a {type(found).__name__}, not a data_pipeline.pairs.Objective")
    return replace(found, name=name)
