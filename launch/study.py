"""Moved: ``kinspan study``."""

raise SystemExit("error: launch/study.py is now: kinspan study")
