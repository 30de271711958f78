"""Moved: ``kinspan rank``."""

raise SystemExit("error: launch/rank.py is now: kinspan rank")
