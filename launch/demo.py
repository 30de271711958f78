"""Moved: ``kinspan demo``."""

raise SystemExit("error: launch/demo.py is now: kinspan demo")
