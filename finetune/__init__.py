"""From a checkpoint to the numbers of a paper's table: answer sentence selection, fine-tuned and measured."""

import os

# bm25s imports jax where it is installed, which would take most of a GPU's memory
os.environ.setdefault("JAX_PLATFORMS", "cpu")
