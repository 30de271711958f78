"""The prediction of speed: what it counts, and that it moves as it must."""

import numpy as np
import pytest

from benchmarks.gpu.count import MASKED, build_model, make_batch, trace_update
from pretrain.metrics import FlopCounter
from pretrain.planning.cost import (
    GPUS,
    UPDATE_BYTES,
    UPDATE_KERNELS,
    count_work,
    predict_update,
    shape_batch,
    time_host,
)


@pytest.fixture(scope="module")
def model():
    return build_model("meta")


@pytest.fixture(scope="module")
def work(model):
    return count_work(model, make_batch(64, 128, 94.5))


def test_the_arithmetic_is_that_of_the_utilisation(model, work):
    counted = sum(kernel.flops for kernel in work.eager)
    assert counted == pytest.approx(FlopCounter(model)(make_batch(64, 128, 94.5)), rel=0.03)
    assert counted == pytest.approx(sum(kernel.flops for kernel in work.compiled))


def test_a_compiler_spares_kernels_and_bytes_of_what_is_elementwise_alone(work):
    for name in ("addmm", "mm", "_flash_attention_forward"):
        assert sum(k.name == name for k in work.eager) == sum(k.name == name for k in work.compiled) > 0
    assert sum(k.count for k in work.compiled) < 0.75 * sum(k.count for k in work.eager)
    eager, compiled = ({k.name: 0 for k in kernels} for kernels in (work.eager, work.compiled))
    assert "fused" in compiled
    assert "gelu" in eager
    assert "gelu" not in compiled
    assert sum(k.bytes for k in work.compiled) < sum(k.bytes for k in work.eager)


def test_more_tokens_take_more_bytes_and_no_more_kernels(model, work):
    twice = count_work(model, make_batch(128, 128, 94.5))
    assert sum(k.count for k in twice.eager) == sum(k.count for k in work.eager)
    ratio = sum(k.bytes for k in twice.eager) / sum(k.bytes for k in work.eager)
    assert 1.7 < ratio < 2.0  # the weights are read once


def test_the_masked_loss_takes_so_many_bytes_a_logit(model, work):
    batch = make_batch(64, 128, 94.5)
    logits = len(batch.masked_labels) * 50265
    loss = ("_log_softmax", "_softmax", "argmax")
    largest = [k for k in work.eager if k.bytes > 1.5 * logits and (k.name in (*loss, "_to_copy") or "mul" in k.name)]
    assert 30 <= sum(k.bytes for k in largest) / logits <= 40


def test_speed_moves_as_it_must(model, work):
    parameters = sum(p.numel() for p in model.parameters())

    def predict(gpu="H100", compiled=True, batches=4, ranks=1, work=work):
        return ranks * batches * work.tokens / predict_update(work, GPUS[gpu], compiled, parameters, batches, ranks)

    assert predict("A100") < predict("H100") < predict("H200")
    assert predict(compiled=False) < predict()
    assert 4 * predict() < predict(ranks=8) < 8 * predict()
    assert predict(batches=1, ranks=8) < predict(batches=4, ranks=8)  # communication, for fewer tokens
    few = count_work(model, shape_batch(np.full(8, 64), 1, MASKED))
    assert predict("H200", compiled=False, work=few) == pytest.approx(
        predict("H100", compiled=False, work=few), rel=0.2
    )  # both wait for the host
    assert time_host(few.eager, compiled=False) == time_host(work.eager, compiled=False)


def test_the_update_is_what_was_counted_and_waits_for_nothing():
    kernels, waits, parameters = trace_update("zero1", "bf16")
    assert not waits
    assert len(kernels) == UPDATE_KERNELS
    assert sum(kernel.bytes for kernel in kernels) / parameters == pytest.approx(UPDATE_BYTES, rel=0.02)
