"""Moved: ``kinspan data mine``."""

raise SystemExit("error: launch/mine.py is now: kinspan data mine")
