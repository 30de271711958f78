"""From a checkpoint to the numbers of a paper's table: answer sentence selection, fine-tuned and measured."""

import os

os.environ.setdefault(
    "JAX_PLATFORMS", "cpu"
)  # bm25s imports jax where it is installed, which would take the GPU's memory
