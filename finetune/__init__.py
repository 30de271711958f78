"""Answer sentence selection: fine-tunes and measures rankers, from a checkpoint to the figures of a paper's table."""

import os

# bm25s imports jax where it is installed, which would take most of a GPU's memory
os.environ.setdefault("JAX_PLATFORMS", "cpu")
