"""Moved to ``data_pipeline.core.default_model``."""

from data_pipeline.core.default_model import (
    DEFAULT_HUB_NAME,
    DEFAULT_MODEL_NAME,
    default_model,
    find_hub_name,
    name_installed,
    resolve_model,
)

__all__ = [
    "DEFAULT_HUB_NAME",
    "DEFAULT_MODEL_NAME",
    "default_model",
    "find_hub_name",
    "name_installed",
    "resolve_model",
]
