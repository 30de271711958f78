"""Reads DeepSpeed's JSON file, in which only settings that were tried with kinspan may stand; without torch."""

import json

from data_pipeline.core.errors import KinspanError, quote_error
from data_pipeline.core.files import JsonObject, find_file

OFFLOAD = ("device", "pin_memory")
TRIED = {  # the keys that each object may have
    "": ("zero_optimization", "communication_data_type", "fp16"),
    "zero_optimization": (
        *("stage", "reduce_bucket_size", "allgather_bucket_size", "overlap_comm", "sub_group_size"),
        *("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_max_live_parameters"),
        *("stage3_max_reuse_distance", "offload_optimizer", "offload_param"),
    ),
    "offload_optimizer": OFFLOAD,
    "offload_param": OFFLOAD,
    "fp16": ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"),
}


def read_deepspeed_config(name: str) -> JsonObject:
    """Reads the JSON file of that name, see ``find_file``. Raises KinspanError for what DeepSpeed does not check."""
    path = find_file(name)
    if path is None:
        raise KinspanError(f"--deepspeed_config {name}: no such file")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise KinspanError(f"--deepspeed_config {name} is not a JSON object: {quote_error(error)}") from error
    _check_tried(name, "", settings)
    zero = settings.get("zero_optimization", {})
    if type(stage := zero.get("stage", 0)) is not int or stage not in range(4):  # JSON's true would pass for 1
        raise KinspanError(f'--deepspeed_config {name}: "stage" is {json.dumps(stage)}, and must be 0, 1, 2 or 3')
    for key in ("offload_optimizer", "offload_param"):
        if zero.get(key, {}).get("device", "none") not in ("cpu", "none"):
            raise KinspanError(f'--deepspeed_config {name}: the device of "{key}" must be cpu or none')
    return settings


def _check_tried(name: str, key: str, settings: object) -> None:
    """Raises KinspanError unless the object at ``key`` has only keys that were tried."""
    if not isinstance(settings, dict):
        raise KinspanError(f"--deepspeed_config {name}: {key or 'it'} must be an object, as in ds_configs/zero2.json")
    for inner, value in settings.items():
        if inner not in TRIED[key]:
            raise KinspanError(f'--deepspeed_config {name}: "{inner}" is set by a flag, or was never tried: remove it')
        if inner in TRIED:
            _check_tried(name, inner, value)


def zero_stage(settings: JsonObject) -> int:
    """Returns the stage of ZeRO, 0 to 3, in settings that ``read_deepspeed_config`` returned."""
    return settings.get("zero_optimization", {}).get("stage", 0)
