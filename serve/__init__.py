"""Index and two-stage search over answers."""

import os

os.environ.setdefault(
    "JAX_PLATFORMS", "cpu"
)  # bm25s imports jax where it is installed, which would take the GPU's memory
