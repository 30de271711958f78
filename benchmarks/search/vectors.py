"""Measures the search of vectors alone: exact and approximate, at any number of answers.

The vectors are those of an index, and copies of them with noise where more are asked for; the queries are answers with
more noise. Each number is measured in a process of its own: how long the approximate index takes to build, bytes of
both on the disk, memory that no file stands behind, the median time of a query by the clock and of the processor, and
which share of the 100 exact answers the approximate index finds.

Bar: .98 of them at the 27,413 answers of InsuranceQA."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _common

NOISE, QUERY_NOISE = 0.5, 1.0  # length of the noise beside a vector's 1
BLOCK = 50_000  # rows that are made at once
K = 100

EPILOG = """example:
  python -m benchmarks.search.vectors --index index --rows 27413 1000000"""


def main() -> None:
    parser = _common.parser(__doc__, EPILOG)
    parser.prog = "python -m benchmarks.search.vectors"
    parser.add_argument("--index", required=True, help="An index, whose vectors are the pattern.")
    parser.add_argument("--rows", type=int, nargs="+", default=[27_413, 1_000_000], help="Numbers of vectors.")
    parser.add_argument("--queries", type=int, default=100, help="Queries that are timed.")
    args = parser.parse_args()
    rows = [_common.in_fresh_process(measure, args.index, count, args.queries) for count in args.rows]
    header = (
        "vectors", "built in s", "(processor)", "matrix MB", "graph MB", "own memory MB", "exact ms", "(processor)",
        "approximate ms", "(processor)", f"recall@{K}",
    )  # fmt: skip
    _common.print_table(header, [[f"{value:,}" for value in row.values()] for row in rows])
    _common.report("vectors", {f"{row['vectors']} {name}": value for row in rows for name, value in row.items()})


def measure(index: str, count: int, queries: int) -> dict[str, Any]:
    from serve.nearest import GRAPH, MATRIX, Graph, find_exactly, map_matrix, write_graph

    with tempfile.TemporaryDirectory(dir=".") as folder:
        place = Path(folder)
        asked = write_vectors(index, place / MATRIX, count, queries)
        matrix = map_matrix(place / MATRIX)
        began, worked = time.perf_counter(), time.process_time()
        write_graph(place / GRAPH, matrix)
        built = time.perf_counter() - began, time.process_time() - worked
        graph = Graph(place / GRAPH, matrix)
        exact, exact_ms = take_time(lambda query: find_exactly(matrix, query[None], K, None)[0][0], asked)
        near, near_ms = take_time(lambda query: graph.find(query, K, None)[0], asked)
        recall = np.mean([np.isin(a, b).mean() for a, b in zip(exact, near, strict=True)])
        return {
            "vectors": count,
            "built": round(built[0]),
            "built, processor": round(built[1]),
            "matrix MB": round((place / MATRIX).stat().st_size / 1e6),
            "graph MB": round((place / GRAPH).stat().st_size / 1e6),
            "memory MB": round(_common.rss_anon()),
            "exact ms": exact_ms[0],
            "exact, processor": exact_ms[1],
            "approximate ms": near_ms[0],
            "approximate, processor": near_ms[1],
            "recall": round(float(recall), 4),
        }


def write_vectors(index: str, path: Path, count: int, queries: int) -> np.ndarray:
    """Writes so many vectors of length 1, those of the index first, and returns queries."""
    from serve.index import Index

    own = np.concatenate([np.asarray(matrix) for matrix in Index(index).matrices]).astype(np.float32)
    rng = np.random.default_rng(0)
    matrix = np.lib.format.open_memmap(path, "w+", np.float16, (count, own.shape[1]))
    for first in range(0, count, BLOCK):
        rows = np.arange(first, min(first + BLOCK, count))
        perturbed = own[rows % len(own)]
        copies = rows >= len(own)
        perturbed[copies] = perturb(perturbed[copies], NOISE, rng)
        matrix[rows] = perturbed
    matrix.flush()
    return perturb(own[rng.integers(len(own), size=queries)], QUERY_NOISE, rng)


def perturb(vectors: np.ndarray, length: float, rng: np.random.Generator) -> np.ndarray:
    noise = rng.standard_normal(vectors.shape, dtype=np.float32) * (length / vectors.shape[1] ** 0.5)
    noisy = vectors + noise
    return noisy / np.linalg.norm(noisy, axis=1, keepdims=True)


def take_time(find: Callable[[np.ndarray], np.ndarray], queries: np.ndarray) -> tuple[list[np.ndarray], list[float]]:
    """What is found for each query, and the median milliseconds by the clock and of the processor."""
    found, taken = [], []
    for query in queries:
        began, worked = time.perf_counter(), time.process_time()
        found.append(find(query))
        taken.append((time.perf_counter() - began, time.process_time() - worked))
    return found, [round(1000 * statistics.median(of), 2) for of in zip(*taken, strict=True)]


if __name__ == "__main__":
    _common.run(main)
