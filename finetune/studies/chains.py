"""The stages that a row of a study begins with: each trains the model that the one before it left.

A stage has settings of launch/pretrain.py (``pretrain:``; masked language modelling or any objective on a corpus) or
of launch/finetune.py (``finetune:``; the questions of another data set, chosen by the dev set of the row's own). Its
folder is named by a hash of all that it is made of, the stages before it included. So rows that begin alike share what
they have in common, and a stage that is done is not run again.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.settings import settings_of_identity
from finetune.training.config import FinetuneConfig, get_max_length
from finetune.training.experiment import run_experiment
from finetune.training.plan import BEST

from .rows import StageOfRow
from .study_file import make_config

FOLDER = "stages"  # within a study's
RELEASE = "release"  # of a pre-training, within its folder
SEED = 1  # of a stage of fine-tuning, which serves all seeds of its row
NAME = re.compile(r"\$(\w+)")
# A stage before fine-tuning, from its settings and its folder. They are checked at once, and what is returned runs the
# stage, or finds it finished; after that its model is in the folder's ``release``.
StageRunner = Callable[[dict[str, Any], Path], Callable[[], None]]


@dataclass(frozen=True)
class PlannedStage:
    """A stage whose settings were checked.

    title:   what it does, for the screen
    kind:    as the study's file has it
    model:   the folder that its model will be in
    run:     runs it, goes on with it, or finds it done
    repeats: whether it is of one seed of its row
    config:  of a stage of fine-tuning
    """

    title: str
    kind: str
    model: Path
    run: Callable[[], Any]
    repeats: bool = False
    config: FinetuneConfig | None = None


def plan_stages(
    stages: Sequence[StageOfRow],
    start: str | None,
    spec: str,
    common: Mapping[str, Any],
    output: Path,
    runners: Mapping[str, StageRunner],
    say: Callable[[str], None],
    seed: int | None = None,
) -> list[PlannedStage]:
    """The stages of a row, in their order.

    start:   the model that the first of them starts from, as the row's settings name it
    spec:    the row's own data set, such as wikiqa=FOLDER
    common:  settings of fine-tuning that all rows share; a stage's own take precedence
    output:  the study's folder
    runners: what runs stages of other kinds than "finetune"
    seed:    of the stages that repeat; the others have their own, which serves all seeds of the row

    Raises KinspanError, naming the stage, for settings that cannot be meant.
    """
    planned: list[PlannedStage] = []
    made_of: list[Any] = [start]
    for number, stage in enumerate(stages, 1):
        config, own_seed = None, seed if stage.repeats else None
        try:
            if stage.kind == "finetune":
                own = {"train_data": stage.settings.get("data"), **stage.settings, "data": spec}
                config = make_config({**common, **own, "model": start, "seed": [own_seed or SEED], "output_dir": "-"})
                identity = settings_of_identity(config) | {"max_length": get_max_length(config)}
                made_of.append([stage.kind, config.data, config.train_data, identity])
                folder = _name_folder(output, stage.kind, made_of)
                config.output_dir, model = str(folder), folder / f"seed-{own_seed or SEED}" / BEST
                run: Callable[[], Any] = partial(run_experiment, config, say, baselines=False)
            elif stage.kind in runners:
                settings = {"model": start, **stage.settings, **({} if own_seed is None else {"seed": own_seed})}
                made_of.append([stage.kind, settings])
                folder = _name_folder(output, stage.kind, made_of)
                run, model = runners[stage.kind](settings, folder), folder / RELEASE
            else:
                raise KinspanError(f"run_study needs a runner for it: {stage.kind}")
        except KinspanError as error:
            raise KinspanError(f"stage {number}: {error}") from error
        planned.append(PlannedStage(f"stage {number}, {stage.kind}", stage.kind, model, run, stage.repeats, config))
        start = str(model)
    return planned


def _name_folder(output: Path, kind: str, made_of: list[Any]) -> Path:
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True, default=str).encode())
    return output / FOLDER / f"{kind}-{digest.hexdigest()[:12]}"


def fill_names(value: Any, names: Mapping[str, str]) -> Any:
    """A value of a study's file with each ``$name`` in its texts replaced; one that is nothing else becomes its value.

    Raises KinspanError for a name that was not given.
    """
    if isinstance(value, dict):
        return {key: fill_names(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [fill_names(one, names) for one in value]
    if not isinstance(value, str):
        return value

    def look_up(match: re.Match[str]) -> str:
        if match[1] not in names:
            raise KinspanError(f"${match[1]} is not known: give --where {match[1]}=...")
        return str(names[match[1]])

    return NAME.sub(look_up, value)
