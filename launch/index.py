"""Moved: ``kinspan index``."""

raise SystemExit("error: launch/index.py is now: kinspan index")
