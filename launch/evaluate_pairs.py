"""Moved: ``kinspan evaluate pairs``."""

raise SystemExit("error: launch/evaluate_pairs.py is now: kinspan evaluate pairs")
