from types import SimpleNamespace

import pytest
import torch

from data_pipeline.core.errors import KinspanError
from pretrain.engine import device
from pretrain.engine.device import choose_precision, claim_device


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in (device.VISIBLE, *device.ALLOCATOR):
        monkeypatch.delenv(name, raising=False)


def test_more_ranks_than_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv(device.VISIBLE, "2")
    with pytest.raises(KinspanError, match=device.VISIBLE):
        claim_device(1)


def test_gpus_that_torch_cannot_use_are_refused(monkeypatch, tmp_path):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(device, "DEVICES", tmp_path)
    with pytest.raises(KinspanError, match=device.VISIBLE):
        claim_device(0)
    monkeypatch.setenv(device.VISIBLE, "")
    claim_device(0)  # hidden on purpose


@pytest.mark.parametrize(
    ("capabilities", "chosen"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True}, "bf16"),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, "bf16"),
        *[({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": False}, "fp32"), ({}, "fp32")],
    ],
)
def test_bf16_is_chosen_where_it_is_faster(monkeypatch, capabilities, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert choose_precision("auto", zero_stage=1) == chosen
    assert choose_precision("auto", zero_stage=0) == "fp32"


@pytest.mark.parametrize(
    ("busy", "expected"), [((0, 0, 0, 0), 4), ((100, 60, 0, 0), 2), ((100, 100, 100, 100), 1), ((100, 0), 3)]
)
def test_a_rank_leaves_the_processors_that_other_programs_use(monkeypatch, busy, expected):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    used = [SimpleNamespace(user=percent, system=0) for percent in busy]
    monkeypatch.setattr(device.psutil, "cpu_times_percent", lambda **_: used)
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda _: range(4))
    before = torch.get_num_threads()
    device.set_threads()
    assert torch.get_num_threads() == expected
    torch.set_num_threads(before)
