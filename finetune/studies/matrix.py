"""A study whose rows are arms by starts, sets, variants and measures: a YAML file with ``groups`` of them.

Every row has a fingerprint of all its settings, so that lines of results are known to be of them.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_pipeline.core.errors import KinspanError

from .rows import COSINE, FINETUNE, FUSED, HEAD, PRETRAIN, StageOfRow, Study, StudyRow

BLANK = "blank"  # the kind of a stage that writes an untrained encoder
MEASURED = {HEAD: "zero-shot by the pair head", COSINE: "zero-shot by the cosine"}  # how their rows' names end
# Names that settings had when rows ran: fingerprints of results keep them.
FORMER_NAMES = {"negatives_ratio": "negatives_per_positive"}
SCRATCH = {"max_length": 128, "eval_pairs": 1000, "micro_batch_size": 32, "deepspeed_config": "ds_configs/zero1.json"}
KEYS = {
    *("title", "threads", "precision", "fingerprints", "starts", "pretrain", "finetune", "sets", "arms", "groups"),
    *("primary", "comparisons", "untrained", "ran_at"),
}

Settings = dict[str, Any]


def make_matrix(path: Path, content: Settings) -> Study:
    """Returns the study of a file with groups. Raises KinspanError where a comparison names a row that no group has."""
    if unknown := sorted(set(content) - KEYS):
        raise KinspanError(f"--study {path} has {unknown[0]!r}, which is none of {', '.join(sorted(KEYS))}")
    rows: dict[str, StudyRow] = {}
    for group in content["groups"]:
        for row in list_rows(content, group):
            first = rows.get(row.name)
            if first and first.fingerprint != row.fingerprint:
                raise KinspanError(f"--study {path}: {row.name} stands in two groups with different settings")
            if first:
                row = replace(first, seeds=tuple(dict.fromkeys((*first.seeds, *row.seeds))))
            rows[row.name] = row
    for names in (*content["comparisons"], content.get("primary", [])):
        if unknown := [name for name in names if name not in rows]:
            raise KinspanError(f"--study {path}: {unknown[0]} is the name of no row: {', '.join(sorted(rows))}")
    title = content.get("title", path.stem)
    return Study(title, "", "", {}, list(rows.values()), repeat_stages=True, matrix=content)


def list_rows(content: Settings, group: Settings) -> list[StudyRow]:
    """The rows of a group, with its own seeds."""
    return [
        _make_row(content, group, arm, name, measure, questions)
        for name in group["sets"]
        for measure in group.get("measures", [FINETUNE])
        for questions in group.get("questions", [None])
        for arm in group["arms"]
    ]


def _make_row(
    content: Settings, group: Settings, arm: str, set_name: str, measure: str, questions: int | None
) -> StudyRow:
    start, seeds, of_arm = group["start"], group["seeds"], content["arms"][arm]
    seeds = tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(seeds)
    pretrain = _merge_pretraining(content, group, arm)
    finetune = _merge_fine_tuning(content, group, arm, set_name)
    parts = tuple(_make_row(content, group, one, set_name, measure, questions) for one in of_arm.get("fuse", ()))
    if parts:
        measure, pretrain, finetune = FUSED, None, {}
    if measure != FINETUNE:
        finetune = {name: value for name, value in finetune.items() if name == "fresh_head"}
    drawn = f"{questions} questions" if questions else None
    told: list[str | None] = [group.get("variant"), drawn, MEASURED.get(measure)]
    label, title = (", ".join(filter(None, [name, *told])) for name in (arm, of_arm["title"]))
    variant = label.removeprefix(arm)
    row = StudyRow(
        name=f"{start}/{label}/{set_name}",
        settings=finetune,
        stages=_list_stages(content, start, pretrain),
        title=title,
        start=start,
        set=set_name,
        group=group["name"],
        measure=measure,
        seeds=seeds,
        compared=seeds,
        pretrain=pretrain,
        share=group.get("share", 1.0),
        questions=questions,
        mean_of=tuple(f"{start}/{one}{variant}/{set_name}" for one in of_arm.get("mean_of", ())),
        targets=tuple((content["sets"][set_name] or {}).get("targets", ())),
        parts=parts,
    )
    return row if "ran_at" in content else replace(row, fingerprint=fingerprint_row(content, row))


def name_training(row: StudyRow) -> str:
    """The title of its arm and variant, without the number of questions and how it is measured."""
    drawn = f"{row.questions} questions" if row.questions else MEASURED.get(row.measure)
    return row.title.removesuffix(f", {drawn}")


def fingerprint_row(content: Settings, row: StudyRow) -> str:
    """Names all that the figures of a row depend on."""
    of_start = content["starts"][row.start]
    made_of = {
        "start": of_start.get("scratch") or of_start.get("model"),
        "of": row.start,
        "set": row.set,
        "measure": row.measure,
        "share": row.share,
        "precision": content["precision"],
        "threads": content["threads"],
        "pretrain": row.pretrain,
        "finetune": {FORMER_NAMES.get(name, name): value for name, value in row.settings.items()},
    }
    if row.questions:
        made_of["questions"] = row.questions
    if row.parts:
        made_of["parts"] = [part.fingerprint for part in row.parts]
    if prints := content.get("fingerprints"):
        made_of |= {"corpus": prints["corpus"], "data": prints[row.set]}
    return hash_settings(made_of)


def _list_stages(content: Settings, start: str, pretrain: Settings | None) -> tuple[StageOfRow, ...]:
    """What trains before a row is measured. A start that is made here has its own seed, the pre-training the row's."""
    stages: list[StageOfRow] = []
    if scratch := content["starts"][start].get("scratch"):
        settings = {**SCRATCH, "precision": content["precision"], **scratch["pretrain"]}
        stages = [StageOfRow(BLANK, scratch["config"]), StageOfRow(PRETRAIN, {**settings, "corpus": "$corpus"})]
    if pretrain is not None:
        stages.append(StageOfRow(PRETRAIN, {**pretrain, "corpus": "$corpus"}, repeats=True))
    return tuple(replace(stage, settings=settle_precision(stage.settings)) for stage in stages)


def _merge_pretraining(content: Settings, group: Settings, arm: str) -> Settings | None:
    of_arm = content["arms"][arm].get("pretrain")
    if of_arm is None:
        return None
    of_start = content["starts"][group["start"]]["pretrain"]
    merged = {"precision": content["precision"], **content["pretrain"], **of_start, **of_arm}
    merged |= group.get("pretrain", {})
    if "tokens" in group:
        merged["max_tokens"] = round(merged["max_tokens"] * group["tokens"])
    return {name: value for name, value in merged.items() if value is not None}


def _merge_fine_tuning(content: Settings, group: Settings, arm: str, set_name: str) -> Settings:
    if "ran_at" in content:
        return {}
    of_start = content["starts"][group["start"]]["finetune"]
    of_arm = content["arms"][arm].get("finetune", {})
    merged = {"precision": content["precision"], **content["finetune"], **of_start, **content["sets"][set_name]}
    return {**merged, **of_arm, **group.get("finetune", {})}


def settle_precision(settings: Settings) -> Settings:
    """bf16 where the machine is faster in it, and fp32 elsewhere: emulated, bf16 takes nine times as long as fp32.

    A line of results says which it was. It is no setting of the row: the same row may run on either machine.
    """
    return {**settings, "precision": "auto"} if settings.get("precision") == "bf16" else settings


def hash_settings(settings: Any) -> str:
    """Names settings, so that a result is known to be theirs."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
