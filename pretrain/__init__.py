"""The engine: model, step, loop, checkpoints, metrics, release."""
