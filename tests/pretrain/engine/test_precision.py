"""Which numbers a run computes with where it may choose."""

import pytest
import torch

from pretrain.engine.device import choose_precision


@pytest.fixture
def processor(monkeypatch):
    """Makes this machine one without a GPU whose processor can do what is named."""

    def pretend(**capabilities):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)

    return pretend


@pytest.mark.parametrize(
    ("capabilities", "chosen"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True}, "bf16"),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, "bf16"),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": False}, "fp32"),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": False}, "fp32"),
        ({"avx2": True}, "fp32"),
        ({}, "fp32"),
    ],
)
def test_bf16_is_chosen_where_it_is_faster(processor, capabilities, chosen):
    processor(**capabilities)
    assert choose_precision("auto", zero_stage=1) == chosen
    assert choose_precision("auto", zero_stage=0) == "fp32"


def test_what_is_asked_for_is_taken(processor):
    processor(cpu_name="Intel Xeon", avx512_bf16=True)
    assert choose_precision("bf16", zero_stage=2) == "bf16"
