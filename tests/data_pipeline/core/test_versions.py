"""Versions of packages, installed or not."""

import torch

from data_pipeline.core.versions import find_version


def test_a_package_without_metadata_has_no_version():
    assert find_version("torch") == torch.__version__
    assert find_version("no-such-package-anywhere") is None
