"""Moved: ``kinspan release``."""

raise SystemExit("error: launch/release.py is now: kinspan release")
