"""The study of doses: its recipe, its draws, its start's weights, and the tables that stored lines give."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.dose import run, starts, tables


def test_every_comparison_is_of_rows_that_run():
    rows = {row.name for row, _ in run.list_jobs()}
    pairs = run.RECIPE["comparisons"]
    assert all(name in rows for pair in pairs["primary"] + pairs["secondary"] for name in pair)
    assert [(row.name, seed) for row, seed in run.list_jobs()][:2] == [(name, 1) for name in pairs["primary"][0]]


def test_lines_are_named_as_their_rows():
    paths = sorted((tables.FOLDER / "lines").glob("*.jsonl"))
    assert len(paths) > 80
    for path in paths:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        row = asdict(run.parse_row(path.stem))
        assert all({"row": path.stem, **row}.items() <= line.items() for line in lines)
        assert len({line["seed"] for line in lines}) == len(lines)
        assert all(line["map"] == pytest.approx(np.mean(line["ap"]), abs=1e-6) for line in lines)


def test_figures_of_the_stored_lines():
    assert "| +.058 | +.042 to +.074 | <.001 | **<.001** |" in tables.list_comparisons("minilm primary")
    assert "| +.058 | +.057 | <.001 |" in tables.list_uncontaminated("minilm primary")
    table = tables.list_rows("minilm", ("selqa", "wikiqa"))
    assert "| SSP, 50 questions | .824 (.011) n=10 | 120 | .687 (.029) n=10 | 122 |" in table
    assert "| MLM alone, 50 questions | .744 (.012) n=3 of 5 | 153 | .644 (.018) n=2 of 5 | 120 |" in table


def test_a_smaller_draw_is_part_of_a_larger_one(tmp_path):
    for split, count in (("train", 9), ("dev", 6), ("test", 2)):
        rows = [
            {"question": f"{split} {q}?", "answer": f"a{k}", "label": k % 2} for q in range(count) for k in range(3)
        ]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def questions(count, seed, split):
        folder = run.draw(tmp_path, count, seed, tmp_path / f"drawn-{count}-{seed}")
        return {json.loads(line)["question"] for line in (folder / f"{split}.jsonl").read_text().splitlines()}

    assert len(questions(8, 1, "train")) == 8
    assert len(questions(8, 1, "dev")) == 4
    assert questions(4, 1, "train") < questions(8, 1, "train")
    assert questions(4, 1, "train") != questions(4, 2, "train")
    assert len(questions(run.ALL, 1, "train")) == 9


def test_what_is_there_is_skipped_and_lines_are_added(tmp_path, monkeypatch):
    monkeypatch.setattr(run.Study, "measure", lambda self, row, seed: {"seed": seed, "map": 0.5, "seconds": 1.0})
    name = "rampart-none-0-50-selqa"
    for seeds in (["2"], ["1", "2", "3"]):
        flags = ["--work", str(tmp_path), "--lines", str(tmp_path), "--only", name, "--seeds", *seeds]
        monkeypatch.setattr("sys.argv", ["run.py", *flags])
        run.main()
    assert [line["seed"] for line in run.read_lines(tmp_path / f"{name}.jsonl")] == [2, 1, 3]


def test_weights_of_four_bits():
    weights = np.random.default_rng(0).integers(0, 16, (3, 64)).astype(np.uint8)
    scales = np.array([[0.5, 2.0], [1.0, 1.0], [0.25, 4.0]], dtype=np.float32)
    packed = (weights[:, ::2] | weights[:, 1::2] << 4).reshape(3, 2, 16)
    onnx = pytest.importorskip("onnx")
    stored = {"w_Q4": packed, "w_scales": scales, "bert.bias": np.ones(3, np.float32)}
    initializer = [onnx.numpy_helper.from_array(values, name) for name, values in stored.items()]
    node = SimpleNamespace(op_type="MatMulNBits", input=["x", "w_Q4", "w_scales"], name="/bert/layer.0/MatMul_Q4")
    values = dict(starts.read_quantised(SimpleNamespace(initializer=initializer, node=[node])))
    assert sorted(values) == ["bert.bias", "bert.layer.0.weight"]
    expected = (weights.astype(np.float32) - 8) * np.repeat(scales, 32, axis=1)
    assert np.array_equal(values["bert.layer.0.weight"], expected)
