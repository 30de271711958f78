"""Pre-training: planning, model, engine, checkpoints, metrics, release."""
