"""Moved: ``kinspan adapter train``."""

raise SystemExit("error: launch/train_adapters.py is now: kinspan adapter train")
