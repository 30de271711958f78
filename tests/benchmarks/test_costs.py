"""What recipes cost: the arithmetic, measured speeds in place of assumed ones, and prices."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import costs
from benchmarks.costs import MEASURED, MODEL, Recipe, fill_blocks, find_measured, make_tables, read_prices, work_out
from data_pipeline.errors import KinspanError


@pytest.fixture
def recipe():
    """A thousand updates of 4,096 pairs of 100 tokens, a GFLOP each."""
    part = SimpleNamespace(objective=SimpleNamespace(name="ssp"))
    config = SimpleNamespace(global_batch_size=4096)
    plan = SimpleNamespace(
        config=config,
        steps=1000,
        flops=1e9,
        num_parameters=125_000_000,
        token_loss="mlm",
        max_length=128,
        mixture=SimpleNamespace(parts=[part]),
    )
    return Recipe("roberta-base-ssp", plan, 100.0, np.full(8192, 100))


def row(what, tflops, check="RoBERTa-base"):
    return {"check": check, "what": what, "figures": {"TFLOP/s": tflops}}


DEVICE = {"check": "device", "what": "device", "figures": {"gpu": "NVIDIA H100 80GB HBM3"}}


def test_hours_are_the_operations_over_the_speed_and_a_little_for_the_links(recipe):
    cost = work_out(recipe, "A100", 8, 0.4, [])
    alone = recipe.tokens * 1e9 / (8 * 0.4 * 312e12) / 3600
    assert recipe.tokens == 4096 * 100 * 1000
    assert alone < cost.hours < 1.1 * alone
    assert cost.gpu_hours == 8 * cost.hours
    assert cost.source == MODEL
    assert work_out(recipe, "H100", 64, 0.4, []).gpu_hours > work_out(recipe, "H100", 8, 0.4, []).gpu_hours


def test_a_measured_speed_stands_in_for_the_assumed_one(recipe):
    """The fastest of the recipe's objective and length, on the GPU that was measured."""
    rows = [
        DEVICE,
        row("SSP at 128, micro-batches of 128 pairs", 150.0),
        row("SSP at 128, micro-batches of 256 pairs", 200.0),
        row("SSP at 128, micro-batches of 256 pairs, --compile", 900.0),
        row("SP at 256, micro-batches of 256 pairs", 800.0),
        row("SSP at 128, micro-batches of 256 pairs", 700.0, check="ELECTRA-base"),
    ]
    assert find_measured(rows, "H100", recipe) == 200e12
    assert find_measured(rows, "A100", recipe) is None
    assert find_measured([DEVICE], "H100", recipe) is None
    measured, modelled = work_out(recipe, "H100", 8, 0.4, rows), work_out(recipe, "H100", 8, 0.4, [])
    assert measured.source == MEASURED
    assert measured.hours == pytest.approx(modelled.hours * 0.4 * 989 / 200, rel=0.05)


def test_prices_are_of_all_gpus_or_of_one_kind(recipe):
    assert read_prices(["2.5"]) == {"A100": 2.5, "H100": 2.5}
    assert read_prices(["2", "H100=3"]) == {"A100": 2.0, "H100": 3.0}
    assert read_prices(None) == {}
    for bad in ("two", "B200=3", "-1", "nan", "H100="):
        with pytest.raises(KinspanError, match=f"--price {bad}: must be"):
            read_prices([bad])
    cost = work_out(recipe, "H100", 8, 0.4, [])
    _, (_, cells) = make_tables([recipe], {"H100": 100.0}, 0.4, [])
    assert cells[2].endswith(f", {100 * cost.gpu_hours:,.0f}")
    assert cells[1].endswith("GPU-h")


def test_the_page_keeps_its_text_and_gets_new_tables():
    page = "a\n<!-- costs -->\nold\n<!-- end -->\nb\n<!-- settings -->\n<!-- end -->\nc\n"
    filled = fill_blocks(page, {"costs": "1", "settings": "2"})
    assert filled == "a\n<!-- costs -->\n1\n<!-- end -->\nb\n<!-- settings -->\n2\n<!-- end -->\nc\n"
    assert fill_blocks(filled, {"costs": "1", "settings": "2"}) == filled


def test_every_recipe_for_gpus_is_on_the_page():
    text = costs.PAGE.read_text(encoding="utf-8")
    assert len(costs.list_recipes()) >= 10
    for path in costs.list_recipes():
        assert text.count(f"| {path.stem} |") == 2
    assert "No speed was measured." in text
