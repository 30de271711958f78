"""Index and two-stage search over answers."""

import os

# bm25s imports jax where it is installed, which would take most of a GPU's memory
os.environ.setdefault("JAX_PLATFORMS", "cpu")
