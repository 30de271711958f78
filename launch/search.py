"""Moved: ``kinspan search``."""

raise SystemExit("error: launch/search.py is now: kinspan search")
