"""The model of the installation, and a machine that trains another one without it."""

import pytest

from data_pipeline.core import default_model
from data_pipeline.core.errors import KinspanError


def test_without_its_package_other_models_are_named_as_ever(monkeypatch, tmp_path):
    known = default_model.default_model()
    assert default_model.find_hub_name(known) == default_model.find_hub_name(None) == default_model.DEFAULT_HUB_NAME
    monkeypatch.setattr(default_model, "find_spec", lambda name: None)
    assert default_model.find_hub_name(str(tmp_path)) is None
    assert default_model.find_hub_name("roberta-base") == "roberta-base"
    with pytest.raises(KinspanError, match="--model"):
        default_model.default_model()
