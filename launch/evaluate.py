"""Moved: ``kinspan evaluate``."""

raise SystemExit("error: launch/evaluate.py is now: kinspan evaluate")
