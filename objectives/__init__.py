"""Defines the objectives, one file each. On pairs: ssp, sp, psd, nsp, sop and ict; title_sentence for titled documents;
title_body, title_answer and duplicate for forums. On tokens: mlm and rtd."""

import hashlib
import importlib
import math
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from data_pipeline.core.errors import KinspanError
from data_pipeline.sampling.mixture import Mixture, MixturePart
from data_pipeline.sampling.pairs import Objective
from data_pipeline.sources import MAX_WEIGHT

from . import duplicate, ict, nsp, psd, sop, sp, ssp, title_answer, title_body, title_sentence

# These need questions or titled documents, as in a corpus prepared from a forum's dump, or with --title_texts.
FORUM_OBJECTIVES = (
    title_sentence.TITLE_SENTENCE,
    title_body.TITLE_BODY,
    title_answer.TITLE_ANSWER,
    title_answer.QUESTION_ANSWER,
    duplicate.DUPLICATE,
    duplicate.DUPLICATE_QUESTION,
)
OBJECTIVES: dict[str, Objective] = {
    o.name: o for o in (ssp.SSP, sp.SP, psd.PSD, nsp.NSP, sop.SOP, ict.ICT, *FORUM_OBJECTIVES)
}
PAPER_SAMPLING: dict[str, Objective] = {o.name: o for o in (ssp.SSP_PAPER, sp.SP_PAPER, psd.PSD_PAPER)}
ALL = "ssp+sp+psd"  # "All" in the tables of Di Liello et al., 2022


def parse_mixture(text: str, sampling: str = "matched") -> Mixture:
    """Returns the mixture that ``--objective`` names; ``Mixture.read_from`` then sets its corpora.

    text:     one name ("ssp"), several with whole-number weights ("ssp:2+sp:1+psd:1": shares of the pairs), "all" (see
              ALL), or an Objective of your own ("my_module:my_objective", looked for on Python's path and in the
              working directory)
    sampling: "matched" draws negatives as long as positives; "paper" draws negatives of any length, as Di Liello
              et al. do: on real text the lengths then give the label away
    """
    parts = [_parse_part(part.strip(), text, sampling) for part in (ALL if text == "all" else text).split("+")]
    names = [part.objective.name for part in parts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise KinspanError(f"--objective {text}: {twice} is named twice; give it a weight, as in {twice}:2")
    divisor = math.gcd(*(part.weight for part in parts))
    return Mixture(tuple(replace(part, weight=part.weight // divisor) for part in parts))


def hash_own_sources(mixture: Mixture) -> dict[str, str]:
    """Returns, for each user-defined objective, a SHA-256 of its code and of the loaded modules beside it, which
    becomes part of the run's identity."""
    names = [objective.name for objective in mixture.objectives]
    return {name: _hash_source(sys.modules[name.split(":")[0]]) for name in names if ":" in name}


def _hash_source(module: ModuleType) -> str:
    """Returns the hash of a module and the loaded modules in its folder; for a package, its subfolders too."""
    source = Path(str(module.__file__)).resolve()
    folder = source.parent
    files = {Path(str(f)).resolve() for m in list(sys.modules.values()) if (f := getattr(m, "__file__", None))}
    digest = hashlib.sha256()
    if source.name != "__init__.py":
        files = {f for f in files if f.parent == folder}
    for file in sorted(f for f in files if f.is_relative_to(folder) and f.is_file()):
        digest.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()


def _parse_part(part: str, text: str, sampling: str) -> MixturePart:
    name, colon, weight = part.rpartition(":")
    if not colon or (name not in OBJECTIVES and not re.fullmatch("[0-9]+", weight)):
        name, weight = part, "1"  # such as "ssp", or "my_module:my_objective"
    if not re.fullmatch("[0-9]{1,9}", weight) or not 1 <= int(weight) <= MAX_WEIGHT:
        raise KinspanError(f"--objective {text}: the weight must be a whole number from 1 to {MAX_WEIGHT}")
    if ":" not in name and name not in OBJECTIVES:
        raise KinspanError(
            f"--objective {text}: there is no objective {name!r}; choose from {', '.join(OBJECTIVES)}, a mixture such "
            "as ssp:2+sp:1, all by itself, or your own as my_module:my_objective"
        )
    if sampling == "paper" and name not in PAPER_SAMPLING:
        raise KinspanError(f"--sampling paper is for {', '.join(PAPER_SAMPLING)} only, not for {name}")
    known = OBJECTIVES if sampling == "matched" else PAPER_SAMPLING
    return MixturePart(_import_objective(name) if ":" in name else known[name], int(weight))


def _import_objective(name: str) -> Objective:
    module_name, attribute = name.split(":", 1)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        objective = getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # whatever the user's module raises: one line
        reason = " ".join(str(error).split())
        raise KinspanError(f"--objective {name} cannot be imported: {type(error).__name__}: {reason}") from error
    if not isinstance(objective, Objective):
        raise KinspanError(
            f"--objective {name} is a {type(objective).__name__}, not a data_pipeline.sampling.pairs.Objective"
        )
    return replace(objective, name=name)
